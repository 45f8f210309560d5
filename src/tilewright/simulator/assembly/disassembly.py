"""Parses the machine code of a binary (SASS) as NVIDIA's disassembler ``nvdisasm`` prints it. No GPU is needed."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from ...errors import UnavailableError
from ...host.disk import CacheFile, fingerprint
from .instructions import Where, place_of_user

#: The SASS opcodes that access memory, with memory space and kind in the microscope's terms.
MEMORY = {
    "LDS": ("shared", "ld"),
    "STS": ("shared", "st"),
    "ATOMS": ("shared", "atom"),
    "LDSM": ("shared", "ldmatrix"),
    "STSM": ("shared", "stmatrix"),
    "LDG": ("global", "ld"),
    "STG": ("global", "st"),
    "ATOMG": ("global", "atom"),
    "RED": ("global", "red"),
    "REDG": ("global", "red"),
    "LDGSTS": ("global", "cp.async"),
    "LDL": ("local", "ld"),
    "STL": ("local", "st"),
}
#: A reduction is an atomic whose result is not used; ptxas decides which of the two an access becomes.
_FAMILIES = {"red": "atom"}
#: Bytes per lane, by the part of an opcode that says so. "2" and "4" count matrices of 4 bytes per lane each.
_WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "S64": 8, "U64": 8, "F64": 8, "128": 16, "2": 8, "4": 16}
#: The opcodes that end a basic block, because other warps, or fewer, may execute the next instruction.
ENDS_BLOCK = {"BRA", "BRX", "EXIT", "RET", "CALL", "BREAK", "BSYNC"}
#: The opcodes that find the active lanes of a warp or reduce over them, before one lane acts for all.
VOTES = {"VOTE", "VOTEU", "REDUX"}

_FUNCTION = re.compile(r"^\s*(?:\.text\.([\w$.]+):|Function : (\S+))")
_FILE = re.compile(r'^\s*//## File "([^"]*)", line (\d+)(?: inlined at "([^"]*)", line (\d+))?')
_LABEL = re.compile(r"^\s*(\.L\w+):")
_CODE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+\{?\s*(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*)")

Group = tuple[str, int, str, str]  # file, line, space, family of kinds


def access_group(file: str, line: int, space: str, kind: str) -> Group:
    """Return the key by which an access in the PTX is matched with an access in the machine code."""
    return PurePosixPath(file).name, line, space, _FAMILIES.get(kind, kind)


@dataclass(frozen=True)
class MachineInstruction:
    """One instruction of the binary; ``block`` is the number of its basic block in the function."""

    offset: int
    opcode: str
    operands: str
    guard: str  # "!P0", or "" without one
    file: str
    line: int
    block: int
    loop: bool = False  # whether it lies between a backward jump and its target
    calls: tuple[Where, ...] = ()  # those that it was inlined from, the innermost first

    @property
    def users(self) -> Where:
        """The source line of the instruction in the user's files, found as ``Instruction.users`` finds it."""
        return place_of_user(Where(self.file, self.line), self.calls)

    @property
    def memory(self) -> tuple[str, str] | None:
        """The memory space and the kind of the instruction's access. None if the instruction is no access, or if its
        guard ``@!PT`` is always false."""
        return None if self.guard == "!PT" else MEMORY.get(self.opcode.split(".")[0])

    @property
    def nbytes(self) -> int:
        """The bytes per lane of a memory access: the width that the opcode states, or 4 if it states none."""
        return next((_WIDTHS[part] for part in self.opcode.split(".")[1:] if part in _WIDTHS), 4)

    @property
    def padding(self) -> bool:
        """Whether the instruction is ``@!PT LDS``, which never loads; the compiler puts three such instructions before
        asynchronous copies."""
        return self.guard == "!PT" and self.opcode.split(".")[0] == "LDS"

    @property
    def group(self) -> Group:
        """The key by which the instruction is matched with the PTX from which it was compiled."""
        return access_group(self.file, self.line, *(self.memory or ("", "")))


