"""The facts of a machine, read from trees of text files that stand for machines we do not have."""

from __future__ import annotations

import dataclasses
import doctest
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tilewright.cpu.runtime import peaks
from tilewright.errors import UsageError
from tilewright.host import machine as facts
from tilewright.host.machine import (
    FACTS,
    Cache,
    available_memory,
    current_clock_mhz,
    described_machine,
    machine,
    read_machine,
    vector_facts,
)

CPUINFO = """processor\t: {i}
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Example CPU @ 2.00GHz
cpu MHz\t\t: {mhz}
power management:
"""
MEMINFO = "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\n"
GIB = 1 << 30


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    return root


def cpus(count: int, allowed: str | None = None) -> dict[str, str]:
    """A plain machine of ``count`` CPUs, two threads a core."""
    files = {
        "proc/cpuinfo": "\n".join(CPUINFO.format(i=i, mhz=2000 + 100 * i) for i in range(count)),
        "proc/meminfo": MEMINFO,
        "proc/self/status": f"Name:\tpython\nCpus_allowed_list:\t{allowed or f'0-{count - 1}'}",
        "sys/devices/system/cpu/online": f"0-{count - 1}",
    }
    for i in range(count):
        first = i - i % 2
        files[f"sys/devices/system/cpu/cpu{i}/topology/thread_siblings_list"] = f"{first}-{first + 1}"
    return files


def cache(cpu: int, index: int, level: int, kind: str, size: str, shared: str, ways: str = "8") -> dict[str, str]:
    facts = {"level": str(level), "type": kind, "size": size, "shared_cpu_list": shared}
    facts |= {"ways_of_associativity": ways, "coherency_line_size": "64"}
    return {f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}/{name}": text for name, text in facts.items()}


V2 = {"proc/self/cgroup": "0::/app/job"}
V2_JOB, V2_APP = "sys/fs/cgroup/app/job/", "sys/fs/cgroup/app/"
V1 = {"proc/self/cgroup": "5:cpu,cpuacct:/app\n4:memory:/app\n0::/"}

