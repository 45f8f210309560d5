"""The record that ``explain`` makes of a kernel, as plain data: one JSON object, which any machine can read. Counts
come from the microscope (or from formulas, where the record says so) and need no GPU. ``measured`` holds the counters
of a real GPU, if the kernel was also measured. The terminal's output and the page show only what is in this record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import RecordError
from .json_data import (
    COUNT,
    NUMBER,
    NUMBERS,
    OBJECT,
    OBJECTS,
    PLAIN_VALUES,
    POSITIVE,
    TEXT,
    TRUTH,
    Rule,
    check_fields,
    dumped,
    is_count,
    is_number,
    many,
    mapping,
    nullable,
    parse_json,
    read_text,
    value_excerpt,
)
from .pipeline import Pipeline, check_pipeline, pipeline_from

SCHEMA = 1
KIND = "explain"
#: If a time becomes shorter by less than this factor, it counts as not shorter.
NO_LESS = 0.99
#: The mark of a count that is not exact.
APPROXIMATELY = "≈"


@dataclass(frozen=True)
class Access:
    """The accesses of one source line to one memory space with one width, for all warps of the launch together.

    ``space`` is global, shared or local. ``kind`` is ld, st, atom, red, cp.async, ldmatrix or stmatrix. ``nbytes`` is
    the number of bytes that one lane moves. A request is one instruction of one warp. ``sectors`` is the number of
    32-byte sectors that accesses to global or local memory move. ``wavefronts`` is the number of wavefronts that
    accesses to shared memory take, of which ``conflicts`` are due to bank conflicts. ``least`` is the lowest possible
    cost of the accesses: the sectors that the distinct bytes of each request would fill, or the wavefronts without
    conflicts.

    ``lanes`` shows the most expensive request as an example. ``lanes`` has, for each of the 32 lanes, the byte address
    that the lane accesses minus ``origin``, a multiple of 128. The entry of a lane that does not take part is None.
    """

    line: int
    space: str
    kind: str
    nbytes: int
    requests: int
    bytes: int
    sectors: int = 0
    wavefronts: int = 0
    conflicts: int = 0
    least: int = 0
    origin: int = 0
    lanes: list[int | None] = field(default_factory=list)
    file: str = ""  # the included file that has the line; empty for the kernel's own
    exact: bool = True  # whether the GPU counts the same
    inside: str = ""  # where in a library's header the access is, if the line calls a function there

    @property
    def place(self) -> str:
        """The source line as text for a sentence, with the file if it is an included one."""
        return f"{self.file}:{self.line}" if self.file else f"line {self.line}"

    @property
    def cost(self) -> int:
        """The cost of the accesses: the number of wavefronts in shared memory, or of sectors in other memory."""
        return self.wavefronts if self.space == "shared" else self.sectors

    @property
    def unit(self) -> str:
        """The unit of ``cost``."""
        return "wavefronts" if self.space == "shared" else "sectors"


@dataclass(frozen=True)
class Formula:
    """A count by a formula from the papers and manuals in docs/sources.md, together with the microscope's count of the
    same events.

    ``row`` names the formula's row in docs/sources.md, for example "S0.3". ``value`` is None if the formula does not
    apply to this kernel.
    """

    row: str
    what: str
    text: str
    value: float | None
    counted: float | None = None


@dataclass(frozen=True)
class Bound:
    """The least time that one resource allows: the time of ``amount`` units of ``unit``, at ``rate`` units a second."""

    name: str
    amount: float
    unit: str
    rate: float

    @property
    def seconds(self) -> float:
        """The least time that the resource needs, in seconds."""
        return self.amount / self.rate


@dataclass(frozen=True)
class TimePart:
    """A part of the time that a launch is predicted to take: launch, fill, steady state or epilogue. ``because`` says
    what takes this part of the time."""

    name: str
    seconds: float
    because: str = ""


@dataclass(frozen=True)
class Advice:
    """A change that would make a line cheaper, or for line 0 the whole kernel. ``unit`` names what the change reduces,
    such as wavefronts; ``before`` and ``after`` are the numbers of these units.

    ``seconds`` are the times before and after the change by the model of the GPU, or None if the model predicts no
    times. ``tried`` says what a run of the changed source showed; it is empty if the changed source was not run.
    """

    line: int
    text: str
    unit: str
    before: int
    after: int
    file: str = ""  # the included file that has the line; empty for the kernel's own
    seconds: tuple[float, float] | None = None
    tried: str = ""
    exact: bool = True  # whether ``before`` is what the GPU counts

    @property
    def with_costs(self) -> str:
        """The advice as text, with the cost before and after the change."""
        mark = "" if self.exact else f"{APPROXIMATELY} "
        return f"{self.text}: {self.unit} {mark}{self.before:,} → {self.after:,}" if self.unit else self.text

    def sentence(self, time: Callable[[float], str]) -> str:
        """Return the whole advice as one line of text; ``time`` converts seconds to text.

        >>> Advice(7, "pad the row", "wavefronts", 1024, 32, seconds=(4e-5, 3e-5)).sentence("{:.0e} s".format)
        'pad the row: wavefronts 1,024 → 32, least time 4e-05 s → 3e-05 s by the model'
        """
        parts = [self.with_costs]
        if self.seconds:
            before, after = self.seconds
            less = after < NO_LESS * before
            parts.append(
                f"least time {time(before)} → {time(after)} by the model" if less else "no less time by the model"
            )
        return ", ".join(parts) + (f"; {self.tried}" if self.tried else "")


@dataclass(frozen=True)
class Defect:
    """A defect that the microscope found.

    ``block`` and ``thread`` are the first block and thread in which the defect occurred.
    """

    kind: str
    line: int
    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    text: str
    file: str = ""  # the included file that has the line; empty for the kernel's own
    grade: str = "sure"  # one of GRADES of simulator.findings

    @property
    def place(self) -> str:
        """The source line as text for a sentence, with the file if it is an included one."""
        return f"{self.file}:{self.line}" if self.file else f"line {self.line}"


@dataclass(frozen=True)
class Explanation:
    """The explanation of a kernel at one size on one GPU: how it uses memory, what limits it, and the least time that
    it can take.

    The dicts have these keys:

    - ``about`` has the keys idea, parent, row (of docs/sources.md) and order (in the ladder).
    - ``gpu`` has the keys name, compute_capability, sms, clock_mhz, peak_gflops and bandwidth_gbs.
    - ``launch`` has the keys grid, block, blocks, threads and shared_bytes.
    - ``resources`` has the keys registers, local_bytes, shared_bytes (static) and max_threads.
    - ``occupancy`` has the keys blocks, warps, max_warps, fraction, limiting and limits (by resource). ``occupancy``
      also has by_registers and by_shared, which are lists of pairs: registers or bytes, and resident warps.
    - ``counters`` has a count for each counter, under the hardware's name of the counter.
    - ``run`` has the keys blocks_run, blocks_total, complete, exact, words (which blocks were counted) and seconds.
    - ``verified`` has the keys ok (None if the result was not checked), reason, error_over_bound, of (what was
      compared), and at (the size at which the result is wrong, if it is not the size of this explanation).
    - ``measured`` has the keys counters, by_line, environment and verified; it is None if the kernel was not measured
      on a GPU.
    - ``included`` has the text of each included file in which there are accesses or defects.

    ``printed`` is what the kernel's threads printed. ``approximate`` lists the ``counters`` that are not exact.
    ``pipeline`` is what one block did at its mbarriers; it is None if the kernel has no mbarriers. ``predicted`` has
    the parts of the predicted time of a pipelined kernel. ``predicted`` is empty for other kernels, and if the rates of
    the GPU were not measured. ``advice`` has the changes that would make lines cheaper.
    """

    kernel: str
    file: str
    source: str
    m: int
    n: int
    k: int
    dtype: str
    params: dict[str, int]
    about: dict[str, Any]
    gpu: dict[str, Any]
    launch: dict[str, Any]
    resources: dict[str, Any]
    occupancy: dict[str, Any]
    accesses: list[Access]
    counters: dict[str, int]
    formulas: list[Formula]
    bounds: list[Bound]
    defects: list[Defect]
    verified: dict[str, Any]
    run: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    measured: dict[str, Any] | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    included: dict[str, str] = field(default_factory=dict)
    printed: str = ""
    approximate: list[str] = field(default_factory=list)
    pipeline: Pipeline | None = None
    predicted: list[TimePart] = field(default_factory=list)
    advice: list[Advice] = field(default_factory=list)
    schema: int = SCHEMA
    kind: str = KIND

    @property
    def is_product(self) -> bool:
        """Whether the kernel multiplies matrices. For a kernel that does not multiply matrices, m, n and k are 0."""
        return self.m > 0

    @property
    def name(self) -> str:
        """The name that identifies the kernel on a page.

        The name of a product is the kernel's name, or the file with its folder if two files have the same name. The
        name of any other kernel has the file and the kernel's name, such as ``scale.cu::scale``.
        """
        if not self.is_product:
            return f"{self.file}::{self.kernel}"
        return self.file if "/" in self.file else self.kernel

    @property
    def shape(self) -> str:
        """The shape as text, such as ``1000`` for a square product and ``6x2000x4`` (m × n × k) for another. For a
        kernel that is not a product, the text describes the launch, such as ``8 blocks of 256 threads``.
        """
        if not self.is_product:
            return f"{self.launch.get('blocks')} blocks of {self.launch.get('threads')} threads"
        return str(self.n) if self.m == self.n == self.k else f"{self.m}x{self.n}x{self.k}"

    @property
    def flops(self) -> int:
        """The number of operations of the product, which is 2·m·n·k for every algorithm."""
        return 2 * self.m * self.n * self.k

    @property
    def bound(self) -> Bound | None:
        """The bound of the resource that needs the most time, which limits the kernel; None if the GPU's rates are not
        known."""
        return max(self.bounds, key=lambda bound: bound.seconds, default=None)

    @property
    def predicted_seconds(self) -> float | None:
        """The time that the launch is predicted to take; None if no time is predicted, or if the prediction means
        nothing (see ``reason_without_rate``)."""
        known = self.predicted and not self.reason_without_rate
        return sum(part.seconds for part in self.predicted) if known else None

    @property
    def busy_multiprocessors(self) -> tuple[int, int]:
        """The number of multiprocessors that get a block of the launch, and the number of all multiprocessors of the
        GPU."""
        sms = self.gpu.get("sms") or 0
        return min(sms, self.launch.get("blocks") or 0), sms

    @property
    def launchable(self) -> bool:
        """Whether a multiprocessor of the GPU can hold one block."""
        return self.occupancy.get("blocks") != 0

    @property
    def failed(self) -> bool:
        """Whether the kernel is known to be wrong, or cannot be launched."""
        measured_wrong = bool(self.measured) and (self.measured or {}).get("verified", {}).get("ok") is False
        return bool(self.defects) or self.verified.get("ok") is False or not self.launchable or measured_wrong

    @property
    def stopped(self) -> bool:
        """Whether the run reached its limit of steps, so that its result was not verified."""
        return self.run.get("complete") is False and self.verified.get("ok") is None

    @property
    def reason_without_rate(self) -> str:
        """The reason why the kernel has no meaningful rate; empty if the rate of ``bound`` is valid."""
        if not self.launchable:
            names = {"shared": "shared memory"}
            limiting = " and ".join(names.get(name, name) for name in self.occupancy.get("limiting", []))
            return f"it cannot be launched on this card: a block needs too much of {limiting}"
        if self.run.get("complete") is False:
            return "its run was stopped before the end"
        at = f" at {self.verified['at']}" if self.verified.get("at") else ""
        return f"its result is wrong{at}" if self.verified.get("ok") is False else ""

    @property
    def gflops(self) -> float | None:
        """The rate in GFLOPS that the bound allows; None if the rate is not known or not meaningful (see
        ``reason_without_rate``)."""
        bound = None if self.reason_without_rate else self.bound
        return self.flops / bound.seconds / 1e9 if bound and bound.seconds else None

    def at(self, line: int) -> list[Access]:
        """Return the accesses of a line of the kernel's own file."""
        return [access for access in self.accesses if access.line == line and not access.file]

    @property
    def advised(self) -> list[tuple[str, int, str]]:
        """The file, the line and the text with costs of each advice that applies to a line."""
        return [(each.file, each.line, each.with_costs) for each in self.advice if each.line]

    def as_dict(self) -> dict[str, Any]:
        """Return the explanation as the JSON object that is written to a file."""
        return asdict(self)


