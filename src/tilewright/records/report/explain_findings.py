"""What explanations say, in sentences: what limits a kernel, what it wastes, whether it is right, what it was run on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..explanation import Explanation
from .source_view import by_memory, waste
from .words import digits, duration, finite, shortly, small, with_noun


def gpu_name(explanation: Explanation) -> str:
    """The GPU that it is for, in words."""
    return str(explanation.gpu.get("name") or "an unnamed GPU")


def shape_words(explanation: Explanation) -> str:
    """M × N × K."""
    return explanation.shape.replace("x", " × ")


def labels(explanations: Sequence[Explanation]) -> list[str]:
    """The shortest names that differ: the kernel, then where needed its size, GPU and parameters."""

    def parts(e: Explanation) -> tuple[str, ...]:
        params = ", ".join(f"{name} {value}" for name, value in e.params.items())
        return e.kernel, f"at {shape_words(e)}", f"on {gpu_name(e)}", f"with {params}" if params else "", e.dtype

    found = [parts(e) for e in explanations]
    distinguishing = [
        0,
        *(i for i in range(1, 5) if len({p[i] for p in found}) > 1 and not _unique([p[:i] for p in found])),
    ]
    names = [" ".join(p[i] for i in distinguishing if p[i]) for p in found]
    seen: Counter[str] = Counter()
    for i, name in enumerate(names):
        seen[name] += 1
        names[i] = f"{name} ({seen[name]})" if seen[name] > 1 else name
    return names


def _unique(items: Sequence[Any]) -> bool:
    return len(set(items)) == len(items)


def explanation_title(explanations: Sequence[Explanation]) -> str:
    """The title of the page."""
    gpus = list(dict.fromkeys(map(gpu_name, explanations)))
    what = explanations[0].kernel if len(explanations) == 1 else f"{len(explanations)} kernels"
    if len(explanations) > 1 and len({e.kernel for e in explanations}) == 1:
        what = explanations[0].kernel
    return f"What limits {what} on {gpus[0] if len(gpus) == 1 else f'{len(gpus)} GPUs'}"


def headline(e: Explanation) -> str:
    """What limits the kernel, the rate that this allows, and what it wastes, in one sentence."""
    where = f"{e.kernel} at {shape_words(e)} on {gpu_name(e)}"
    bound, gflops = e.bound, finite(e.gflops)
    if not e.flops:
        return f"{where}: there is nothing to multiply."
    if e.unrated:
        return f"{where}: no rate, for {e.unrated}{_waste(e)}."
    if bound is None or not gflops:
        return f"{where}: this GPU’s rates are not known, so no time is predicted{_waste(e)}."
    peak = finite(e.gpu.get("peak_gflops"))
    share = f", {_percent(gflops / peak)} of the arithmetic" if peak and bound.unit != "operations" else ""
    rate = f"{digits(gflops)} GFLOPS ({duration(bound.seconds)}{share})"
    return f"{where}: at best {rate}, held back by {bound.name}{_waste(e)}."


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.095 else f"{share:.1%}"


def _waste(e: Explanation) -> str:
    """The line that wastes most; empty where no accesses are known."""
    if not e.accesses:
        return ""
    worst = max(by_memory(e.accesses), key=lambda access: (waste(access), access.cost - access.least))
    if not worst.cost > worst.least > 0:
        return "; no access moves more than its bytes need"
    verb = "takes" if worst.space == "shared" else "moves"
    return f"; {worst.place} {verb} {shortly(worst.cost / worst.least)} times the {worst.unit} that would do"


def comparison(explanations: Sequence[Explanation], names: Sequence[str]) -> str:
    """The headline of several kernels of one size: which has the highest predicted rate, and which the lowest."""
    rated = [(rate, e, name) for e, name in zip(explanations, names, strict=True) if (rate := finite(e.gflops))]
    if len({e.shape for _, e, _ in rated}) > 1:
        return "Of several sizes: a larger one keeps more of the card busy, so that their rates are not compared."
    if len(rated) < 2:
        return " ".join(headline(e) for e in explanations[:1])
    best, worst = max(rated, key=lambda r: r[0]), min(rated, key=lambda r: r[0])
    named = [name for _, _, name in (best, worst)]
    bounds = [e.bound.name if e.bound else "" for _, e, _ in (best, worst)]
    first = f"{named[0]} can be fastest: at best {digits(best[0])} GFLOPS, held back by {bounds[0]}."
    if best[0] == worst[0]:
        return f"{first} So are the others."
    by = "the same" if bounds[0] == bounds[1] else bounds[1]
    return (
        f"{first} That is {shortly(best[0] / worst[0])} times the {digits(worst[0])} of {named[1]}, held back by {by}."
    )


@dataclass(frozen=True)
class Verdict:
    """Whether the result is right, which defects were seen and what was run: sentences, each with whether it is bad."""

    sentences: tuple[tuple[str, bool], ...]

    @property
    def words(self) -> str:
        """All sentences."""
        return " ".join(text for text, _ in self.sentences)

    @property
    def bad(self) -> bool:
        """Whether anything is wrong."""
        return any(bad for _, bad in self.sentences)


def verdict(e: Explanation) -> Verdict:
    """Whether the kernel is right, what was seen and what was run, a sentence each."""
    kinds = Counter(defect.kind for defect in e.defects)
    wrong = e.verified.get("ok") is False
    error = finite(e.verified.get("error_over_bound"))
    reason = f": {e.verified['reason']}" if e.verified.get("reason") else ""
    if wrong:
        result = f"The result is wrong{reason}" + (f" (error {small(error)} times the bound)" if error else "")
    elif e.verified.get("ok"):
        of = f" in {e.verified['of']}" if e.verified.get("of") else ""
        result = f"The result is verified{of}" + (
            f", its error {small(error)} of the bound" if error is not None else ""
        )
    else:
        result = f"The result was not verified{reason}"
    seen = "Defects: " + ", ".join(f"{n} × {kind}" for kind, n in kinds.items()) if kinds else "No defect was seen"
    parts = ((result, wrong), (seen, bool(kinds)), (run_words(e), False))
    return Verdict(tuple((f"{text.rstrip('.')}.", bad) for text, bad in parts if text))


def run_words(e: Explanation) -> str:
    """How much of the launch was run to count it."""
    words = str(e.run.get("words") or "")
    return f"Counts are estimates: {words}" if e.run.get("exact") is False else words[:1].upper() + words[1:]


#: Resources of a multiprocessor in words.
RESOURCES = {"threads": "threads", "registers": "registers", "shared": "shared memory", "blocks": "blocks at most"}


def occupancy_sentence(e: Explanation) -> str:
    """How many warps are resident and why not more."""
    o = e.occupancy
    warps, most = finite(o.get("warps")), finite(o.get("max_warps"))
    if warps is None or not most:
        return "Not known for this GPU."
    limiting = [RESOURCES.get(name, str(name)) for name in o.get("limiting") or []]
    because = f", limited by {' and '.join(limiting)}" if limiting else ""
    if not warps:
        return f"This launch does not fit a multiprocessor{because}."
    blocks = finite(o.get("blocks")) or 0
    held = f"{with_noun(int(blocks), 'block')} on each multiprocessor"
    return f"{warps:.0f} of {most:.0f} warps are resident ({warps / most:.0%}): {held}{because}."
