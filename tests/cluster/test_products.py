"""``multiply`` on the workers of a cluster: the bits of one process, whatever the operands, the result and the partition."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client

import tilewright as tw
from support.command_line import Answer
from tilewright.cpu.choice import choose_adding_cpu
from tilewright.errors import ClusterError, FileError, ShapeError, UsageError, how_to_install
from tilewright.large.cluster import kept, placement
from tilewright.large.cluster.connect import connected
from tilewright.large.cluster.layers import layers
from tilewright.large.cluster.session import ReturnedTiles
from tilewright.large.files import open_matrix, whole_matrix
from tilewright.large.multiply import job_on
from tilewright.large.streaming.options import Options
from tilewright.large.streaming.places.places import Placement
from tilewright.large.streaming.places.rates import kc_of
from tilewright.large.streaming.plan.cuts import Room
from tilewright.large.streaming.plan.grid import Grid, Tile
from tilewright.large.streaming.plan.schedule import Schedule
from tilewright.large.streaming.run import job as job_module
from tilewright.large.streaming.run.job import open_job

M, K, N = 900, 700, 800
rng = np.random.default_rng(0)
A = rng.uniform(-1, 1, (M, K)).astype(np.float32)
B = rng.uniform(-1, 1, (K, N)).astype(np.float32)
#: Room for several tiles of every worker; chunks of zarr are as large as this C.
MEMORY = "40MiB"


@pytest.fixture(scope="module")
def expected() -> np.ndarray[Any, Any]:
    return tw.multiply(A, B, device="cpu")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", A)
    np.save("b.npy", B)
    return tmp_path


def matrix(path: str) -> np.ndarray[Any, Any]:
    with contextlib.closing(open_matrix(path)) as source:
        return whole_matrix(source)


@pytest.mark.slow_cases("c.npy", "c.zarr", "c.h5")
@pytest.mark.parametrize("out", ["c.npy", "c.zarr", "c.h5", "c.safetensors:x"])
def test_files_of_every_format_have_the_bits_of_one_process(
    out: str, client: Client, files: Path, expected: np.ndarray[Any, Any]
) -> None:
    assert tw.multiply("a.npy", "b.npy", out, cluster=client, memory=MEMORY) == out
    np.testing.assert_array_equal(matrix(out), expected)
    assert not list(files.glob("*.tilewright"))


@pytest.mark.parametrize("partition", ["1x2", "2x1", "rectangles", "strips"])
def test_each_worker_reads_what_its_schedule_says(partition: str, client: Client, files: Path) -> None:
    options = Options(partition=partition, memory=MEMORY, overwrite=True)
    with job_on(client, "a.npy", "b.npy", "c.npy", options) as job:
        job.run()
        assert set(job.measured.read_by) <= {str(place) for place in job.placement.places}
        if partition in ("1x2", "2x1"):
            assert len(job.plan.regions) == 2
        planned = sum(
            job.plan.grid.elements(load.block) * 4
            for part in job.plan.regions
            for load in Schedule.of(job.plan.grid, job.plan.slots, part).loads
        )
        # A worker that is done early takes tiles of another, and with these blocks of other rows and columns.
        assert 4 * (M * K + K * N) <= job.measured.read_bytes <= 1.5 * planned


@pytest.mark.slow
def test_arrays_of_dask_and_of_the_client(client: Client, files: Path, expected: np.ndarray[Any, Any]) -> None:
    x = da.from_array(A, chunks=(300, 250)).persist()
    y = da.from_array(B, chunks=(333, 800)).persist()
    for a, b in ((x, y), (A, B), ("a.npy", y), (x, B.astype(np.float64).astype(np.float32))):
        c = np.full((M, N), np.nan, np.float32)
        assert tw.multiply(a, b, c, cluster=client) is c
        np.testing.assert_array_equal(c, expected)


@pytest.mark.slow
def test_without_out_the_result_stays_on_the_workers(
    client: Client, files: Path, expected: np.ndarray[Any, Any]
) -> None:
    for a in ("a.npy", A, da.from_array(A, chunks=300)):
        c = tw.multiply(a, "b.npy", cluster=client)
        assert isinstance(c, da.Array)
        assert all(future.done() for future in client.futures_of(c))
        np.testing.assert_array_equal((c + 0).compute(), expected)


@pytest.mark.slow
def test_workers_share_a_long_sum_in_an_order_that_depends_on_the_shape_alone(client: Client, files: Path) -> None:
    long = 1 << 15
    a, b = (rng.uniform(-1, 1, shape).astype(np.float32) for shape in ((30, long), (long, 20)))
    np.save("long.npy", a)
    np.save("tall.npy", b)
    assert layers(30, 20, long) > 1
    plan = tw.plan_multiply("long.npy", "tall.npy", "c.npy", cluster=client)
    assert f"{layers(30, 20, long)} of k, which 2 workers share" in str(plan)
    tw.multiply("long.npy", "tall.npy", "c.npy", cluster=client)
    in_memory = np.empty((30, 20), np.float32)
    tw.multiply(a, da.from_array(b, chunks=(5000, 20)), in_memory, cluster=client)
    np.testing.assert_array_equal(np.load("c.npy"), in_memory)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(in_memory - exact).max() <= 1e-6 * (np.abs(a) @ np.abs(b)).max()


@pytest.mark.parametrize("begun_on", ["cluster", "one machine"])
def test_one_resumes_what_the_other_began(
    begun_on: str, client: Client, files: Path, expected: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Enough(Exception):  # noqa: N818  # no error
        pass

    def stop(done: int, total: int) -> None:
        until = time.monotonic() + 60
        while done > total // 2 and not job.finished_tiles and time.monotonic() < until:
            time.sleep(0.01)
        if done > total // 2:
            raise Enough

    choice = choose_adding_cpu("float32")
    assert choice is not None
    room = Room(2_600_000, kc=kc_of(choice.kernel, "float32"))  # for several tiles, whatever the rates of this machine
    monkeypatch.setattr(job_module, "place_product", lambda *_: Placement(choice, room, 1, 1 << 30))
    clusters = [client, None] if begun_on == "cluster" else [None, client]
    with (
        pytest.raises(Enough),
        job_on(clusters[0], "a.npy", "b.npy", "c.npy", Options(memory=MEMORY, device="cpu")) as job,
    ):
        job.run(stop)
    begun = job.finished_tiles
    room = Room(1 << 28, kc=room.kc)
    with job_on(clusters[1], "a.npy", "b.npy", "c.npy", Options(memory=MEMORY, device="cpu", resume=True)) as job:
        assert job.measured.before == begun > 0
        job.run()
    np.testing.assert_array_equal(np.load("c.npy"), expected)


@pytest.mark.parametrize(("m", "k", "n"), [(0, 5, 3), (4, 0, 3), (1, 1, 1)])
def test_no_elements(m: int, k: int, n: int, client: Client, files: Path) -> None:
    a, b = np.ones((m, k), np.float32), np.ones((k, n), np.float32)
    np.save("x.npy", a)
    np.save("y.npy", b)
    tw.multiply("x.npy", "y.npy", "c.npy", cluster=client)
    np.testing.assert_array_equal(np.load("c.npy"), a @ b)


def test_what_cannot_be_multiplied_is_refused(client: Client, files: Path) -> None:
    with pytest.raises(FileError, match="missing"):
        tw.multiply("missing.npy", "b.npy", "c.npy", cluster=client)
    with pytest.raises(ShapeError, match="k mismatch"):
        tw.multiply("b.npy", "b.npy", "c.npy", cluster=client)
    with pytest.raises(UsageError, match=r"partition 3x3 has 9 regions, and there are 2 places"):
        tw.multiply("a.npy", "b.npy", "c.npy", cluster=client, partition="3x3")
    for nonsense in ("nonsense", "local:0", 4):
        with pytest.raises(UsageError, match="must be an address"):
            tw.multiply("a.npy", "b.npy", "c.npy", cluster=nonsense)
    with pytest.raises(UsageError, match="the result stays on the workers"):
        tw.multiply("a.npy", "b.npy", cluster="local:2")
    with pytest.raises(UsageError, match="pass out to compute it on GPUs"):
        tw.multiply("a.npy", "b.npy", cluster=client, device="cuda")


def test_a_worker_that_sees_another_file_is_named(client: Client, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where two machines have different files of one name."""
    from tilewright.large.files.plain import PlainSource

    monkeypatch.setattr(PlainSource, "fingerprint", lambda self: "another")
    with pytest.raises(ClusterError, match=r"worker tcp://\S+ reads another file as a than the client"):
        tw.multiply("a.npy", "b.npy", "c.npy", cluster=client)


