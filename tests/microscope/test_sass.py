"""What ptxas changes, read from captured disassembly: the five kernels' shared counters, every figure.

The accesses are replayed from the kernels' own index arithmetic, so these tests need neither a compiler nor a
disassembler nor the interpreter; ``tests/data/five-kernels-h200.json`` says where the figures come from.
"""

from __future__ import annotations

import doctest
import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from support.cuda_sources import made
from tilewright.errors import UnavailableError
from tilewright.simulator.assembly import disassembly, program
from tilewright.simulator.assembly.disassembly import Group, MachineInstruction
from tilewright.simulator.assembly.parser import parse_ptx
from tilewright.simulator.assembly.ptxas import MachineAccesses, PtxAccess, match_accesses, ptx_accesses
from tilewright.simulator.counters.tally import Counters

DATA = Path(__file__).parents[1] / "data"
MODULE = parse_ptx((DATA / "five.ptx").read_text())
BINARY = disassembly.parse_sass((DATA / "five-sm90.sass").read_text())
FIVE = json.loads((DATA / "five-kernels-h200.json").read_text())["kernels"]
CU = "five.cu"

Address = Callable[[np.ndarray, int], np.ndarray]


def accesses(name: str) -> list[PtxAccess]:
    return ptx_accesses(program.link(MODULE, name))


