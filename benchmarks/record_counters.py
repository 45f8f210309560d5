"""Count on a GPU what the microscope predicts, and write the records that ``test_counted.py`` and ``test_counters.py`` hold
it to.

Here, where the compiler is:        python benchmarks/record_counters.py --prepare DIR
There, where a GPU and ncu are:     python benchmarks/record_counters.py DIR OUTDIR

The first writes binaries and launches to DIR, and the PTX and disassembly of those binaries to ``tests/data/counted``;
so what is counted is, byte for byte, what is predicted. To go on working meanwhile, copy ``src`` and ``tests`` into DIR
and run that copy there, with ``PYTHONPATH=DIR/src``. The second launches the binaries plainly and under ncu, checks every
answer both times, and exits with 1 where anything was wrong. Of what it writes, ``microscope-counters-h200.jsonl`` goes to
``benchmarks`` and the ``-patterns-h200.jsonl`` to ``tests/data``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import TilewrightError
from tilewright.gpu.runtime.device import open_device
from tilewright.gpu.runtime.nvrtc import Compiled, compile_source, compiler
from tilewright.lab.explain import measure, stored_launches
from tilewright.lab.explain.measure import tools
from tilewright.lab.explain.stored_launches import StoredLaunch
from tilewright.simulator.assembly import disassembly

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import global_patterns, shared_patterns
from support.twelve_kernels import ARCH, CASES, DATA, Case, wrong

SOURCES = ("twelve.cu", "five.cu")
SHARED_BYTES = shared_patterns.SHARED_BYTES

#: Of a one-warp pattern of shared memory: wavefronts, those among them that are no access, bank conflicts.
_TURNS, _MISC, _CONFLICTS = (
    f"l1tex__data_{what}.sum"
    for what in (
        "pipe_lsu_wavefronts_mem_shared", "pipe_lsu_wavefronts_mem_shared_op_misc", "bank_conflicts_pipe_lsu_mem_shared",
    )
)  # fmt: skip
#: Of a one-warp pattern of global memory: sectors, by kind. Copies count as loads, and so do the patterns' own offsets.
_SECTORS = [f"l1tex__t_sectors_pipe_lsu_mem_global_op_{op}.sum" for op in ("ld", "atom", "red")]
_OFFSETS = 4

#: What must be refused, or not: launch of ``refused.cu``, exit code, words of the error.
_WORD = np.zeros(1, np.int32)
REFUSED: dict[str, tuple[StoredLaunch, str, int, str]] = {
    "illegal address": (StoredLaunch("illegal", 1, 32, (_WORD,)), ARCH, 2, "memory that is not there"),
    "misaligned address": (StoredLaunch("misaligned", 1, 1, (_WORD,)), ARCH, 2, "no multiple of the access"),
    "too many threads": (
        StoredLaunch("bounded", 1, 256, (np.zeros(256, np.int32),)),
        ARCH,
        2,
        "256 threads are too many",
    ),
    "too much shared memory": (
        StoredLaunch("dynamic_shared", 1, 32, (_WORD, 75000), 300_000),
        ARCH,
        2,
        "too much shared memory",
    ),
    "100 KiB of shared memory": (StoredLaunch("dynamic_shared", 1, 32, (_WORD, 25600), 102_400), ARCH, 0, ""),
    "too large a grid": (
        StoredLaunch("bounded", (1, 70000), 32, (np.zeros(32, np.int32),)),
        ARCH,
        2,
        "a grid can be at most",
    ),
    "another architecture": (
        StoredLaunch("bounded", 1, 32, (np.zeros(32, np.int32),)),
        "sm_100",
        2,
        "another architecture",
    ),
    "an argument too few": (StoredLaunch("dynamic_shared", 1, 32, (_WORD,)), ARCH, 2, "takes 2 arguments, given 1"),
    "no such kernel": (StoredLaunch("absent", 1, 32, (_WORD,)), ARCH, 2, "absent"),
}


def compiled(source: str, arch: str = ARCH) -> Compiled:
    """A file of ``tests/data``, under its bare name, so that line numbers do not carry this machine's folders."""
    return compile_source((DATA / source).read_text(), name=source, arch=arch)


def cases(source: str) -> list[Case]:
    return [case for case in CASES if case.source == source]