def test_workers_that_would_compute_other_bits_are_refused(client: Client, files: Path) -> None:
    from dataclasses import replace

    with job_on(client, "a.npy", "b.npy", "c.npy", Options(), only_planned=True) as job:
        facts = job.placement.facts
    placement.check_alike(facts)
    with pytest.raises(ClusterError, match="bits would depend on who computes"):
        placement.check_alike([facts[0], replace(facts[1], kernel="another")])


def test_a_plan_on_a_cluster_says_who_computes(client: Client, files: Path) -> None:
    text = str(tw.plan_multiply("a.npy", "b.npy", "c.npy", cluster=client, partition="1x2"))
    assert "  workers    2 workers on 1 host, 1 thread each, memory limit 2 GiB" in text
    assert "2 in 1×2, of " in text
    assert not Path("c.npy.tilewright").exists()


@pytest.mark.slow
def test_the_command(cli: Any, files: Path, client: Client, expected: np.ndarray[Any, Any], tmp_path: Path) -> None:
    address = client.scheduler.address
    answer: Answer = cli("multiply", "a.npy", "b.npy", "-o", "c.npy", "--cluster", address)
    assert (answer.code, "2 workers on 1 host" in answer.out) == (0, True), answer.err
    np.testing.assert_array_equal(np.load("c.npy"), expected)
    assert cli("multiply", "a.npy", "b.npy", "-o", "c.npy", "--cluster", address, "--resume").code == 0
    answer = cli("multiply", "a.npy", "b.npy", "-o", "d.npy", "--cluster", "somewhere")
    assert (answer.code, answer.err.count("\n")) == (2, 1)