#: Kernel → blocks, threads a block, tiles of k, and by address register: executions a tile, byte address at each.
REPLAY: dict[str, tuple[int, int, int, dict[str, tuple[int, Address]]]] = {
    "tiled": (4, 1024, 2, {
        "%r5": (1, lambda t, i: 4 * t),  # As[ty][tx]
        "%r6": (1, lambda t, i: 4096 + 4 * t),  # Bs[ty][tx]
        "%r7": (1, lambda t, i: 128 * (t // 32)),  # As[ty][…]
        "%r8": (1, lambda t, i: 4096 + 4 * (t % 32)),  # Bs[…][tx]
    }),
    "tile2d": (1, 64, 8, {
        "%r187": (2, lambda t, i: 4 * t + 512 + 1024 * i),
        "%r139": (2, lambda t, i: 2048 + 4 * t + 1024 * i),
        "%r171": (8, lambda t, d: 256 * (t // 8) + 4 * d),  # As[(tr*8 + …)*8 + d]
        "%r176": (8, lambda t, d: 2048 + 256 * d + 32 * (t % 8)),  # Bs[d*64 + tc*8 + …]
    }),
    "vec": (1, 64, 8, {
        "%r10": (1, lambda t, i: 1024 * (t % 2) + 4 * (t // 2)),  # As transposed, first 64 vectors
        "%r14": (1, lambda t, i: 1024 * (t % 2) + 4 * (t // 2) + 128),  # the other 64
        "%r17": (1, lambda t, i: 2048 + 16 * t),
        "%r25": (1, lambda t, i: 3072 + 16 * t),
        "%r281": (8, lambda t, d: 256 * d + 32 * (t // 8)),
        "%r285": (8, lambda t, d: 2048 + 256 * d + 32 * (t % 8)),
    }),
}  # fmt: skip


def replay(name: str, machine: MachineAccesses | None) -> Counters:
    """The shared accesses of a kernel at n = 64, as the interpreter reports them."""
    blocks, threads, tiles, where = REPLAY[name]
    lane = np.arange(blocks * threads)
    watch = Counters(machine)
    for access in accesses(name):
        times, address = where.get(str(access.base[1]), (0, None))
        if access.space != "shared" or address is None:
            continue
        for step in range(times):
            at = address(lane % threads, step) + access.offset
            for _ in range(tiles):
                watch.on_access("shared", access.kind, access, lane // 32, lane % 32, at, access.nbytes)
    return watch


def shared(watch: Counters, kind: str) -> dict[str, int]:
    total = watch.total()
    names = {
        "instructions": f"smsp__inst_executed_op_shared_{kind}.sum",
        "wavefronts": f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{kind}.sum",
        "conflicts": f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{kind}.sum",
    }
    return {field: total.get(name, 0) for field, name in names.items()}


def test_doctests() -> None:
    assert doctest.testmod(disassembly) == (0, 2)


@pytest.mark.parametrize("name", ["tiled", "tile2d", "vec"])
def test_shared_counters_of_an_h200(name: str) -> None:
    machine = match_accesses(accesses(name), BINARY[name])
    assert machine.notes == []
    watch = replay(name, machine)
    assert shared(watch, "ld") == FIVE[name]["shared_ld"]
    assert shared(watch, "st") == FIVE[name]["shared_st"]


def test_what_the_ptx_alone_would_say() -> None:
    """Without the binary: the differences that the module's docstring gives as evidence."""
    assert shared(replay("tiled", None), "ld")["instructions"] == 16384
    assert shared(replay("tile2d", None), "ld") == {"instructions": 2048, "wavefronts": 6144, "conflicts": 4096}
    assert shared(replay("vec", None), "st")["instructions"] == 160


def widths(code: Iterable[MachineInstruction]) -> dict[Group, Counter[int]]:
    """How many accesses of each width the binary holds, by source line, space and kind."""
    found: dict[Group, Counter[int]] = {}
    for ins in code:
        if ins.memory:
            found.setdefault(ins.group, Counter())[ins.nbytes] += 1
    return found


def test_static_widths_by_source_line() -> None:
    tiled, tile2d = widths(BINARY["tiled"]), widths(BINARY["tile2d"])
    assert tiled[CU, 17, "shared", "ld"] == {4: 32, 16: 8}
    assert tile2d[CU, 32, "shared", "ld"] == {4: 8}
    assert tile2d[CU, 33, "shared", "ld"] == {16: 2}
    assert widths(BINARY["vec"])[CU, 47, "global", "ld"] == {16: 7}


def test_the_guarded_store_of_vec() -> None:
    machine = match_accesses(accesses("vec"), BINARY["vec"])
    ((guarded, like),) = machine.issues.items()
    by_index = {access.index: access for access in accesses("vec")}
    assert (guarded.line, guarded.nbytes, by_index[like].line) == (48, 16, 48)
    assert guarded.base[1] == "%r28"


def load(
    index: int, offset: int, base: str = "%r1", nbytes: int = 4, line: int = 7, space: str = "shared"
) -> PtxAccess:
    return PtxAccess(index, "/somewhere/k.cu", line, space, "ld", (0, base, 0), offset, nbytes)


def lds(width: str, offset: int = 0, guard: str = "", line: int = 7, block: int = 0) -> MachineInstruction:
    return MachineInstruction(offset, f"LDS{width}", "R0, [R1]", guard, "k.cu", line, block)


@pytest.mark.parametrize(
    ("what", "ours", "theirs", "widths"),
    [
        ("as it is", [load(0, 0), load(1, 4)], ["", ""], {}),
        ("two fused", [load(0, 0), load(1, 4)], [".64"], {0: 8, 1: 0}),
        ("in another order", [load(0, 4), load(1, 0)], [".64"], {1: 8, 0: 0}),
        ("four fused", [load(i, 4 * i) for i in range(4)], [".128"], {0: 16, 1: 0, 2: 0, 3: 0}),
        ("two vectors fused", [load(0, 0, nbytes=8), load(1, 8, nbytes=8)], [".128"], {0: 16, 1: 0}),
        ("4 and 8 and 4", [load(0, 0), load(1, 4, nbytes=8), load(2, 12)], [".128"], {0: 16, 1: 0, 2: 0}),
        ("one left over", [load(i, 4 * i) for i in range(3)], [".64", ""], {0: 8, 1: 0}),
        ("not aligned", [load(i, 4 + 4 * i) for i in range(3)], ["", ".64"], {1: 8, 2: 0}),
        ("two bases", [load(0, 0), load(1, 4, "%r2"), load(2, 8), load(3, 4)], ["", "", ".64"], {0: 8, 3: 0}),
        ("unrolled", [load(0, 0)], ["", "", "", ""], {}),
        ("unrolled and fused", [load(0, 0), load(1, 4)], [".64", ".64"], {0: 8, 1: 0}),
    ],
)
def test_fusing(what: str, ours: list[PtxAccess], theirs: list[str], widths: dict[int, int]) -> None:
    machine = match_accesses(ours, [lds(width, 16 * i) for i, width in enumerate(theirs)])
    assert not machine.notes, what
    assert machine.widths == widths, what


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        ([load(0, 0), load(1, 8)], [".64"], "the PTX has 2 of 4 bytes, the machine 1 of 8 bytes"),
        ([load(0, 0), load(1, 4)], [""], "k.cu:7, shared ld: the PTX has 2 of 4 bytes, the machine 1 of 4 bytes"),
        ([load(0, 0)], [], "the machine none"),
        ([load(0, 0), load(1, 4), load(2, 16, nbytes=16)], ["", ".128", ".128"], "the machine 1 of 4 bytes + 2 of 16"),
    ],
)
def test_what_cannot_be_matched_is_said(ours: list[PtxAccess], theirs: list[str], said: str) -> None:
    machine = match_accesses(ours, [lds(width) for width in theirs])
    assert machine.notes
    assert said in machine.notes[0]
    assert machine.widths == {}


def test_fused_across_lines_and_local_memory_gone() -> None:
    ours = [load(0, 0, line=7), load(1, 4, line=8), load(2, 0, space="local", line=9)]
    machine = match_accesses(ours, [lds(".64", line=8)])
    assert not machine.notes
    assert machine.widths == {0: 8, 1: 0, 2: 0}


def test_a_guard_with_nothing_beside_it_is_said() -> None:
    machine = match_accesses([load(0, 0)], [lds("", guard="P0")])
    assert "it is unknown how often" in machine.notes[0]
    assert match_accesses([load(0, 0), load(1, 64)], [lds(""), lds("", 16, "P0")]).issues == {load(1, 64): 0}
    assert not match_accesses([load(0, 0)], [lds(""), lds("", 16, "!PT")]).notes  # padding


def atom(index: int, space: str = "global", nbytes: int = 4, kind: str = "atom") -> PtxAccess:
    return PtxAccess(index, "k.cu", 7, space, kind, (index,), 0, nbytes)


def test_what_becomes_of_atomics() -> None:
    """Opcodes in order of the program; where all are alike, however often ptxas copied them."""
    mixed = match_accesses(
        [atom(3), atom(5), atom(6, kind="red")], [made("REDG.E.ADD"), made("ATOMG.E.EXCH", 16), made("REDG.E.ADD", 32)]
    )
    assert mixed.opcodes == {3: "REDG.E.ADD", 5: "ATOMG.E.EXCH", 6: "REDG.E.ADD"}
    assert "REDG" in mixed.words(atom(3))
    assert mixed.words(atom(4)) == set(), "what was not matched has no name here"
    assert match_accesses([atom(3)], [made("REDG.E.ADD"), made("REDG.E.ADD", 16)]).opcodes == {3: "REDG.E.ADD"}
    wide = match_accesses([atom(3, nbytes=8)], [made("REDG.E.ADD.F64.RN")])
    assert (wide.notes, wide.elected) == ([], set())
    (note,) = match_accesses([atom(3)], [made("REDG.E.ADD"), made("ATOMG.E.ADD", 16)]).notes
    assert note == "k.cu:7, global atom: the machine's do not match those of the PTX one to one"
    (note,) = match_accesses([atom(3, "shared")], [made("ATOMS.CAST.SPIN")]).notes
    assert "repeats it until" in note


def test_a_lane_that_acts_for_its_warp() -> None:
    """A vote, and a guard on what follows; a guard alone is a condition of the source."""
    voted = [made("VOTEU.ANY"), made("ATOMS.MAX.S32", 16, "P1")]
    assert match_accesses([atom(3, "shared")], voted).elected == {3}
    assert not match_accesses([atom(3, "shared")], voted).notes
    assert match_accesses([atom(3)], [made("ATOMG.E.ADD", 16, "P1")]).elected == set()
    assert match_accesses([atom(3)], [made("VOTEU.ANY"), made("ATOMG.E.ADD", 16)]).elected == set()
    assert match_accesses([atom(3)], [made("VOTEU.ANY", line=8), made("ATOMG.E.ADD", 16, "P1")]).elected == set()


def test_padding_is_issued_with_the_copy_that_follows() -> None:
    padding = [made("LDS", 16 * i, "!PT") for i in range(3)]
    copy = PtxAccess(4, "k.cu", 7, "global", "cp.async", (4,), 0, 16)
    machine = match_accesses([copy], [*padding, made("LDGSTS.E.BYPASS.128", 48)])
    assert not machine.notes
    assert machine.opcodes == {4: "LDGSTS.E.BYPASS.128"}
    assert list(machine.issues.values()) == [4, 4, 4]
    assert len({access.index for access in machine.issues}) == 3
    assert "how often padding" in match_accesses([], padding).notes[0]


def test_matrices_and_what_the_ptx_knows_nothing_of() -> None:
    four = PtxAccess(4, "k.cu", 7, "shared", "ldmatrix", (4,), 0, 16)
    assert not match_accesses([four], [made("LDSM.16.MT88.4")]).notes
    assert match_accesses([four], [made("LDSM.16.M88.2")]).notes
    assert match_accesses([], [made("STL.64")]).notes == [
        "k.cu:7, local st: the PTX has none, the machine 1 of 8 bytes"
    ]


def test_accesses_of_the_ptx() -> None:
    """Every kind, with bytes a lane; what names no space is no one's."""
    text = """.version 8.4
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p) {
  .reg .b32 %r<9>;
  .reg .b64 %rd<3>;
  ld.global.v2.f32 {%r1, %r2}, [%rd1+8];
  atom.global.add.u32 %r3, [%rd1], %r2;
  red.shared.add.u64 [%r4], %rd2;
  cp.async.cg.shared.global [%r4], [%rd1], 16;
  cp.async.commit_group;
  ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r5, %r6}, [%r4];
  stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%r4], {%r5};
  st.shared.v4.u32 [%r4+16], {%r1, %r2, %r3, %r5};
  ld.u32 %r1, [%rd1];
  ret;
}
"""
    found = ptx_accesses(program.link(parse_ptx(text), "k"))
    assert [(a.space, a.kind, a.nbytes, a.offset) for a in found] == [
        ("global", "ld", 8, 8), ("global", "atom", 4, 0), ("shared", "red", 8, 0), ("global", "cp.async", 16, 0),
        ("shared", "ldmatrix", 8, 0), ("shared", "stmatrix", 4, 0), ("shared", "st", 16, 16),
    ]  # fmt: skip


def test_parsing_what_disassemblers_print() -> None:
    text = """
	code for sm_90
		Function : f
        /*0010*/               @!UP0 LDS.U8 R2, [R2] ;     /* 0x0000000002027984 */
                                                           /* 0x000e280000000800 */
        /*0020*/                   LDG.E.64.CONSTANT R4, desc[UR4][R4.64+0x8] ;   // |   3 : ^
.L_x_1:
        /*0030*/              @P1 BRA `(.L_x_1) ;
        /*0040*/                   ATOMS.ADD RZ, [R2], R4 ;
		Function : g
        /*0000*/                   EXIT ;
"""
    f, g = disassembly.parse_sass(text).values()
    found = [(i.opcode, i.guard, i.memory, i.nbytes, i.block) for i in f]
    assert found == [
        ("LDS.U8", "!UP0", ("shared", "ld"), 1, 0),
        ("LDG.E.64.CONSTANT", "", ("global", "ld"), 8, 0),
        ("BRA", "P1", None, 4, 1),
        ("ATOMS.ADD", "", ("shared", "atom"), 4, 2),
    ]
    assert f[1].operands == "R4, desc[UR4][R4.64+0x8]"
    assert [i.opcode for i in g] == ["EXIT"]
    inlined = '.text.f:\n//## File "a.h", line 3 inlined at "k.cu", line 9\n  /*0000*/ STS [R1], R2 ;'
    assert widths(disassembly.parse_sass(inlined)["f"]) == {("a.h", 3, "shared", "st"): Counter({4: 1})}


def test_no_disassembler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disassembly, "find_tool", lambda: None)
    with pytest.raises(UnavailableError, match="pip install nvidia-cuda-nvdisasm"):
        disassembly.disassemble(b"")


def test_a_binary_is_disassembled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer disassembler and a damaged file of the cache count as a miss."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path))
    tool, calls = tmp_path / "tool", tmp_path / "calls"
    tool.write_text(f'#!/bin/sh\necho call >>"{calls}"\ncat "$3"\n', encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setattr(disassembly, "find_tool", lambda: tool)

    def count() -> int:
        assert disassembly.disassemble(b"one") == "one"
        return calls.read_text(encoding="utf-8").count("call")

    assert [count(), count()] == [1, 1]
    (cached,) = (tmp_path / "nvdisasm").iterdir()
    cached.write_bytes(cached.read_bytes()[:-1])
    assert [count(), count()] == [2, 2]
    os.utime(tool, (1, 1))
    assert [count(), count()] == [3, 3]
    assert disassembly.disassemble(b"two") == "two"


@pytest.mark.slow
def test_the_disassembler_live(tmp_path: Path) -> None:
    """Compile and disassemble here: the captured text is still what the tools say."""
    if disassembly.find_tool() is None:
        pytest.skip("nvdisasm is not installed: pip install nvidia-cuda-nvdisasm")
    with pytest.raises(UnavailableError, match="nvdisasm: "):
        disassembly.disassemble(b"not a binary")
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not installed: the live half of this test compiles tests/data/five.cu")
    cubin = tmp_path / "five.cubin"
    command = [nvcc, "-arch=sm_90", "-lineinfo", "-cubin", "-o", cubin, DATA / CU]
    subprocess.run(command, check=True, env=os.environ)
    live = disassembly.parse_sass(disassembly.disassemble(cubin.read_bytes()))
    for name in ("tiled", "tile2d", "vec"):
        assert {i.group: 0 for i in live[name] if i.memory}.keys() == {
            i.group: 0 for i in BINARY[name] if i.memory
        }.keys()


def test_a_label_without_a_jump_begins_no_block() -> None:
    """nvdisasm 13.5 has such labels, and what stands on both sides of one is executed equally often."""
    rows = (
        ".text.f:",
        "  /*0010*/  LDS R4, [R2] ;",
        ".L_x_1:",
        "  /*0020*/  LDS R5, [R2+0x10] ;",
        "  /*0030*/  BRA {} ;",
    )
    for target, blocks in (("`(.L_x_1)", [0, 1, 1]), ("`(.L_x_10)", [0, 0, 0])):
        code = disassembly.parse_sass("\n".join(rows).format(target))["f"]
        assert [ins.block for ins in code] == blocks