QUOTAS = {
    "no cgroup": ({}, None, 8),
    "v2 of 1.5 CPUs": ({**V2, V2_JOB + "cpu.max": "150000 100000"}, 1.5, 2),
    "v2 without limit": ({**V2, V2_JOB + "cpu.max": "max 100000"}, None, 8),
    "v2 nested, the outer one tighter": (
        {**V2, V2_JOB + "cpu.max": "600000 100000", V2_APP + "cpu.max": "250000 100000"},
        2.5,
        3,
    ),
    "v2 on the mount only, as a container sees it": (
        {**V2, "sys/fs/cgroup/cpu.max": "300000 100000"},
        3.0,
        3,
    ),
    "v2 outside the namespace": (
        {"proc/self/cgroup": "0::/../../x", "sys/fs/cgroup/cpu.max": "50000 100000"},
        0.5,
        1,
    ),
    "v2 beside v1": ({**V2, "sys/fs/cgroup/unified/app/cpu.max": "200000 100000"}, 2.0, 2),
    "v2 wider than the machine": ({**V2, V2_JOB + "cpu.max": "6400000 100000"}, 64.0, 8),
    "v1": (
        {
            **V1,
            "sys/fs/cgroup/cpu,cpuacct/app/cpu.cfs_quota_us": "150000",
            "sys/fs/cgroup/cpu,cpuacct/app/cpu.cfs_period_us": "100000",
        },
        1.5,
        2,
    ),
    "v1 by the controller's own name": (
        {
            **V1,
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
        4.0,
        4,
    ),
    "v1 without limit": (
        {
            **V1,
            "sys/fs/cgroup/cpu/app/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/app/cpu.cfs_period_us": "100000",
        },
        None,
        8,
    ),
}


@pytest.mark.parametrize(("files", "quota", "usable"), QUOTAS.values(), ids=QUOTAS.keys())
def test_cpu_quota(tmp_path: Path, files: dict[str, str], quota: float | None, usable: int) -> None:
    found = read_machine(tree(tmp_path, cpus(8) | files))
    assert (found.quota_cores, found.usable_cores) == (quota, usable)
    assert (found.logical_cores, found.physical_cores) == (8, 4)
    assert ("quota" in found.usable_why) == (usable < 8)


def test_the_tightest_bound_counts_and_is_named(tmp_path: Path) -> None:
    files = cpus(8, allowed="1,4-5") | V2 | {V2_JOB + "cpu.max": "500000 100000"}
    found = read_machine(tree(tmp_path, files))
    assert found.usable_cores == 3
    assert "affinity" in found.usable_why
    assert found.quota_cores == 5
    assert found.describe()[1] == (
        "cores",
        "3 usable of 8 logical, 4 physical (what the affinity mask allows)",
    )


HUGE = "9223372036854771712"  # v1's "no limit"
MEMORY = {
    "no cgroup": ({}, None, 8 * GIB),
    "v2": (
        {**V2, V2_JOB + "memory.max": str(4 * GIB), V2_JOB + "memory.current": str(GIB)},
        4 * GIB,
        3 * GIB,
    ),
    "v2 without limit": ({**V2, V2_JOB + "memory.max": "max"}, None, 8 * GIB),
    "v2 file cache counts as free": (
        {
            **V2,
            V2_JOB + "memory.max": str(4 * GIB),
            V2_JOB + "memory.current": str(3 * GIB),
            V2_JOB + "memory.stat": f"anon 5\nfile 7\ninactive_file {GIB}",
        },
        4 * GIB,
        2 * GIB,
    ),
    "v2 nested: the outer group is nearly full": (
        {
            **V2,
            V2_JOB + "memory.max": str(2 * GIB),
            V2_JOB + "memory.current": "0",
            V2_APP + "memory.max": str(6 * GIB),
            V2_APP + "memory.current": str(5 * GIB),
        },
        2 * GIB,
        GIB,
    ),
    "v2 high is a limit too": (
        {**V2, V2_JOB + "memory.max": "max", V2_JOB + "memory.high": str(GIB)},
        GIB,
        GIB,
    ),
    "v2 over its limit": ({**V2, V2_JOB + "memory.max": "4096", V2_JOB + "memory.current": "9999"}, 4096, 0),
    "v1": (
        {
            **V1,
            "sys/fs/cgroup/memory/app/memory.limit_in_bytes": str(4 * GIB),
            "sys/fs/cgroup/memory/app/memory.usage_in_bytes": str(3 * GIB),
            "sys/fs/cgroup/memory/app/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": HUGE,
        },
        4 * GIB,
        2 * GIB,
    ),
    "ulimit -v": (
        {
            "proc/self/limits": f"Max data size  unlimited  x\nMax address space  {3 * GIB}  unlimited  bytes",
            "proc/self/status": "VmSize:\t 1048576 kB\nVmData:\t 524288 kB",
        },
        None,
        2 * GIB,
    ),
    "ulimit -d, which is exhausted": (
        {
            "proc/self/limits": f"Max data size  {GIB}  {GIB}  bytes\nMax address space  unlimited  x",
            "proc/self/status": "VmSize:\t 4194304 kB\nVmData:\t 2097152 kB",
        },
        None,
        0,
    ),
    "v1 without limit": ({**V1, "sys/fs/cgroup/memory/app/memory.limit_in_bytes": HUGE}, None, 8 * GIB),
}


@pytest.mark.parametrize(("files", "limit", "available"), MEMORY.values(), ids=MEMORY.keys())
def test_memory(tmp_path: Path, files: dict[str, str], limit: int | None, available: int) -> None:
    root = tree(tmp_path, cpus(2) | files)
    found = read_machine(root)
    assert (found.memory_total, found.memory_limit) == (16 * GIB, limit)
    assert available_memory(root) == available


def test_available_memory_is_read_afresh(tmp_path: Path) -> None:
    found = read_machine(tree(tmp_path, cpus(2)))
    assert found.as_dict()["memory_available"] == 8 * GIB
    tree(tmp_path, {"proc/meminfo": "MemAvailable: 1048576 kB"})
    assert available_memory(tmp_path) == found.as_dict()["memory_available"] == GIB
    assert dict(found.describe())["memory available"] == "1 GiB"


def test_caches_of_a_hybrid_processor(tmp_path: Path) -> None:
    """Big cores 0-3 with 48 KiB and 2 MiB each, small 4-7 with 32 KiB and 4 MiB for all."""
    files = cpus(8)
    for cpu in range(8):
        big = cpu < 4
        own = f"{cpu}"
        files |= cache(cpu, 0, 1, "Data", "48K" if big else "32K", own, "12" if big else "8")
        files |= cache(cpu, 1, 1, "Instruction", "32K" if big else "64K", own)
        files |= cache(cpu, 2, 2, "Unified", "2048K" if big else "4096K", own if big else "4-7", "16")
        files |= cache(cpu, 3, 3, "Unified", "24576K", "0-3,8-11", "0")
    found = read_machine(tree(tmp_path, files))
    assert found.caches == (
        Cache(1, "Data", 48 << 10, 12, 64, 1),
        Cache(1, "Data", 32 << 10, 8, 64, 1),
        Cache(1, "Instruction", 64 << 10, 8, 64, 1),
        Cache(1, "Instruction", 32 << 10, 8, 64, 1),
        Cache(2, "Unified", 4 << 20, 16, 64, 4),
        Cache(2, "Unified", 2 << 20, 16, 64, 1),
        Cache(3, "Unified", 24 << 20, None, 64, 8),
    )
    assert (found.l1d, found.l2, found.l3) == (32 << 10, 2 << 20, 24 << 20)
    rows = found.describe()
    assert ("L1d cache", "48 KiB, 12-way, 64-byte lines, one a CPU") in rows
    assert ("L3 cache", "24 MiB, 64-byte lines, shared by 8 CPUs") in rows
    only_big = read_machine(tree(tmp_path, {"proc/self/status": "Cpus_allowed_list: 0-3"}))
    assert only_big.l1d == 48 << 10


def test_a_cache_without_a_size_is_not_guessed(tmp_path: Path) -> None:
    found = read_machine(
        tree(tmp_path, cpus(1) | cache(0, 0, 1, "Data", "", "0") | cache(0, 1, 2, "Unified", "0K", ""))
    )
    assert (found.l1d, found.l2, found.l3) == (None, None, None)
    assert dict(found.describe())["L1d cache"].startswith("not known on this system (no size), 8-way")


def test_a_machine_that_says_nothing(tmp_path: Path) -> None:
    found = read_machine(tmp_path)
    unknown = "processor vendor family model quota_cores logical_cores physical_cores memory_total memory_limit"
    assert {name: getattr(found, name) for name in unknown.split()} == dict.fromkeys(unknown.split())
    assert (found.usable_cores, found.caches, found.l1d, found.l2, found.l3) == (1, (), None, None, None)
    assert available_memory(tmp_path) is None
    assert current_clock_mhz(tmp_path) is None
    rows = dict(found.describe())
    assert rows["processor"] == "not known on this system (no model name)"
    assert rows["cores"] == "1 usable of unknown logical, unknown physical (the system does not say; this runs on one)"
    for label in ("caches", "memory", "memory available", "clock now"):
        assert rows[label].startswith("not known on this system (no "), label


def test_a_container_without_model_name(tmp_path: Path) -> None:
    """Arm's cpuinfo: numbers instead of a name, and no clock."""
    core = "processor\t: {}\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd0c\nmodel name\t:\n"
    found = read_machine(tree(tmp_path, {"proc/cpuinfo": "\n".join(map(core.format, range(4)))}))
    assert (found.processor, found.vendor, found.family, found.model) == (None, "0x41", 8, 0xD0C)
    assert (found.logical_cores, found.usable_cores, found.physical_cores) == (4, 4, None)
    rows = dict(found.describe())
    assert rows["processor"] == "not known on this system (no model name), 0x41, family 8, model 3340"
    assert rows["clock now"] == "not known on this system (no clock in /proc/cpuinfo)"


def test_clock_is_the_mean_over_usable_cpus(tmp_path: Path) -> None:
    assert current_clock_mhz(tree(tmp_path, cpus(4, allowed="2-3"))) == 2250


M1 = {
    "hw.nperflevels": "2",
    "hw.perflevel0.l1dcachesize": "131072",
    "hw.perflevel1.l1dcachesize": "65536",
    "hw.perflevel0.l2cachesize": "12582912",
    "hw.perflevel1.l2cachesize": "4194304",
    "hw.perflevel0.cpusperl2": "4",
    "hw.cachelinesize": "128",
    "hw.logicalcpu": "8",
    "hw.physicalcpu": "8",
    "hw.memsize": "17179869184",
    "machdep.cpu.brand_string": "Apple M1",
}
INTEL_MAC = {
    "hw.l1dcachesize": "32768",
    "hw.l2cachesize": "262144",
    "hw.l3cachesize": "6291456",
    "hw.cachelinesize": "64",
    "machdep.cpu.brand_string": "Intel(R) Core(TM) i5",
    "machdep.cpu.vendor": "GenuineIntel",
    "machdep.cpu.family": "6",
}


def test_macos(tmp_path: Path) -> None:
    apple = read_machine(tmp_path, sysctl=M1)
    assert (apple.processor, apple.vendor, apple.usable_cores) == ("Apple M1", None, 8)
    assert (apple.l1d, apple.l2, apple.l3) == (65536, 4 << 20, None)
    assert Cache(2, "Unified", 12 << 20, line=128, shared_by=4) in apple.caches
    assert apple.memory_total == 16 * GIB
    intel = read_machine(tmp_path, sysctl=INTEL_MAC)
    assert (intel.l1d, intel.l2, intel.l3, intel.family) == (32768, 262144, 6 << 20, 6)
    assert (intel.logical_cores, intel.usable_cores) == (None, 1)


VECTORS = [
    ({"sse2", "avx", "fma", "avx2", "avx512f"}, "x86_64", (512, 32, True)),
    ({"sse2", "avx", "fma", "avx2"}, "AMD64", (256, 16, True)),
    ({"sse2", "avx"}, "x86_64", (256, 16, False)),
    ({"sse2"}, "x86_64", (128, 16, False)),
    (set(), "x86_64", (None, None, None)),
    ({"neon", "sve"}, "aarch64", (128, 32, True)),
    (set(), "arm64", (128, 32, True)),
    ({"v"}, "riscv64", (None, None, None)),
]


@pytest.mark.parametrize(("features", "arch", "expected"), VECTORS)
def test_vectors(features: set[str], arch: str, expected: tuple[int | None, int | None, bool | None]) -> None:
    assert tuple(vector_facts(features, arch).values()) == expected


def test_vectors_in_words() -> None:
    sve = dataclasses.replace(machine(), isa=("neon", "sve"), vector_bits=128, vector_registers=32, fma=True)
    text = dict(dataclasses.replace(sve, sve_bits=256).describe())["vectors"]
    assert text == "128 bits, 32 registers, FMA, SVE of 256 bits"
    assert dict(dataclasses.replace(sve, sve_bits=None).describe())["vectors"].endswith("SVE of unknown bits")
    nothing = dict(dataclasses.replace(sve, vector_bits=None).describe())["vectors"]
    assert nothing == "not known on this system (no list of instruction sets)"


def test_llvm_that_does_not_know_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from llvmlite import binding

    def unknown() -> None:
        raise RuntimeError("failed to get host cpu features")

    monkeypatch.setattr(binding, "get_host_cpu_features", unknown)
    assert read_machine(tmp_path).isa == ()


def test_this_machine() -> None:
    here = machine()
    assert here is machine()
    assert 1 <= here.usable_cores <= (here.logical_cores or here.usable_cores)
    assert json.loads(json.dumps(here.as_dict()))["usable_cores"] == here.usable_cores
    assert "root" not in here.as_dict()
    assert all(label and text for label, text in here.describe())


def test_importing_is_cheap() -> None:
    code = "import sys, tilewright.host.machine; print({'numba', 'llvmlite', 'numpy'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "set()"


def test_examples() -> None:
    assert doctest.testmod(facts).failed == 0


@pytest.mark.parametrize(("size", "text"), [(None, None), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB")])
def test_bytes_text(size: int | None, text: str | None) -> None:
    assert facts.bytes_text(size) == text


# ---- a description in a file -----------------------------------------------------------------------------------------

MACHINES = sorted((Path(__file__).parents[1] / "data" / "machines").glob("*.json"))
OF_A_FILE: dict[str, Any] = {"rates": (), "memory_available": None, "without": ()}
HERE = dataclasses.replace(
    machine(),
    isa=("sse2", "avx", "fma", "avx2", "avx512f"),
    vector_bits=512,
    vector_registers=32,
    system="Linux 6 x86_64",
    **OF_A_FILE,
)


def written(folder: Path, **facts: Any) -> Path:
    path = folder / "machine.json"
    path.write_text(json.dumps(facts))
    return path


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_a_description_says_every_fact(path: Path) -> None:
    facts = json.loads(path.read_text())
    assert facts.keys() - {"roofs"} == FACTS
    found = described_machine(path, HERE)
    assert found.rate("fma", "float32", 1)
    assert found.rate("triad", "float64", found.usable_cores)
    assert [cache.size for cache in found.caches] == [cache["size"] for cache in facts["caches"]]
    assert found.describe()
    assert set(found.isa) <= set(HERE.isa)


def test_what_info_prints_is_a_description(cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roof = peaks._roof("FMA peak", "fma", "float32", 1, 123.4, "GFLOPS")
    monkeypatch.setattr(peaks, "roofs", lambda fresh: [roof])
    assert cli("info", "--json", "here.json").code == 0
    here = machine()
    found = described_machine(tmp_path / "here.json", here)
    assert dataclasses.replace(found, **OF_A_FILE) == dataclasses.replace(here, **OF_A_FILE)
    assert found.rate("fma", "float32", 1) == 123.4


def test_instruction_sets_are_taken_away_and_never_added(tmp_path: Path) -> None:
    found = described_machine(written(tmp_path, isa=["avx2", "avx", "fma", "amx-tile"]), HERE)
    assert (found.isa, found.without) == (("sse2", "avx", "fma", "avx2"), ("avx512f",))
    assert (found.vector_bits, found.vector_registers, found.fma) == (256, 16, True)
    assert described_machine(written(tmp_path, isa=["avx2"]), HERE).fma is False
    assert described_machine(written(tmp_path, vector_bits=256), HERE).vector_bits == 256
    assert described_machine(written(tmp_path, vector_bits=1024), HERE).vector_bits == 512


def test_another_architecture_is_only_planned_for(tmp_path: Path) -> None:
    facts = {"system": "Linux 6 aarch64", "isa": ["neon"], "vector_bits": 128, "vector_registers": 32}
    found = described_machine(written(tmp_path, **facts), HERE)
    assert (found.isa, found.without, found.vector_bits, found.vector_registers) == ((), (), 128, 32)


def test_facts_that_a_description_leaves_out_are_those_of_this_machine(tmp_path: Path) -> None:
    assert described_machine(written(tmp_path), HERE) == HERE
    caches = [{"level": 3, "type": "Unified", "size": 1 << 20}]
    assert described_machine(written(tmp_path, caches=caches), HERE).l3 == 1 << 20
    assert described_machine(written(tmp_path, memory_limit=None), HERE).memory_limit is None


def test_rates_of_other_numbers_of_threads_lie_between_those_that_are_known(tmp_path: Path) -> None:
    roofs = [{"name": "triad", "dtype": "float64", "threads": t, "value": v} for t, v in ((1, 10.0), (5, 30.0))]
    found = described_machine(written(tmp_path, roofs=roofs), HERE)
    assert [found.rate("triad", "float64", threads) for threads in (1, 2, 5, 64)] == [10, 15, 30, 30]
    assert found.rate("fma", "float64", 1) is None
    assert HERE.rate("triad", "float64", 1) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "Expecting property name"),
        ("[]", "'list' object"),
        ('{"usable_core": 2}', "'usable_core' is not a fact of a machine; did you mean usable_cores"),
        ('{"usable_cores": 0}', "usable_cores must be a positive whole number or null, got 0"),
        ('{"usable_cores": null}', "usable_cores must be a number"),
        ('{"caches": [{"level": 2, "type": "Unified", "size": "1M"}]}', "size of L2 must be a positive whole number"),
        ('{"caches": [{"size": 1}]}', "missing 2 required positional arguments: 'level' and 'type'"),
        ('{"caches": 5}', "'int' object is not iterable"),
        ('{"isa": [5]}', r"isa must be a list of names, got \[5\]"),
        ('{"roofs": [{"name": "fma"}]}', "'dtype'"),
    ],
)
def test_what_describes_no_machine_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UsageError, match=rf"^\$TILEWRIGHT_MACHINE=.*x.json: .*{says}.*; see tilewright info --json$"):
        described_machine(tmp_path / "x.json", HERE)


@pytest.mark.thorough
def test_a_process_takes_the_machine_of_the_file(tmp_path: Path) -> None:
    """The caches and cores of the file, and machine code without the instruction sets that it lacks."""
    path = next(path for path in MACHINES if path.stem == "zen3")
    code = """
from tilewright.cpu.codegen import jit
from tilewright.host.machine import available_memory, machine
from numba.core.registry import cpu_target
features = cpu_target.target_context.codegen().magic_tuple()[2]
last = {name[1:]: name[0] for name in features.split(",")}
print(machine().l2, machine().vector_bits, last["sse4.2"], *{last[name] for name in machine().without})
print(available_memory() <= machine().memory_available)
"""
    environment = os.environ | {"TILEWRIGHT_MACHINE": str(path)}
    answer = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout.split() == [
        "524288",
        "256",
        "+",
        *(["-"] if described_machine(path, read_machine()).without else []),
        "True",
    ]
    answer = subprocess.run(
        [sys.executable, "-m", "tilewright", "info"],
        env=os.environ | {"TILEWRIGHT_MACHINE": str(tmp_path / "none.json")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 2
    assert "none.json: [Errno 2] No such file or directory" in answer.stderr
    assert "Traceback" not in answer.stderr