# ---- files -----------------------------------------------------------------------------------------------------------

_NESTED = {"accesses": Access, "formulas": Formula, "bounds": Bound, "defects": Defect}
#: Lists of objects that files of earlier versions do not have.
_LATER = {"predicted": TimePart, "advice": Advice}


def from_dict(data: Any, where: str) -> Explanation:
    """Make an explanation from its parsed JSON; ``where`` names the file.

    Raises RecordError if the JSON data are no explanation.
    """
    if not isinstance(data, dict) or data.get("kind") != KIND:
        actual = data.get("kind") if isinstance(data, dict) else data
        raise RecordError(f"{where}: kind must be {KIND!r}, got {value_excerpt(actual)}")
    if data.get("schema") != SCHEMA:
        raise RecordError(f"{where}: schema must be {SCHEMA}, got {value_excerpt(data.get('schema'))}")
    check_explanation(data, where)
    try:
        lists = {name: data.get(name, []) if name in _LATER else data[name] for name in (*_NESTED, *_LATER)}
        nested = {
            name: [_with_known_fields(cls, item) for item in lists[name]] for name, cls in (_NESTED | _LATER).items()
        }
        pipeline = pipeline_from(data["pipeline"]) if data.get("pipeline") else None
        return _with_known_fields(Explanation, data | nested | {"pipeline": pipeline})
    except (TypeError, KeyError) as error:
        raise RecordError(f"{where}: is an incomplete explanation: {error}") from None


