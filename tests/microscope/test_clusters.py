"""Clusters of blocks: which run together, their registers, their shared memory and barriers; planted defects are named."""

# ruff: noqa: E501 - a line of PTX is a line

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from support.cluster_cases import CASES
from support.cluster_kernels import BLOCKS, KERNELS, PLANTED, THREADS, Planted, given, right
from support.ptx_kernels import kernel
from tilewright.errors import UnavailableError, UsageError
from tilewright.gpu.runtime.nvrtc import compile_source
from tilewright.simulator import Run, RunOptions, simulate
from tilewright.simulator.microscope import sample_blocks

#: Every register of clusters, one row for each block of the grid.
REGISTERS = [
    f"%{name}.{axis}" for name in ("cluster_ctaid", "cluster_nctaid", "clusterid", "nclusterid") for axis in "xyz"
]
REGISTERS += ["%cluster_ctarank", "%cluster_nctarank"]
PLACES = kernel(".param .u64 y", """
ld.param.u64 %rd1, [y]; mov.u32 %r4, %ctaid.y; mov.u32 %r5, %ctaid.z; mov.u32 %r6, %nctaid.x; mov.u32 %r7, %nctaid.y;
mad.lo.u32 %r4, %r5, %r7, %r4; mad.lo.u32 %r4, %r4, %r6, %r1; mul.wide.u32 %rd2, %r4, 64; add.u64 %rd1, %rd1, %rd2;"""
+ "".join(f"mov.u32 %r4, {name}; st.global.u32 [%rd1+{4 * i}], %r4;" for i, name in enumerate(REGISTERS))
+ "mov.pred %p1, %is_explicit_cluster; selp.u32 %r4, 1, 0, %p1; st.global.u32 [%rd1+56], %r4; st.global.u32 [%rd1+60], %r6;")  # fmt: skip
LIMITED = PLACES.replace(")", ")\n.explicitcluster\n.reqnctapercluster 2, 1, 1", 1)


def places(grid: Any, text: str = PLACES, **options: Any) -> tuple[Run, np.ndarray]:
    y = np.full((int(np.prod(grid)), 16), 99, np.uint32)
    run = simulate(text, "k", grid, 1, [y], RunOptions(**options))
    assert run.arrays[0] is not None
    return run, run.arrays[0]


