"""The number of operands that each opcode takes, checked before an operand is read (PTX ISA 9.7)."""

from __future__ import annotations

from ...errors import UsageError
from .instructions import Instruction

#: The least and the most operands of each opcode, the result included. Each form of ``cp`` has its own number.
_COUNTS = """
0-0 ret exit trap membar griddepcontrol
0-2 fence
0-6 cp
1-4 mbarrier
1-1 activemask nanosleep setmaxnreg
1-2 bra prefetch prefetchu applypriority discard
1-3 call
0-5 bar barrier
2-2 brx mov abs neg not cnot popc clz bfind brev rcp sqrt rsqrt sin cos lg2 ex2 tanh testp cvta isspacep elect
2-2 ldmatrix stmatrix movmatrix
2-3 ld ldu st red
2-4 cvt createpolicy
3-3 add sub add.cc sub.cc addc subc addc.cc subc.cc mul mul24 div rem min max and or xor shl shr copysign bmsk szext
2-2 getctarank
3-3 redux match vote mapa
3-4 setp set
3-5 atom
4-4 mad mad24 fma sad mad.cc madc madc.cc shf bfe prmt fns dp4a dp2a selp slct mma
5-5 bfi lop3 shfl
"""
_OF = {opcode: line.split()[0] for line in _COUNTS.strip().splitlines() for opcode in line.split()[1:]}


def check_operands(ins: Instruction) -> None:
    """Raises UsageError for an instruction with fewer operands than it takes, or more; unknown opcodes pass."""
    takes = _OF.get(f"{ins.parts[0]}.cc" if "cc" in ins.parts else ins.parts[0], f"0-{len(ins.operands)}")
    least, most = map(int, takes.split("-"))
    if not least <= len(ins.operands) <= most:
        expected = f"{least}" if least == most else f"{least} to {most}"
        raise UsageError(
            f"{ins.place()}: {ins.parts[0]} takes {expected} operands, given {len(ins.operands)}: {ins.text}"
        )