def _with_known_fields(cls: Any, data: dict[str, Any]) -> Any:
    """An object of the dataclass ``cls``; fields that it does not have, as of a later version, are ignored."""
    names = {f.name for f in fields(cls)}
    return cls(**{key: value for key, value in data.items() if key in names})


def read_explanations(path: str | Path) -> list[Explanation]:
    """Read every explanation of a file, which holds one JSON object or a list of them.

    Raises RecordError for a file without explanations, and for a field that breaks its rule, which the error names.
    """
    data = parse_json(read_text(path, "an explanation"), str(path), "explanation")
    several = isinstance(data, list)
    explanations = [
        from_dict(item, f"{path}, explanation {i}" if several else str(path))
        for i, item in enumerate(data if several else [data], 1)
    ]
    if not explanations:
        raise RecordError(f"{path}: holds no explanation")
    return explanations


def holds_explanations(path: str | Path) -> bool:
    """Return whether a file holds explanations and not bench records; False if the file cannot be read."""
    try:
        data = parse_json(read_text(path, "an explanation"), str(path), "explanation")
    except RecordError:
        return False
    first = data[0] if isinstance(data, list) and data else data
    return isinstance(first, dict) and first.get("kind") == KIND


def to_json(explanations: Iterable[Explanation]) -> str:
    """Convert explanations to JSON: one explanation becomes an object, several become a list. Raises ValueError for
    infinities, which JSON does not have."""
    items = [explanation.as_dict() for explanation in explanations]
    return dumped(items[0] if len(items) == 1 else items, indent=1) + "\n"


# ---- explanation rules -----------------------------------------------------------------------------------------------
# The rules that each field must satisfy when an explanation is read from a file.


#: The most bytes that one lane may move: pictures draw every word of them. The widest instruction has 32.
_WIDEST = 128

_COUNT_OR_NULL, _NUMBER_OR_NULL, _TEXT_OR_NULL = nullable(COUNT), nullable(NUMBER), nullable(TEXT)
_TEXTS = many("a list of texts", TEXT.holds)
_TRIPLE = many("three whole numbers", is_count, least=3, most=3)
_PAIRS = many("a list of pairs of numbers", many("", is_number, least=2, most=2).holds)

_RULES: dict[str, Rule] = {
    **dict.fromkeys(("kernel", "file", "source", "dtype", "printed"), TEXT),
    **dict.fromkeys(("m", "n", "k"), COUNT),
    **{
        "params": PLAIN_VALUES,
        "counters": NUMBERS,
        "measured": nullable(OBJECT),
        "notes": _TEXTS,
        "approximate": _TEXTS,
    },
    "pipeline": nullable(OBJECT),
    "included": mapping("an object of texts", TEXT.holds),
    **dict.fromkeys(("about", "gpu", "launch", "resources", "occupancy", "verified", "run", "environment"), OBJECT),
    **dict.fromkeys(("accesses", "formulas", "bounds", "defects", "predicted", "advice"), OBJECTS),
}