def parse_sass(text: str) -> dict[str, list[MachineInstruction]]:
    """Parse the output of ``nvdisasm -gi -c`` or of ``cuobjdump -sass`` (which has no source lines); returns the
    functions by name.

    >>> code = parse_sass('.text.f:\\n//## File "k.cu", line 7\\n  /*0010*/  @P0 LDS.128 R4, [R2+0x10] ;')["f"]
    >>> code[0].line, code[0].opcode, code[0].guard, code[0].nbytes, code[0].memory
    (7, 'LDS.128', 'P0', 16, ('shared', 'ld'))
    """
    functions: dict[str, list[MachineInstruction]] = {}
    code: list[MachineInstruction] = []
    file, line, block = "", 0, 0
    calls: tuple[Where, ...] = ()
    inside = False  # whether the row before named the call of an inlined function: the next row repeats the place of it
    labels: dict[str, tuple[int, int]] = {}  # label → number of its function, and index in its code
    named = set(re.findall(r"\.L\w+\b(?!:)", text))
    for row in text.splitlines():
        if found := _FUNCTION.match(row):
            code = functions.setdefault(found[1] or found[2], [])
            file, line, block, calls, inside = "", 0, 0, (), False
        elif found := _FILE.match(row):
            if not inside:
                file, line, calls = found[1], int(found[2]), ()
            inside = found[3] is not None
            calls += (Where(found[3], int(found[4])),) if inside else ()
        elif found := _LABEL.match(row):
            labels[found[1]] = (len(functions), len(code))
            block += found[1] in named  # nvdisasm 13.5 has labels to which nothing jumps
        elif found := _CODE.match(row):
            code.append(MachineInstruction(
                int(found[1], 16), found[3], found[4].strip(), found[2] or "", file, line, block, calls=calls
            ))  # fmt: skip
            block += found[3].split(".")[0] in ENDS_BLOCK
    for number, code in enumerate(functions.values(), 1):
        _mark_loops(code, {label: at for label, (function, at) in labels.items() if function == number})
    return functions


def _mark_loops(code: list[MachineInstruction], labels: dict[str, int]) -> None:
    for end, ins in enumerate(code):
        found = re.search(r"\.L\w+", ins.operands) if ins.opcode.startswith("BRA") else None
        start = labels.get(found[0], end) if found else end
        if start < end:
            inside = code[start : end + 1]
            code[start : end + 1] = [each if each.loop else replace(each, loop=True) for each in inside]


def find_tool(name: str = "nvdisasm") -> Path | None:
    """Return the path of the disassembler: from the package nvidia-cuda-<name>, otherwise on PATH, otherwise under
    CUDA_HOME; None if it is not found."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files(f"nvidia-cuda-{name}") or []:
            if file.name == name and (found := shutil.which(str(file.locate()))):
                return Path(found)
    home = Path(os.environ.get("CUDA_HOME", ""), "bin")
    on_path = shutil.which(name) or shutil.which(name, path=str(home))
    return Path(on_path) if on_path else None


def disassemble(cubin: bytes) -> str:
    """Disassemble a binary by ``nvdisasm -gi -c``. The output is cached on disk, because ``nvdisasm`` takes a third of
    a second for any binary.

    Raises UnavailableError if the tool is missing or refuses the binary.
    """
    tool = find_tool()
    if tool is None:
        raise UnavailableError("nvdisasm: not found; pip install nvidia-cuda-nvdisasm")
    release = tool.stat()
    file = CacheFile("nvdisasm", f"{fingerprint(str(tool), release.st_size, release.st_mtime_ns, cubin)}.sass")
    cached = file.read_checked()
    if cached is not None:
        return cached.decode()
    text = _disassembled_by(tool, cubin)
    file.write_checked(text.encode())
    return text


def _disassembled_by(tool: Path, cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, "-gi", "-c", file.name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnavailableError(f"nvdisasm: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout
