"""Count on a GPU what the microscope predicts of ``tests/support/unrolled.cu``: ``record_unrolled.py OUTDIR`` (with ncu).

Compiles the kernels, checks every answer, and compares the shared memory's counters with those of the microscope for the
same binary. Exits with 1 if one is wrong that the microscope does not mark as not exact. Of what it writes,
``unrolled-counters-h200.jsonl`` goes to ``benchmarks``, and PTX and disassembly of the binary to ``tests/data/counted``.
"""

from __future__ import annotations

import datetime
import json
import re
import sys
from pathlib import Path

from record_counters import memory_and_flow, without_debug
from tilewright.gpu.runtime.nvrtc import compile_source, compiler
from tilewright.lab.explain.measure import COUNTERS, profile_launches, tools
from tilewright.simulator import RunOptions, simulate
from tilewright.simulator.assembly import disassembly, program
from tilewright.simulator.assembly.parser import parse_ptx
from tilewright.simulator.assembly.ptxas import match_accesses, ptx_accesses
from tilewright.simulator.counters.tally import Counters

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.twelve_kernels import ARCH, wrong
from support.unrolled_kernels import CASES, SOURCE, TEXT

COUNTED = [name for name in COUNTERS if re.search(r"shared_op_(ld|st)\.|op_shared_(ld|st)\.", name)]


def main() -> int:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    compiled = compile_source(TEXT, name=SOURCE, arch=ARCH)
    note = f"// {SOURCE}, compiled by {compiler()} for {ARCH}. Written by benchmarks/record_unrolled.py.\n"
    text = disassembly.disassemble(compiled.cubin)
    (out / "unrolled.ptx").write_text(note + without_debug(compiled.ptx))
    (out / "unrolled.sass").write_text(note + memory_and_flow(text))
    module, binary = parse_ptx(compiled.ptx), disassembly.parse_sass(text)
    profiles = profile_launches(compiled, [case.launch for case in CASES], COUNTED, lines=False)
    environment = {**tools(), "compiler": compiler(), "arch": ARCH, "command": "python benchmarks/record_unrolled.py OUTDIR",
                   "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")}  # fmt: skip
    rows = [{"kind": "hardware counters", "schema": 1, "environment": environment, "counters": COUNTED}]
    failed = []
    for case, profile in zip(CASES, profiles, strict=True):
        failed += wrong(case, profile.arrays)
        rows.append({"case": case.name, "counters": {name: n for name, n in profile.counters.items() if n}})
        launch = case.launch
        machine = match_accesses(ptx_accesses(program.link(module, launch.entry)), binary[launch.entry])
        watch = Counters(machine)
        simulate(module, launch.entry, launch.grid, launch.block, launch.args, RunOptions(observer=watch))
        ours = watch.total()
        off = {name: (ours.get(name, 0), profile.counters[name]) for name in COUNTED
               if ours.get(name, 0) != profile.counters[name]}  # fmt: skip
        print(case.name, off or "equal", *machine.notes, flush=True)
        failed += [f"{case.name}: {off}"] if off and not machine.notes else []
    (out / "unrolled-counters-h200.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    print("\n".join(failed) or "all as expected")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