#: The rules of the objects in lists.
_ITEM_RULES: dict[str, dict[str, Rule]] = {
    "accesses": {
        **dict.fromkeys(("space", "kind", "file", "inside"), TEXT),
        **dict.fromkeys(("line", "requests", "bytes", "sectors", "wavefronts", "conflicts", "least", "origin"), COUNT),
        "nbytes": Rule(f"a whole number from 0 to {_WIDEST}", lambda x: is_count(x) and x <= _WIDEST),
        "exact": TRUTH,
        "lanes": many("a list of whole numbers and nulls, 32 at most", _COUNT_OR_NULL.holds, most=32),
    },
    "formulas": {
        **dict.fromkeys(("row", "what", "text"), TEXT),
        **dict.fromkeys(("value", "counted"), _NUMBER_OR_NULL),
    },
    "bounds": {
        **{"name": TEXT, "unit": TEXT, "amount": POSITIVE},
        "rate": Rule("a number above 0", lambda x: is_number(x) and x > 0),
    },
    "predicted": {"name": TEXT, "because": TEXT, "seconds": POSITIVE},
    "advice": {
        **dict.fromkeys(("text", "unit", "file", "tried"), TEXT),
        **dict.fromkeys(("line", "before", "after"), COUNT),
        "seconds": nullable(many("two numbers", is_number, least=2, most=2)),
        "exact": TRUTH,
    },
    "defects": {
        **dict.fromkeys(("kind", "text", "file", "grade"), TEXT),
        **{"line": COUNT, "block": _TRIPLE, "thread": _TRIPLE},
    },
}

#: The rules of the objects that are fields.
_FIELD_RULES: dict[str, dict[str, Rule]] = {
    "about": dict.fromkeys(("idea", "parent", "row"), _TEXT_OR_NULL),
    "gpu": {
        **{"name": _TEXT_OR_NULL, "compute_capability": _TEXT_OR_NULL, "sms": _COUNT_OR_NULL},
        **dict.fromkeys(("clock_mhz", "peak_gflops", "bandwidth_gbs"), nullable(POSITIVE)),
    },
    "launch": {
        **dict.fromkeys(("grid", "block"), many("a list of whole numbers, 3 at most", is_count, most=3)),
        **dict.fromkeys(("blocks", "threads", "shared_bytes"), _COUNT_OR_NULL),
    },
    "resources": dict.fromkeys(("registers", "local_bytes", "shared_bytes", "max_threads"), _COUNT_OR_NULL),
    "occupancy": {
        **dict.fromkeys(("blocks", "warps", "max_warps"), _COUNT_OR_NULL),
        "limiting": _TEXTS,
        "limits": mapping("an object of whole numbers and nulls", _COUNT_OR_NULL.holds),
        **dict.fromkeys(("by_registers", "by_shared"), _PAIRS),
    },
    "verified": {
        **{"ok": nullable(TRUTH), "reason": _TEXT_OR_NULL, "of": _TEXT_OR_NULL, "at": _TEXT_OR_NULL},
        "error_over_bound": nullable(POSITIVE),
    },
    "run": {"complete": TRUTH, "exact": TRUTH, "words": TEXT, "seconds": nullable(POSITIVE)},
    "measured": {"counters": NUMBERS, "by_line": OBJECT, "environment": OBJECT, "verified": OBJECT},
}


def check_explanation(data: Mapping[str, Any], where: str) -> None:
    """Raise RecordError for the first field of an explanation that breaks its rule; ``where`` names the file."""
    check_fields(data, _RULES, where)
    for name, rules in _FIELD_RULES.items():
        check_fields(data.get(name) or {}, rules, where, f"{name}.")
    check_pipeline(data.get("pipeline") or {}, where, "pipeline.")
    for name, rules in _ITEM_RULES.items():
        for number, item in enumerate(data.get(name, ())):
            check_fields(item, rules, where, f"{name}[{number}].")
    for number, access in enumerate(data.get("accesses", ())):
        if access.get("lanes") and not access.get("nbytes", 1):
            raise RecordError(f"{where}: accesses[{number}].nbytes must be 1 or more where lanes have addresses, got 0")