def test_every_block_knows_its_place_in_its_cluster() -> None:
    run, seen = places((4, 6, 2), cluster=(2, 3, 1), outputs=[0])
    assert not run.findings
    for row, (z, y, x) in zip(seen, np.ndindex(2, 6, 4), strict=True):
        inside, extents = [x % 2, y % 3, 0], [2, 3, 1]
        assert row.tolist() == [*inside, *extents, x // 2, y // 3, z, 2, 2, 2, x % 2 + 2 * (y % 3), 6, 1, 4]


def test_without_clusters_a_block_is_a_cluster_of_its_own() -> None:
    _, seen = places((3, 2, 1))
    assert [row[6:9].tolist() for row in seen] == [[x, y, 0] for y in range(2) for x in range(3)]
    assert (seen[:, [0, 1, 2, 12, 14]] == 0).all()
    assert (seen[:, [3, 4, 5, 13]] == 1).all()


def test_the_kernel_says_the_size_of_its_clusters() -> None:
    _, seen = places((4, 1, 1), LIMITED)
    assert seen[:, 12].tolist() == [0, 1, 0, 1]
    assert np.array_equal(places((4, 1, 1), LIMITED, cluster=2)[1], seen)


@pytest.mark.parametrize("blocks", [1, [5], [4, 5]])
def test_only_whole_clusters_are_run(blocks: Any) -> None:
    run, seen = places((8, 1, 1), cluster=2, blocks=blocks)
    assert run.blocks_run == 2
    first = 0 if blocks == 1 else 4
    assert np.flatnonzero(seen[:, 0] != 99).tolist() == [first, first + 1]


def test_a_sample_has_whole_clusters_which_represent_the_grid() -> None:
    some = sample_blocks((64, 30, 1), (2, 3, 1))
    assert [int(w.sum()) for w in some.weights] == [64 * 30] * 2
    x, y = some.blocks % 64, some.blocks // 64
    clusters, blocks = np.unique(y // 3 * 32 + x // 2, return_counts=True)
    assert (blocks == 6).all()
    assert clusters.size < 32 * 10


@pytest.mark.parametrize(
    ("change", "given", "message"),
    [
        ("", {"cluster": 3}, r"grid \(8, 1, 1\) is not a multiple of the cluster, \(3, 1, 1\)"),
        ("", {"cluster": (32, 1, 1)}, "no GPU takes more than 16"),
        (".maxclusterrank 4", {"cluster": 8}, "kernel k takes at most 4"),
        (".explicitcluster", {}, "must be launched with clusters"),
        (".reqnctapercluster 4, 1, 1", {"cluster": 2}, r"needs clusters of \(4, 1, 1\) blocks, given \(2, 1, 1\)"),
        ("", {"cluster": 0}, "cluster"),
    ],
)
def test_a_cluster_that_cannot_be_launched_is_refused(change: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        places((8, 1, 1), PLACES.replace(")", f")\n{change}", 1), **given)


# ---- shared memory of other blocks, and the barrier of a cluster -----------------------------------------------------


def execute(source: str, **options: Any) -> Run:
    try:
        ptx = compile_source(source, name="test.cu", arch="sm_90").ptx
    except UnavailableError as error:
        pytest.skip(f"no CUDA compiler: {error}")
    args = [given(), np.zeros(BLOCKS * THREADS, np.int32)]
    return simulate(ptx, "k", BLOCKS, THREADS, args, RunOptions(max_steps=200_000, **options))


@pytest.mark.parametrize("name", KERNELS)
def test_a_right_kernel_is_silent_and_right(name: str) -> None:
    run = execute(KERNELS[name], outputs=[1])
    assert run.findings == []
    assert run.complete
    assert run.arrays[1] is not None
    np.testing.assert_array_equal(run.arrays[1], right(name))


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_planted_defect_is_named_with_its_line(planted: Planted) -> None:
    lines = enumerate(planted.source.splitlines(), 1)
    marks = [(number, line.split("// !! ")[1]) for number, line in lines if "// !! " in line]
    wanted = [(number, kind.strip()) for number, kinds in marks for kind in kinds.split(",")]
    found = execute(planted.source).findings
    assert sorted((f.line, f.kind) for f in found) == sorted(wanted)
    assert any(planted.says in f.text for f in found)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("meet(); // empty", 'asm volatile("barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;");'),
        (
            "__cluster_barrier_arrive();\n",
            'asm volatile("fence.acq_rel.cluster; barrier.cluster.arrive.relaxed;" ::: "memory");\n',
        ),
        ("__cluster_barrier_arrive();\n", 'asm volatile("barrier.cluster.arrive.release;" ::: "memory");\n'),
    ],
)
def test_other_forms_of_the_barrier_are_right_too(old: str, new: str) -> None:
    text = KERNELS["exchange"]
    assert text.count(old) == 1
    run = execute(text.replace(old, new))
    assert run.findings == []
    assert run.arrays[1] is not None
    np.testing.assert_array_equal(run.arrays[1], right("exchange"))


def test_addresses_in_a_cluster_say_whose_they_are() -> None:
    source = """
    extern "C" __global__ void __cluster_dims__(2, 1, 1) k(const int*, int* out) {
        __shared__ int x[4];
        unsigned rank = __clusterRelativeBlockRank(), other = rank ^ 1;
        int* there = (int*)__cluster_map_shared_rank(x, other);
        int* here = (int*)__cluster_map_shared_rank(x, rank);
        unsigned shared = (unsigned)__cvta_generic_to_shared(x), mapped;
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(shared + 4), "r"(other));
        asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(mapped), "r"(5 + rank) : "memory");
        __cluster_barrier_arrive(); __cluster_barrier_wait();
        int in_own, in_cluster, here_too;
        asm("{.reg .pred p; isspacep.shared::cta p, %1; selp.u32 %0, 1, 0, p;}" : "=r"(in_own) : "l"(there));
        asm("{.reg .pred p; isspacep.shared::cluster p, %1; selp.u32 %0, 1, 0, p;}" : "=r"(in_cluster) : "l"(there));
        asm("{.reg .pred p; isspacep.shared::cta p, %1; selp.u32 %0, 1, 0, p;}" : "=r"(here_too) : "l"(here));
        int* row = out + 8 * blockIdx.x;
        row[0] = __cluster_query_shared_rank(there); row[1] = __cluster_query_shared_rank(x);
        row[2] = in_own; row[3] = in_cluster; row[4] = here_too; row[5] = x[1]; row[6] = here[1];
    }"""
    run = execute(source.replace("\n    ", "\n"))
    assert run.findings == []
    assert run.arrays[1] is not None
    rows = run.arrays[1].reshape(-1, 8)[:, :7].tolist()[:BLOCKS]
    assert rows == [[1 - b % 2, b % 2, 0, 1, 1, 6 - b % 2, 6 - b % 2] for b in range(BLOCKS)]


def test_without_a_cluster_there_is_no_other_block() -> None:
    source = KERNELS["exchange"].replace("__cluster_dims__(4, 1, 1)", "")
    run = execute(source)
    assert {f.kind for f in run.findings} == {"out of bounds"}
    assert execute(source, cluster=4).findings == []


@pytest.mark.parametrize(
    "fence",
    [
        "fence.acq_rel.cluster", "fence.sc.cluster", "fence.acquire.cluster", "fence.mbarrier_init.release.cluster",
        "fence.proxy.async.shared::cluster", "fence.acquire.sync_restrict::shared::cluster.cluster",
        "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster",
    ],
)  # fmt: skip
def test_every_fence_of_a_cluster_runs(fence: str) -> None:
    text = kernel("", f"{fence}; barrier.cluster.arrive.relaxed; barrier.cluster.wait;")
    assert simulate(text, "k", 4, 32, [], RunOptions(cluster=2)).findings == []


@pytest.mark.parametrize(
    "form", ["barrier.cluster.sync", "barrier.cluster.arrive.acquire", "barrier.cluster.wait.release"]
)
def test_other_words_after_a_barrier_are_refused(form: str) -> None:
    with pytest.raises(UsageError, match="is not one that the microscope knows"):
        simulate(kernel("", f"{form};"), "k", 2, 32, [], RunOptions(cluster=2))


@pytest.mark.parametrize("name", CASES)
def test_the_cases_for_a_gpu_run_in_the_microscope(name: str) -> None:
    case = CASES[name]
    run = simulate(case.ptx, "k", case.grid, case.block, list(case.arguments))
    assert run.findings == []
    assert run.arrays[1] is not None
    assert run.arrays[1].any(axis=1).all()


@pytest.mark.slow
def test_a_sample_of_clusters_counts_as_the_whole_grid_does() -> None:
    x = np.zeros(64 * 64, np.int32)
    try:
        whole, some = (
            tw.microscope(KERNELS["exchange"], "k", 64, 64, [x, x.copy()], sampled=sampled) for sampled in (False, True)
        )
    except UnavailableError as error:
        pytest.skip(f"no CUDA compiler: {error}")
    assert some.run.blocks_run < 64
    assert some.counters == whole.counters
    assert some.findings == whole.findings == []
