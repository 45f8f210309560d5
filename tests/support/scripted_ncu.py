"""A shell script that stands in for ``ncu``."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from tilewright.lab.explain import measure

#: What ncu 2025.3 printed on an H200, shortened: the program's output, a row of units, separators of thousands, columns of
#: the device that are no counters, and one of them empty.
RAW = """a line of the program
==PROF== Disconnected from process 817
"ID","Kernel Name","Block Size","Grid Size","device__attribute_clock_rate","l1tex__t_sectors.sum","sm__inst.avg","sm__n.sum"
"","","","","","sector","inst",""
"0","naive","(32, 32, 1)","(2, 2, 1)","1,980,000","40,960","15.52",""
"1","tiled","(32, 32, 1)","(2, 2, 1)","1,980,000","2,048","8.00",""
"""


SOURCE = """Kernel Name,tiled,
Address,Source,# Samples,Instructions Executed,Address Space,L1 Wavefronts Shared,L2 Theoretical Sectors Global
0x7ff14f7aec00,"      LDC R1, c[0x0][0x28]",1,128,-,0,0
0x7ff14f7aedf0,"      LDG.E R10, desc[UR6][R10.64]",0,256,Global,0,"1,024"
0x7ff14f7aee90,"      LDS.128 R12, [R18]",0,256,Shared,512,0
Kernel Name,vec,
Address,Source,# Samples,Instructions Executed,Address Space,L1 Wavefronts Shared,L2 Theoretical Sectors Global
0x7ff14f7b0000,"      EXIT",1,2,-,0,0
"""


def play(monkeypatch: pytest.MonkeyPatch, folder: Path, run: str, raw: str = RAW) -> None:
    """An ``ncu`` that prints the pages above, and runs ``run`` (shell) where it is to profile; what follows is in ``$@``."""
    (folder / "raw").write_text(raw)
    (folder / "source").write_text(SOURCE)
    ncu = folder / "ncu"
    ncu.write_text(
        f'#!/bin/sh\nif [ "$1" = --import ]; then cat {folder}/$4; exit 0; fi\n'
        f'echo "$@" >>{folder}/options\nwhile [ "$1" != --export ]; do shift; done\nreport=$2\n{run}\n'
    )
    ncu.chmod(ncu.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(measure, "find_ncu", lambda: ncu)


#: A run that leaves a report, and of two launches their results.
RESULTS = 'touch $report; shift 2; while [ $# -gt 1 -a "$1" != --results ]; do shift; done; cp {} $2'
