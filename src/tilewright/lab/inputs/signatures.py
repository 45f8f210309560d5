"""Reads the kernels of a file and their parameters, and writes a command that launches one, for a user to begin with.

The sizes in that command are examples, which fit a kernel in which each thread computes one element.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...gpu.runtime.cubin import demangled
from ...simulator.assembly.parser import parse_ptx
from ...simulator.given_kernels import is_ptx
from ...simulator.machine.arguments import is_pointer

#: C++'s names for the types of elements, by dtype.
_NAMES = {
    "bool": "bool",
    "int8": "char|signed char|int8_t",
    "uint8": "unsigned char|uchar|uint8_t",
    "int16": "short|int16_t",
    "uint16": "unsigned short|ushort|uint16_t",
    "int32": "int|signed|int32_t",
    "uint32": "unsigned|unsigned int|uint|uint32_t",
    "int64": "long|long int|long long|int64_t|ptrdiff_t",
    "uint64": "unsigned long|unsigned long long|uint64_t|size_t",
    "float16": "half|__half",
    "bfloat16": "nv_bfloat16|__nv_bfloat16",
    "float32": "float",
    "float64": "double",
}
_DTYPES = {name: dtype for dtype, names in _NAMES.items() for name in names.split("|")}
_VECTOR = re.compile(r"([a-z]+)([234])")  # float4: four of float
_QUALIFIERS = re.compile(r"\b(?:const|volatile|struct|typename|__restrict(?:__)?|__grid_constant__)\b|\bstd\s*::")
#: In place of a number of bytes that the source's text does not tell.
BYTES = "BYTES"
#: The dtypes of PTX's types that are not integers of C++'s names.
_PTX_TYPES = {"f32": "float", "f64": "double", "f16": "half", "b16": "half"}


@dataclass(frozen=True)
class KernelParameter:
    """A parameter of a kernel: its declaration in the source, its name (empty if it has none), the name of its type,
    and whether it is a pointer."""

    text: str
    name: str
    type: str
    is_pointer: bool

    def example(self, number: int, shape: str, count: int, types: Mapping[str, str]) -> str:
        """An argument for this parameter as ``--arg`` takes it. ``number`` is the parameter's position, ``shape`` is
        the shape of arrays, ``count`` is the value of integers, and ``types`` are the types that replace the parameters
        of a template.

        >>> KernelParameter("const float4* x", "x", "float4", True).example(0, "1024", 1024, {})
        'x:float32:1024x4'
        """
        name, kind = self.name or f"arg{number}", types.get(self.type, self.type)
        vector = _VECTOR.fullmatch(kind)
        dtype = _DTYPES.get(vector[1] if vector else kind)
        if self.is_pointer:
            shape += f"x{vector[2]}" if vector and dtype else ""
            return f"{name}:{dtype or 'uint8'}:{shape if dtype else BYTES}"
        if dtype is None or vector:
            return f"{name}:{dtype or 'uint8'}:{vector[2] if vector and dtype else BYTES}"
        return f"{name}={'1.5' if 'float' in dtype else count if dtype != 'bool' else 1}"


@dataclass(frozen=True)
class Signature:
    """A kernel's name with its namespaces, its parameters, its template parameters, and whether its code reads the y
    index of a thread or block."""

    name: str
    parameters: tuple[KernelParameter, ...]
    template: tuple[str, ...] = ()
    two_dimensional: bool = False

    def __str__(self) -> str:
        template = f"<{', '.join(self.template)}>" if self.template else ""
        return f"{self.name}{template}({', '.join(p.text for p in self.parameters)})"

    @property
    def is_product(self) -> bool:
        """Whether a matrix product can have these parameters: three arrays and three integers."""
        pointers = [p.is_pointer for p in self.parameters]
        return pointers == [True] * 3 + [False] * 3 and all(
            "int" in _DTYPES.get(p.type, "") for p in self.parameters[3:]
        )

    @property
    def is_certain(self) -> bool:
        """Whether the number of parameters is known: a macro may hold several of them, and a directive may remove some."""
        return all(p.name and "#" not in p.text and (p.type in _DTYPES or " " not in p.type) for p in self.parameters)

    def command(self, path: Path, kernel: str | None) -> str:
        """A command that launches the kernel, in lines that a shell joins. ``kernel`` is the kernel's name as the user
        wrote it.

        >>> print(signatures("__global__ void zero(float* x, int n) {}")[0].command(Path("a.cu"), None))
        tilewright explain a.cu::zero --grid 8 --block 128 \\
            --arg x:float32:1024 --arg n=1024
        """
        grid, block, shape, count = (
            ("2x2", "16x16", "32x32", 32) if self.two_dimensional else ("8", "128", "1024", 1024)
        )
        given = re.findall(r"[^<>,]+", kernel.partition("<")[2]) if kernel else []
        values = [word.strip() for word in given] or ["float" if _is_type(each) else "8" for each in self.template]
        name = kernel if given and kernel else f"{self.name}<{', '.join(values)}>" if self.template else self.name
        types = {each.split()[-1]: value for each, value in zip(self.template, values, strict=False)}
        arguments = [p.example(i, shape, count, types) for i, p in enumerate(self.parameters)]
        lines = [f"tilewright explain {shlex.quote(f'{path}::{name}')} --grid {grid} --block {block}"]
        for argument in arguments:
            word = f"--arg {argument}"
            if len(lines) > 1 and len(lines[-1]) + len(word) < 76:
                lines[-1] += f" {word}"
            else:
                lines.append(f"    {word}")
        return " \\\n".join(lines)


def signatures(source: str) -> list[Signature]:
    """The kernels that a text of CUDA C++ or PTX defines, each once. Kernels that a macro defines are not found.

    >>> text = "namespace my { template <typename T> __global__ void scale(const T* x, float a, int n) { } }"
    >>> print(*signatures(text))
    my::scale<typename T>(const T* x, float a, int n)
    """
    found = _of_ptx(source) if is_ptx(source) else _of_cuda(re.sub(_COMMENT_OR_TEXT, " ", source))
    return list({(each.name, len(each.parameters)): each for each in found}.values())


_COMMENT_OR_TEXT = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'", re.DOTALL)
_ATTRIBUTE = r"__\w+__\s*\((?:[^()]|\([^()]*\))*\)"
#: What opens a scope, what closes one, and a kernel up to the end of its parameters.
_SCOPES_AND_KERNELS = re.compile(
    r"(?:\bnamespace\s+(?P<namespace>[\w:]+)\s*)?\{|(?P<close>\})"
    r"|(?:\btemplate\s*<(?P<template>[^<>{};]*)>\s*(?:static\s+)?)?\b__global__\b"
    rf"(?:{_ATTRIBUTE}|[\w\s])*?\b(?P<name>\w+)\s*\((?P<parameters>[^(){{}};]*)\)(?=\s*\{{)"
)


def _of_cuda(code: str) -> Iterator[Signature]:
    """The kernels in CUDA C++ without comments and literals."""
    scopes: list[str] = []
    found: list[tuple[int, str, re.Match[str]]] = []
    for part in _SCOPES_AND_KERNELS.finditer(code):
        if part["name"]:
            found.append((part.end(), "::".join([*filter(None, scopes), part["name"]]), part))
        elif part["close"]:
            del scopes[-1:]
        else:
            scopes.append(part["namespace"] or "")
    ends = [part.start() for *_, part in found[1:]] + [len(code)]
    for (start, name, part), end in zip(found, ends, strict=True):
        template = tuple(
            _in_words(each.partition("=")[0]) for each in (part["template"] or "").split(",") if each.strip()
        )
        parameters = tuple(_parameter(text) for text in _separated(part["parameters"]))
        two_dimensional = re.search(r"\b(?:threadIdx|blockIdx)\s*\.\s*y\b", code[start:end]) is not None
        yield Signature(name, parameters, template, two_dimensional)


def _separated(parameters: str) -> list[str]:
    """Parameters without the commas between them; a comma between angle brackets is part of a type."""
    parts, depth = [""], 0
    for letter in parameters:
        depth += (letter == "<") - (letter == ">")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in map(_in_words, parts) if part not in ("", "void")]


def _in_words(text: str) -> str:
    return " ".join(text.split())


def _parameter(text: str) -> KernelParameter:
    bare = _in_words(_QUALIFIERS.sub(" ", text))
    declared = re.fullmatch(r"(.*[\s*&>])(\w+)\s*((?:\[\w*\]\s*)*)", bare)
    named = declared if declared and declared[2] not in _DTYPES else None
    kind, name, extent = (named[1], named[2], named[3]) if named else (bare, "", "")
    return KernelParameter(text, name, _in_words(re.sub(r"[*&]", " ", kind)), "*" in kind or bool(extent))


def _is_type(parameter: str) -> bool:
    return parameter.startswith(("typename ", "class "))


def _of_ptx(text: str) -> Iterator[Signature]:
    """The kernels in PTX, whose parameters have no names."""
    for function in parse_ptx(text).functions.values():
        if function.entry and function.defined:
            kinds = [
                (
                    "pointer" if is_pointer(p) else f".{p.type}",
                    _PTX_TYPES.get(p.type, {4: "int", 8: "long"}.get(p.size, "")),
                )
                for p in function.params
            ]
            parameters = tuple(
                KernelParameter(kind, "", "float" if kind == "pointer" else dtype, kind == "pointer")
                for kind, dtype in kinds
            )
            yield Signature(demangled(function.name), parameters)
