"""Makes one flat program of a module: device functions are inlined at each call, and the code is divided into basic
blocks.

Inlining keeps reconvergence simple. The body of a function replaces each call of it. So the scheduling rule "run the
threads at the lowest address first" also joins diverged threads at the end of a call. A recursive function cannot be
inlined, so ``link`` refuses a kernel that calls one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeVar
from weakref import WeakKeyDictionary

from ...errors import UsageError, did_you_mean
from .instructions import WORD, Function, Instruction, Module, Variable, Where, operand_tokens

#: The most instructions of a program with its calls inlined; a program with more is assumed to be a mistake.
MOST_CODE = 1 << 18
#: The instructions that may jump, end the thread, or make it wait.
CONTROL = {"bra", "brx", "ret", "exit", "trap", "bar", "barrier"}
#: How the names of special registers begin. They look like names of registers but are declared in no function.
SPECIAL = (
    "%tid", "%ntid", "%ctaid", "%nctaid", "%laneid", "%warpid", "%nwarpid", "%lanemask", "%clock", "%global", "%smid",
    "%nsmid", "%gridid", "%dynamic", "%total", "%is_", "%cluster", "%ncluster", "%envreg", "%aggr", "%pm",
)  # fmt: skip


@dataclass
class BasicBlock:
    """A basic block: the instructions ``first`` to ``last``, of which only the last may be in CONTROL."""

    first: int
    last: int
    index: int = 0


@dataclass(eq=False)
class Program:
    """A kernel whose calls are inlined. A ``Program`` has the code in order, the positions of labels, branch tables,
    the PTX types of registers, variables, and basic blocks; ``block_at`` has the index of each basic block by its first
    instruction.
    """

    entry: Function
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    tables: dict[str, list[str]] = field(default_factory=dict)
    registers: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    blocks: list[BasicBlock] = field(default_factory=list)
    block_at: dict[int, int] = field(default_factory=dict)


Found = TypeVar("Found")
_linked: WeakKeyDictionary[Module, dict[str, Program]] = WeakKeyDictionary()


def found_once(find: Callable[[Program], Found]) -> Callable[[Program], Found]:
    """Cache the results of a function that analyses a program's code, so that it is called only once for each program,
    however often the kernel is run."""
    known: WeakKeyDictionary[Program, Found] = WeakKeyDictionary()

    @functools.wraps(find)
    def found(program: Program) -> Found:
        if program not in known:
            known[program] = find(program)
        return known[program]

    return found


def link(module: Module, entry: str) -> Program:
    """Make the program that a kernel runs; every call with the same arguments returns the same object.

    Raises UsageError for an unknown kernel, for a call of a recursive function, and for a call of a function that is
    only declared.
    """
    linked = _linked.setdefault(module, {})
    if entry in linked:
        return linked[entry]
    kernels = [f.name for f in module.functions.values() if f.entry and f.defined]
    if entry not in kernels:
        raise UsageError(f"the PTX holds no kernel {entry!r}: {did_you_mean(entry, kernels)}")
    program = Program(module.functions[entry])
    program.variables |= module.variables
    _Linker(module, program).body(module.functions[entry], "", {}, (), None, ())
    _cut(program)
    linked[entry] = program
    return program


def is_special(name: str) -> bool:
    """Whether a name is the name of a special register, such as ``%tid.x``."""
    return name.startswith(SPECIAL)


class _Linker:
    def __init__(self, module: Module, program: Program) -> None:
        self.module, self.program, self.calls = module, program, 0

    def body(
        self,
        function: Function,
        suffix: str,
        names: dict[str, str],
        stack: tuple[str, ...],
        end: str | None,
        calls: tuple[Where, ...],
    ) -> None:
        """Append the code of a function, whose own names are made unique by ``suffix``; ``calls`` are the places of the
        calls that lead to it, innermost first."""
        program = self.program
        own = [*function.registers, *function.variables, *function.labels, *function.tables]
        names = {name: name + suffix for name in own} | names
        for name, kind in function.registers.items():
            program.registers[names[name]] = kind
        for name, variable in function.variables.items():
            program.variables[names[name]] = replace(variable, name=names[name])
        for name, targets in function.tables.items():
            program.tables[names[name]] = [names.get(t, t) for t in targets]
        labels_at: dict[int, list[str]] = {}
        for name, at in function.labels.items():
            labels_at.setdefault(at, []).append(names[name])
        for at, ins in enumerate(function.code):
            self.mark(labels_at.get(at, []))
            if suffix:
                operands = tuple(WORD.sub(lambda m: names.get(m[0], m[0]), o) for o in ins.operands)
                guard = (names.get(ins.guard[0], ins.guard[0]), ins.guard[1]) if ins.guard else None
                ins = replace(ins, operands=operands, guard=guard, calls=ins.calls + calls, inlined_at=calls[-1])
            if ins.parts[0] == "call":
                check_operands(ins)
                self.call(ins, (*stack, function.name))
            elif ins.parts[0] == "ret" and end is not None:
                self.append(replace(ins, opcode="bra", operands=(end,)))
            else:
                self.append(ins)
        self.mark(labels_at.get(len(function.code), []))

    def append(self, ins: Instruction) -> None:
        if len(self.program.code) >= MOST_CODE:
            raise UsageError(f"{ins.place()}: with its calls inlined the kernel has over {MOST_CODE:,} instructions")
        check_operands(ins)
        index = len(self.program.code)
        self.program.code.append(ins if ins.index == index else replace(ins, index=index))

    def mark(self, labels: list[str]) -> None:
        for label in labels:
            self.program.labels[label] = len(self.program.code)

    def print(self, ins: Instruction, arguments: Sequence[str]) -> None:
        """Replace a call of ``vprintf`` by loads of its two arguments and an instruction that prints."""
        self.calls += 1
        registers = [f"%printed.{self.calls}.{i}" for i in range(2)]
        for register, argument in zip(registers, arguments, strict=True):
            self.program.registers[register] = "b64"
            self.append(replace(ins, opcode="ld.param.b64", operands=(register, f"[{argument}+0]")))
        self.append(replace(ins, opcode="vprintf", operands=("_", *registers)))

    def call(self, ins: Instruction, stack: tuple[str, ...]) -> None:
        """Inline ``call (retval), name, (arguments)``: results and arguments replace the callee's parameters."""
        groups = [operand_tokens(o[1:-1]) if o.startswith("(") else o for o in ins.operands]
        target = next((g for g in groups if isinstance(g, str)), "")
        if not target:
            raise UsageError(f"{ins.place()}: {ins.text} names no function to call")
        at = groups.index(target)
        results = groups[0] if at else []
        arguments = groups[at + 1] if len(groups) > at + 1 else []
        function = self.module.functions.get(target)
        if function is None or not function.defined:
            if target == "__assertfail":
                self.append(replace(ins, opcode="trap", operands=()))
                return
            if target == "vprintf" and len(arguments) == 2:
                self.print(ins, arguments)
                return
            what = "through a pointer" if target.startswith("%") else f"{target}, which the PTX does not define"
            raise UsageError(f"{ins.place()}: the kernel calls {what}; only functions in the same PTX can be run")
        if target in stack:
            raise UsageError(f"{ins.place()}: {target} calls itself; recursive functions cannot be run")
        if len(results) != len(function.results) or len(arguments) != len(function.params):
            takes = f"takes {len(function.params)} and returns {len(function.results)} values"
            raise UsageError(f"{ins.place()}: {target} {takes}, called with {len(arguments)} and {len(results)}")
        self.calls += 1
        suffix = f".c{self.calls}"
        bound = dict(zip((v.name for v in function.results), results, strict=True))
        bound |= dict(zip((v.name for v in function.params), arguments, strict=True))
        done = f"$done{suffix}"
        if ins.guard:
            self.append(replace(ins, opcode="bra", operands=(done,), guard=(ins.guard[0], not ins.guard[1])))
        self.body(function, suffix, bound, stack, done, (ins.where, *ins.calls))
        self.mark([done])


def _cut(program: Program) -> None:
    """Basic blocks begin at labels and after control instructions."""
    code = program.code
    starts = {0, *program.labels.values()} | {i.index + 1 for i in code if i.parts[0] in CONTROL}
    edges = sorted(s for s in starts if s < len(code)) + [len(code)]
    for index, (first, stop) in enumerate(pairwise(edges)):
        program.blocks.append(BasicBlock(first, stop - 1, index))
        program.block_at[first] = index
    program.block_at[len(code)] = len(program.blocks)


# ---- operands --------------------------------------------------------------------------------------------------------
# The number of operands that each opcode takes, checked before an operand is read (PTX ISA 9.7).


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
3-3 add sub add.cc sub.cc addc subc addc.cc subc.cc mul mul24 div rem and or xor shl shr copysign bmsk szext
2-2 getctarank
3-3 redux match vote mapa
3-4 min max
2-3 tensormap
2-2 clusterlaunchcontrol
0-9 tcgen05
3-4 setp set
3-5 atom
4-4 mad mad24 fma sad mad.cc madc madc.cc shf bfe prmt fns dp4a dp2a selp slct mma
5-5 bfi lop3 shfl
"""
_OF = {opcode: line.split()[0] for line in _COUNTS.strip().splitlines() for opcode in line.split()[1:]}


def check_operands(ins: Instruction) -> None:
    """Raise UsageError for an instruction with too few or too many operands; unknown opcodes are not checked."""
    takes = _OF.get(f"{ins.parts[0]}.cc" if "cc" in ins.parts else ins.parts[0], f"0-{len(ins.operands)}")
    least, most = map(int, takes.split("-"))
    if ins.parts[0] in ("min", "max") and ins.parts[-1] != "f32":  # only floats have a form of three
        most = 3
    if not least <= len(ins.operands) <= most:
        expected = f"{least}" if least == most else f"{least} to {most}"
        raise UsageError(
            f"{ins.place()}: {ins.parts[0]} takes {expected} operands, given {len(ins.operands)}: {ins.text}"
        )