def test_a_callers_client_stays_open_and_is_not_made_current(client: Client, files: Path) -> None:
    with connected(client) as same:
        assert same is client
    assert client.status == "running"


WITHOUT = """
import sys
sys.modules["distributed"] = sys.modules["dask"] = None
import numpy as np, tilewright as tw
from tilewright.__main__ import run_command_line
a = np.ones((3, 3))
assert (tw.multiply(a, a, device="cpu") == 3).all()
sys.argv = ["tilewright", "multiply", "a.npy", "b.npy", "-o", "c.npy", "--cluster", "local:2"]
sys.exit(run_command_line())
"""


@pytest.mark.slow
def test_without_dask_only_the_cluster_is_missing(files: Path) -> None:
    answer = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=120, check=False)
    assert answer.returncode == 3
    assert how_to_install("cluster") in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_the_job_of_one_process_is_as_before(files: Path) -> None:
    with open_job("a.npy", "b.npy", "c.npy", Options(device="cpu")) as job:
        assert job.plan.workers == ""
        assert "device     cpu" in str(job.plan)


def test_a_chunk_of_a_file_is_read_where_it_is_multiplied(files: Path) -> None:
    source = open_matrix("a.npy")
    assert kept.file_matrix(source).shape == (M, K)
    chunk = kept.FileRectangle(source.opener(), source.fingerprint(), slice(10, 500), slice(20, 600), A.dtype)  # type: ignore[arg-type]
    source.close()
    np.testing.assert_array_equal(chunk[5:9, 3:], A[15:19, 23:600])
    np.testing.assert_array_equal(chunk.astype(np.float64), A[10:500, 20:600].astype(np.float64))
    np.save("a.npy", A + 1)
    with pytest.raises(ClusterError, match="another file than the client"):
        np.asarray(kept.FileRectangle(chunk.opener, "another", slice(0, 1), slice(0, 1), A.dtype))


@pytest.mark.slow
def test_a_cluster_of_this_machine_leaves_the_environment_as_it_was(
    files: Path, expected: np.ndarray[Any, Any]
) -> None:
    """Dask sets OMP_NUM_THREADS where it starts workers."""
    with dask.config.set({"distributed.nanny.pre-spawn-environ": {"TILEWRIGHT_TEST": 1}}):
        before = dict(os.environ)
        tw.multiply("a.npy", "b.npy", "c.npy", cluster="local:1")
        assert dict(os.environ) == before
    np.testing.assert_array_equal(np.load("c.npy"), expected)


def test_a_tile_that_is_returned_may_be_written_in_pieces() -> None:
    """As a GPU does, from several staging buffers."""
    grid = Grid(900, 800, 700, 320, 256, 700)
    returned = ReturnedTiles(grid, np.dtype(np.float32))
    whole = rng.uniform(-1, 1, (900, 800)).astype(np.float32)
    for tile in (Tile(0, 0), Tile(2, 3)):
        rows, columns = grid.rows(tile.i), grid.columns(tile.j)
        for top in reversed(range(rows.start, rows.stop, 100)):
            piece = slice(top, min(rows.stop, top + 100)), columns
            returned.write(*piece, whole[piece])
        np.testing.assert_array_equal(returned.take(tile), whole[rows, columns])
