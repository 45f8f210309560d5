"""Writes defects of kernels for code hosts: as SARIF 2.1.0, which code scanning reads, and as GitHub's annotations.

Paths are relative to the current folder, which must be the repository's root if CI is to show them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ... import __version__
from ...records.explanation import Explanation
from ...simulator.findings import BY_THE_LETTER, IN_LIBRARY, SURE, marked_grade
from ...simulator.requirements import OF_FINDINGS, BrokenRequirement, CodePlace

#: Grade of a finding → level of SARIF.
_LEVELS = {SURE: "error", BY_THE_LETTER: "warning", IN_LIBRARY: "note"}


@dataclass(frozen=True)
class CodeProblem:
    """A defect: its kind, its level in SARIF (error, warning or note), the path of the file, and the line, which is 0
    if it is not known."""

    rule: str
    level: str
    file: str
    line: int
    text: str


def problems_of(e: Explanation, source: Path, broken: Sequence[BrokenRequirement]) -> list[CodeProblem]:
    """The problems of a kernel, whose file is ``source``: its defects, then a wrong result, then the requirements that
    it breaks."""
    found = [
        CodeProblem(
            d.kind,
            _LEVELS.get(d.grade, "error"),
            _path(source, d.file),
            d.line,
            f"{d.kind}{marked_grade(d.grade)} in {e.kernel}, block {tuple(d.block)}, thread {tuple(d.thread)}: {d.text}",
        )
        for d in e.defects
    ]
    if e.verified["ok"] is False:
        found.append(CodeProblem("wrong result", "error", _path(source, ""), 0, f"{e.kernel}: {e.verified['reason']}"))
    if not e.launchable:
        found.append(CodeProblem("launch", "error", _path(source, ""), 0, f"{e.kernel}: {e.reason_without_rate}"))
    for each in broken:
        rule, first = f"require {each.requirement.measure}", f"{e.kernel} breaks {each.requirement}: {each.value}"
        if each.requirement.measure in OF_FINDINGS and each.places:
            continue  # the findings themselves are listed
        for place in each.places or [CodePlace("", 0, "")]:
            text = f"{first}; here {place.text}" if place.text else first
            found.append(CodeProblem(rule, "error", _path(source, place.file), place.line, text))
    return found


def _path(source: Path, label: str) -> str:
    """The path of the kernel's own file, or of an included one by its label in a record."""
    places = [source.parent / label, Path(label)] if label else [source]
    absolute = Path(next((place for place in places if place.is_file()), places[-1])).absolute()
    path = Path(os.path.normpath(absolute))
    return (path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path).as_posix()


def sarif(problems: Sequence[CodeProblem]) -> dict[str, Any]:
    """Make a SARIF 2.1.0 log with one run.

    >>> log = sarif([CodeProblem("race", "error", "src/k.cu", 7, "two threads write")])
    >>> result = log["runs"][0]["results"][0]
    >>> result["ruleId"], result["locations"][0]["physicalLocation"]["region"]
    ('race', {'startLine': 7})
    """
    rules = list(dict.fromkeys(problem.rule for problem in problems))
    driver = {
        "name": "Tilewright",
        "version": __version__,
        "rules": [
            {"id": _ident(rule), "name": rule.title().replace(" ", ""), "shortDescription": {"text": rule}}
            for rule in rules
        ],
    }
    results = [
        {
            "ruleId": _ident(problem.rule),
            "ruleIndex": rules.index(problem.rule),
            "level": problem.level,
            "message": {"text": problem.text},
            "locations": [{"physicalLocation": _location(problem)}],
        }
        for problem in problems
    ]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}


def _ident(rule: str) -> str:
    return rule.replace(" ", "-")


def _location(problem: CodeProblem) -> dict[str, Any]:
    """The place of a problem; code scanning needs a line, which is line 1 if the line is not known."""
    path = Path(problem.file)
    uri = {"uri": path.as_uri()} if path.is_absolute() else {"uri": quote(problem.file), "uriBaseId": "%SRCROOT%"}
    return {"artifactLocation": uri, "region": {"startLine": max(1, problem.line)}}


def annotation(problem: CodeProblem) -> str:
    """A problem as a line of output that GitHub's runner shows as an annotation.

    >>> annotation(CodeProblem("race", "note", "a,b.cu", 7, "100 %"))
    '::notice file=a%2Cb.cu,line=7,title=race::100 %25'
    """
    level = {"note": "notice"}.get(problem.level, problem.level)
    line = f",line={problem.line}" if problem.line else ""
    return f"::{level} file={_property(problem.file)}{line},title={_property(problem.rule)}::{_data(problem.text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