def prepare(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {"compiler": compiler(), "arch": ARCH, "code": {}, "resources": {}}
    for source in SOURCES:
        binary = compiled(source)
        text = disassembly.disassemble(binary.cubin)
        stored_launches.save_launches(folder / f"{source}.npz", binary, [case.launch for case in cases(source)])
        kept = DATA / "counted" / source
        kept.parent.mkdir(exist_ok=True)
        note = f"// {source}, compiled by {compiler()} for {ARCH}. Written by benchmarks/record_counters.py.\n"
        kept.with_suffix(".ptx").write_text(note + without_debug(binary.ptx))
        kept.with_suffix(".sass").write_text(note + memory_and_flow(text))
        about["code"][source] = {
            name: [[i.offset, i.opcode, Path(i.file).name, i.line, bool(i.memory)] for i in code]
            for name, code in disassembly.parse_sass(text).items()
        }
        about["resources"][source] = {name: asdict(needs) for name, needs in binary.resources.items()}
    warp = (np.zeros((32, 4), np.uint32), np.zeros(32, np.uint32))
    shared = [
        StoredLaunch(access, 1, 32, (offsets, *warp), SHARED_BYTES) for access, _, offsets in shared_patterns.patterns()
    ]
    far = (np.zeros(global_patterns.BYTES, np.uint8), np.zeros(32, np.uint32))
    global_ = [
        StoredLaunch(access, 1, 32, (*where, *far), SHARED_BYTES) for access, _, *where in global_patterns.patterns()
    ]
    stored_launches.save_launches(folder / "shared-patterns.npz", compiled("patterns.cu"), shared)
    stored_launches.save_launches(folder / "global-patterns.npz", compiled("patterns.cu"), global_)
    for name, (launch, arch, _, _) in REFUSED.items():
        stored_launches.save_launches(folder / refused_file(name), compiled("refused.cu", arch), [launch])
    (folder / "about.json").write_text(json.dumps(about))


def refused_file(name: str) -> str:
    return f"refused-{name.replace(' ', '-')}.npz"


def without_debug(ptx: str) -> str:
    """PTX without the sections of its debugger, which no one here reads."""
    kept = ptx[: at if (at := ptx.find("\t.section\t")) > 0 else len(ptx)].rstrip() + "\n"
    return re.sub(r'(\t\.file\t\d+ ")[^"]*/', r"\1", kept)  # names of files, not of folders


def memory_and_flow(text: str) -> str:
    """Of a disassembly: functions, source lines, labels, accesses to memory, votes, and what ends a straight run."""
    wanted = re.compile(r"^\s*\.text\.|^\s*//## File|^\s*\.L\w+:")
    names = "|".join([*disassembly.MEMORY, *disassembly.ENDS_BLOCK, *disassembly.VOTES])
    opcodes = re.compile(rf"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?(?:{names})\b")
    kept = [line.rstrip() for line in text.splitlines() if wanted.match(line) or opcodes.match(line)]
    lines = [re.sub(r'(File|inlined at) "[^"]*?([^/"]+)"', r'\1 "\2"', line) for line in kept]
    # A place is a row, or several of which each but the last names the call of an inlined function. Of places with nothing
    # under them only the last is needed.
    place, inlined, needed = list[str](), False, list[str]()
    for line in lines:
        if "//## File" in line:
            place = [*place, line] if inlined else [line]
            inlined = "inlined at" in line
        else:
            needed += [*place, line]
            place, inlined = [], False
    return "\n".join(needed) + "\n"


# ---- on the machine with the GPU -------------------------------------------------------------------------------------


def record(folder: Path, out: Path, only: Sequence[str]) -> int:
    about = json.loads((folder / "about.json").read_text())
    out.mkdir(parents=True, exist_ok=True)
    failed: list[str] = []
    for step in (plain, refusals, kernels, in_shared_memory, in_global_memory):
        if only and step.__name__ not in only:
            continue
        begin = time.perf_counter()
        try:
            failed += step(folder, out, about)
        except Exception as error:  # the next step may still do: time on a GPU is scarce
            failed.append(f"{step.__name__}: {error}" if isinstance(error, TilewrightError) else traceback.format_exc())
        print(f"{step.__name__}: {time.perf_counter() - begin:.1f} s", flush=True)
    print("\n".join(failed) or "all as expected")
    return 1 if failed else 0


def plain(folder: Path, out: Path, about: dict[str, Any]) -> list[str]:
    """Every kernel without a profiler: right answers, and registers and memory as read from the binary."""
    failed = []
    gpu = open_device()
    print(f"{gpu.name}, compute capability {gpu.capability}")
    for source in SOURCES:
        binary, launches = stored_launches.load_launches(folder / f"{source}.npz")
        for case, arrays in zip(cases(source), stored_launches.make_launches(binary, launches), strict=True):
            failed += wrong(case, arrays)
        for name, needs in about["resources"][source].items():
            has = gpu.attributes(binary, name)
            driver = (has.registers, has.shared_bytes, has.local_bytes)
            if driver != (needs["registers"], needs["shared_bytes"], needs["local_bytes"]):
                failed.append(f"{name}: the driver says {has}, the binary {needs}")
    return failed


def refusals(folder: Path, out: Path, about: dict[str, Any]) -> list[str]:
    """What must fail fails, each in a process of its own, and says why."""
    failed, said = [], []
    for name, (_, _, code, words) in REFUSED.items():
        command = measure.command_of(folder / refused_file(name))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said.append(f"{name}: {done.returncode}: {done.stderr.strip()}")
        if done.returncode != code or words not in done.stderr:
            failed.append(f"refused: {said[-1]}")
    (out / "refusals.txt").write_text("\n".join(said) + "\n")
    return failed


def kernels(folder: Path, out: Path, about: dict[str, Any]) -> list[str]:
    """Every kernel under ncu: counters, instructions, and the answers again."""
    failed = []
    rows = [header(about)]
    for source in SOURCES:
        results = out / f"{source}.results.npz"
        command = measure.command_of(folder / f"{source}.npz", "--results", str(results))
        profiles = measure.profile(command, timeout=420)
        arrays = stored_launches.read_results(results)
        results.unlink()
        for case, found, left in zip(cases(source), profiles, arrays, strict=True):
            failed += wrong(case, left)
            failed += [f"{case.name}: ncu gave no {name}" for name in measure.COUNTERS if name not in found.counters]
            if found.kernel != case.launch.entry:
                failed.append(f"{case.name}: ncu counted {found.kernel}")
            code = {offset: rest for offset, *rest in about["code"][source][case.launch.entry]}
            failed += [
                f"{case.name}: {i.offset:#x} is {i.text}, not {code.get(i.offset)}"
                for i in found.instructions if i.offset not in code or code[i.offset][0] not in i.text
            ]  # fmt: skip
            rows.append(row_of(case, found, code))
    write(out / "microscope-counters-h200.jsonl", rows)
    return failed


def row_of(case: Case, found: measure.Profile, code: dict[int, list[Any]]) -> dict[str, Any]:
    """A line of the record; counters and counts that are 0 are left out, and so are instructions without memory."""
    launch = case.launch
    return {
        "case": case.name, "source": case.source, "kernel": launch.entry, "grid": found.grid, "block": found.block,
        "counters": {name: value for name, value in found.counters.items() if value and name in measure.COUNTERS},
        "instructions": [
            {"offset": i.offset, "text": i.text, "file": code[i.offset][1], "line": code[i.offset][2], **i.counts}
            for i in found.instructions if i.offset in code and code[i.offset][3]
        ],
    }  # fmt: skip


def in_shared_memory(folder: Path, out: Path, about: dict[str, Any]) -> list[str]:
    """Every one-warp pattern of shared memory under ncu."""
    listed = list(shared_patterns.patterns())
    command = measure.command_of(folder / "shared-patterns.npz")
    found = measure.ncu_counters(command, metrics=[_TURNS, _MISC, _CONFLICTS], timeout=400)
    write(out / "shared-memory-patterns-h200.jsonl", (
        {"access": access, "pattern": name, "byte_offsets": offsets.tolist(),
         "wavefronts": counters[_TURNS] - counters[_MISC], "bank_conflicts": counters[_CONFLICTS]}
        for (access, name, offsets), counters in zip(listed, found, strict=True)
    ))  # fmt: skip
    return []


def in_global_memory(folder: Path, out: Path, about: dict[str, Any]) -> list[str]:
    """Every one-warp pattern of global memory under ncu."""
    listed = list(global_patterns.patterns())
    found = measure.ncu_counters(measure.command_of(folder / "global-patterns.npz"), metrics=_SECTORS, timeout=400)
    rows = []
    for (access, name, offsets, sources), counters in zip(listed, found, strict=True):
        row = {"access": access, "pattern": name, "byte_offsets": offsets.tolist()}
        if access == global_patterns.COPY:
            row |= {"byte_sources": sources.tolist(), "sectors": counters[_SECTORS[0]] - 2 * _OFFSETS}
        else:
            row["sectors"] = sum(counters[name] for name in _SECTORS[1:])
        rows.append(row)
    write(out / "global-memory-patterns-h200.jsonl", rows)
    return []


def header(about: dict[str, Any]) -> dict[str, Any]:
    """The first line of the record: what it is, what was counted, and on what."""
    return {
        "kind": "hardware counters", "schema": 1,
        "environment": {
            **tools(), "compiler": about["compiler"], "arch": about["arch"], "python": sys.version.split()[0],
            "command": "python benchmarks/record_counters.py DIR OUTDIR",
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        },
        "counters": list(measure.COUNTERS),
    }  # fmt: skip


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def main() -> int:
    parser = argparse.ArgumentParser(description="Count on a GPU what the microscope predicts.")
    parser.add_argument("--prepare", action="store_true", help="compile here, and write what to launch there")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        help="one step: plain, refusals, kernels, in_shared_memory, in_global_memory",
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("out", type=Path, metavar="OUTDIR", nargs="?")
    given = parser.parse_args()
    if given.prepare:
        prepare(given.folder)
        return 0
    if given.out is None:
        parser.error("OUTDIR is missing: where to write the record")
    return record(given.folder, given.out, given.only)


if __name__ == "__main__":
    sys.exit(main())
