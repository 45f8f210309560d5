"""How products scale: the command, its record, and records that must be rejected."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import pytest

from tilewright.errors import RecordError, UsageError
from tilewright.lab.scale.scaling import ClusterRates, scaling_point, weak_shape
from tilewright.records import scaling
from tilewright.records.json_data import holds_kind
from tilewright.records.scaling import ScalingPoint, read_scaling, scaling_line, write_scaling

CLUSTER = ClusterRates(flops=1e12, memory=1 << 30, link=1e10, storage=1e9)


@cache
def point(where: str = "storage", workers: int = 4) -> ScalingPoint:
    return scaling_point((8192, 8192, 8192), "float32", workers, CLUSTER, where)


# ---- points ----------------------------------------------------------------------------------------------------------


def test_efficiency_is_the_share_of_all_workers_operations() -> None:
    for workers in (1, 4, 16):
        found = point("workers", workers)
        assert found.efficiency == pytest.approx(2 * 8192**3 / (workers * 1e12) / found.total_s)
        assert found.efficiency <= found.shares["compute"] * found.used / found.workers <= 1


@pytest.mark.slow
def test_a_shared_storage_gives_no_more_to_more_workers() -> None:
    shared = replace(CLUSTER, storage=4e8, shared=True)
    few, many = (scaling_point((8192, 8192, 8192), "float32", workers, shared) for workers in (4, 16))
    assert few.rates["storage_bytes"] == many.rates["storage_bytes"] == 4e8
    assert many.efficiency < 0.5
    assert (many.binds, many.loss) == ("storage", "storage")
    assert many.total_s > 2 * 8192**2 * 4 / 4e8  # A and B pass at least


def test_weak_scaling_keeps_the_memory_of_each_worker() -> None:
    for shape in ((1000, 1000, 1000), (600, 2000, 4)):
        for workers in (4, 16, 100):
            m, n, k = weak_shape(shape, 4, workers)
            first, grown = (x * z + z * y + x * y for x, y, z in (shape, (m, n, k)))
            assert grown / workers == pytest.approx(first / 4, rel=0.01)


@pytest.mark.slow
def test_other_dtypes_and_places_are_refused() -> None:
    with pytest.raises(UsageError, match="dtype 'int8': must be float32 or float64"):
        scaling_point((8, 8, 8), "int8", 1, CLUSTER)
    with pytest.raises(UsageError, match="where 'moon': must be storage or workers"):
        scaling_point((8, 8, 8), "float32", 1, CLUSTER, "moon")


# ---- records ---------------------------------------------------------------------------------------------------------


def test_a_file_holds_what_was_written(tmp_path: Path) -> None:
    points = [point(), point("workers", 16), replace(point(), grown_from=(8192, 8192, 8192), environment={"x": "y"})]
    write_scaling(tmp_path / "s.jsonl", points)
    assert holds_kind(tmp_path / "s.jsonl", "scaling")
    assert [scaling_line(each) for each in read_scaling(tmp_path / "s.jsonl")] == [
        scaling_line(each) for each in points
    ]


def test_every_field_has_a_rule() -> None:
    assert {field.name for field in fields(ScalingPoint)} - set(scaling._RULES) == {"schema", "kind"}


#: Changes to a right record, and what the message says.
WRONG = {
    "kind must be 'scaling'": {"kind": "bench"},
    "of schema 1": {"schema": 2},
    "is incomplete": {"total_s": ...},
    "m must be a whole number": {"m": -1},
    "workers must be a whole number": {"workers": 0},
    "parts must be 2 positive": {"parts": [2]},
    "where must be": {"where": "moon"},
    "grown_from must be 3 positive whole numbers or null": {"grown_from": [1, 2]},
    "total_s must be seconds": {"total_s": 0},
    "rates must have": {"rates": {"flops": 0.0, "link_bytes": 1e9}},
    "shares must have compute": {"shares": {"compute": 1.0}},
    "rates must have storage_bytes": {"rates": {"flops": 1e12, "link_bytes": 1e9}},
    "parts must be as many": {"used": 3},
    "no more than workers": {"workers": 1},
    "tiles must be": {"tiles": [100, 100]},
    "shares must have the sum 1": {"shares": dict.fromkeys(scaling.SPENT, 0.5)},
    "efficiency must be": {"efficiency": 0.99},
    "cannot compute less": {"shares": dict.fromkeys(scaling.SPENT, 0.0) | {"link": 1.0}},
    "moved_bytes must be least_bytes": {"moved_bytes": 10},
    "received_bytes take": {"received_bytes": 2**60},
}


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_record_is_rejected(message: str, tmp_path: Path) -> None:
    data = json.loads(scaling_line(point()))
    data = {key: value for key, value in (data | WRONG[message]).items() if value is not ...}
    path = tmp_path / "s.jsonl"
    path.write_text(scaling_line(point()) + "\n" + json.dumps(data) + "\n")
    with pytest.raises(RecordError, match=message) as raised:
        read_scaling(path)
    assert str(raised.value).startswith(f"{path}:2: ")


@pytest.mark.parametrize("text", ["", "\n", "[]\n", "{", '{"kind": "bench"}', "\xff"])
def test_what_is_no_record_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(text, encoding="latin-1")
    assert not holds_kind(path, "scaling")
    with pytest.raises(RecordError):
        read_scaling(path)
    assert not holds_kind(tmp_path / "absent", "scaling")


BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(
    ("name", "sizes", "where"),
    [
        ("cluster-scaling", (131072, 524288, 2097152), "storage"),
        ("cluster-scaling-workers", (131072, 524288, 2097152), "workers"),
        ("cluster-scaling-weak", tuple(131072 * 2**power for power in range(6)), "workers"),
    ],
)
def test_the_committed_records_keep_the_rules(name: str, sizes: tuple[int, ...], where: str) -> None:
    points = read_scaling(BENCHMARKS / f"{name}.jsonl")
    assert {each.m for each in points} == set(sizes)
    assert {each.workers for each in points} == {4, 16, 64, 256, 1024, 4096}
    assert {each.where for each in points} == {where}
    assert all(each.environment["command"].startswith("tilewright scale 131072") for each in points)


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_shows_a_table_and_writes_a_record(cli) -> None:
    answer = cli("scale", "16384", "--workers", "4,16", "--flops", "1TFLOPS", "--where", "workers", "--json", "s.jsonl")
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert lines[0] == "16,384³ float32; A and B at the workers"
    heads = ["workers", "tiles", "grid", "time", "efficiency", "moved each", "least each", "bound by"]
    assert lines[1].split() == " ".join(heads).split()
    assert [line.split()[0] for line in lines[2:]] == ["4", "16"]
    assert max(map(len, lines)) <= 80
    few, many = read_scaling("s.jsonl")
    assert (few.workers, many.workers, many.m) == (4, 16, 16384)
    assert few.environment["command"].startswith("tilewright scale 16384")
    assert many.total_s < few.total_s


@pytest.mark.slow
def test_weak_scaling_and_standard_output(cli) -> None:
    answer = cli("scale", "8192,4096x8192x1024", "--workers", "1,4", "--storage", "8GB/s", "--weak", "--json", "-")
    assert answer.code == 0, answer.err
    points = [json.loads(line) for line in answer.out.splitlines()]
    assert [each["m"] for each in points] == [8192, 16384, 4096, 8192]
    assert [each["grown_from"] for each in points] == 2 * [[8192] * 3] + 2 * [[4096, 8192, 1024]]
    assert {each["rates"]["storage_bytes"] for each in points} == {8e9}
    assert "growing with the workers" in answer.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("x",), "sizes 'x'"),
        (("0",), "sizes: must be above 0"),
        (("8", "--workers", "0"), "workers: must be numbers from 1 to 4,096"),
        (("8", "--workers", "4,"), "workers: must be numbers"),
        (("8", "--workers", "5000"), "workers: must be numbers from 1 to 4,096"),
        (("8", "--flops", "fast"), "flops: must be a rate such as 50GFLOPS, got 'fast'"),
        (("8", "--link", "0GB/s"), "link: must be a rate such as 50GB/s"),
        (("8", "--storage", "1e999B/s/worker"), "storage: must be a rate"),
        (("8", "--memory", "much"), "memory 'much'"),
        (("8", "--task", "soon"), "task must be a time"),
        (("8", "--dtype", "int8"), "must be float32 or float64"),
        (("8", "--where", "moon"), "must be storage or workers"),
        (("8", "--json", "absent/s.jsonl"), "cannot be written"),
        (("100000000", "--memory", "1MB"), "(100000000×100000000)"),
    ],
)
def test_a_bad_argument_is_named_in_one_line(cli, arguments: tuple[str, ...], message: str) -> None:
    answer = cli("scale", *arguments)
    assert answer.code == 2
    assert message in answer.err
    assert len(answer.err.strip().splitlines()) == 1
