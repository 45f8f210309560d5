"""What explanations say in figures: the comparison of several, the bounds, and the facts of launch, resources and GPU."""

from __future__ import annotations

from typing import Any

from ..records.explanation import Explanation
from .environment import Item, items
from .explain_findings import RESOURCES, shape_words
from .source_view import turns, waste
from .words import digits, duration, finite, shortly, with_noun


def totals_row(e: Explanation) -> dict[str, Any]:
    """A row of the comparison: sums over all accesses, and what each multiply-add costs of them."""
    sectors, wavefronts = sum(a.sectors for a in e.accesses), sum(a.wavefronts for a in e.accesses)
    steps = e.m * e.n * e.k
    warps, most = finite(e.occupancy.get("warps")), finite(e.occupancy.get("max_warps"))
    used = sum(map(turns, e.accesses))
    return {
        "shape": shape_words(e),
        "sectors": f"{sectors:,}",
        "sectors_each": shortly(sectors / steps) if steps else "",
        "wavefronts": f"{wavefronts:,}",
        "wavefronts_each": shortly(wavefronts / steps) if steps else "",
        "wasted": f"{sum(map(waste, e.accesses)) / used:.0%}" if used else "–",
        "bound": "–" if e.unrated else e.bound.name if e.bound else "not known",
        "gflops": finite(e.gflops),
        "rate": digits(e.gflops) if finite(e.gflops) and e.gflops else "–",
        "occupancy": f"{warps / most:.0%}" if warps is not None and most else "–",
        "wrong": _wrong(e),
    }


def _wrong(e: Explanation) -> str:
    """What is wrong, in a few words; empty where nothing is."""
    words = [with_noun(len(e.defects), "defect")] if e.defects else []
    if e.verified.get("ok") is False:
        words.append("wrong result")
    if e.run.get("complete") is False:
        words.append("stopped")
    return ", ".join([*words, *([] if e.launchable else ["cannot be launched"])])


def bars(e: Explanation) -> list[dict[str, Any]]:
    """Every bound by falling time, with its length in percent of the longest; empty where no time is predicted."""
    ordered = sorted([] if e.unrated else e.bounds, key=lambda bound: -bound.seconds)
    longest = ordered[0].seconds if ordered else 0
    return [
        {
            "name": bound.name,
            "time": duration(bound.seconds),
            "rate": f"{digits(e.flops / bound.seconds / 1e9)} GFLOPS" if bound.seconds else "",
            "words": f"{shortly(bound.amount)} {bound.unit} at {_rate(bound.rate, bound.unit)}",
            "width": round(100 * bound.seconds / longest, 2) if longest else 0,
        }
        for bound in ordered
    ]


def predicted(e: Explanation) -> list[dict[str, Any]]:
    """The parts of the predicted time in their order, with their share in percent; empty where none is predicted."""
    whole = e.predicted_seconds
    return [
        {
            "name": part.name,
            "time": duration(part.seconds),
            "words": part.because,
            "width": round(100 * part.seconds / whole, 2),
        }
        for part in (e.predicted if whole else ())
        if whole
    ]


def _rate(rate: float, unit: str) -> str:
    """A rate with its unit.

    >>> _rate(4.8e12, "bytes"), _rate(2.6136e11, "turns"), _rate(6.69e13, "operations")
    ('4,800 GB/s', '261 billion a second', '66,900 GFLOPS')
    """
    if unit == "bytes":
        return f"{shortly(rate / 1e9)} GB/s"
    return f"{shortly(rate / 1e9)} " + ("GFLOPS" if unit == "operations" else "billion a second")


#: Environment keys that say how the explanation was made; the others describe the machine.
_MADE = ("command", "compiler", "arch", "tilewright", "git", "time", "operands")


def facts(e: Explanation) -> list[tuple[str, tuple[Item, ...]]]:
    """Launch, resources, GPU and how this was made, as headed lists of facts; what is not known is left out."""
    measured = (e.measured or {}).get("environment") or {}
    made = {key: e.environment[key] for key in _MADE if key in e.environment}
    listed = [
        ("Launch", _launch(e)),
        ("Resources", _resources(e)),
        ("GPU", _gpu(e)),
        ("How this was made", {**made, "simulated in": _seconds(e.run.get("seconds"))}),
        ("What it was measured on", measured if isinstance(measured, dict) else {}),
        ("What it was simulated on", {k: v for k, v in e.environment.items() if k not in _MADE}),
    ]
    return [(head, found) for head, values in listed if (found := items(values))]


def _launch(e: Explanation) -> dict[str, Any]:
    blocks, threads = _counted(e.launch.get("blocks"), "block"), _counted(e.launch.get("threads"), "thread")
    return {
        "grid": _extent(e.launch.get("grid"), "blocks"),
        "block": _extent(e.launch.get("block"), "threads"),
        "in all": f"{blocks} of {threads}" if blocks and threads else "",
        "dynamic shared memory": _counted(e.launch.get("shared_bytes"), "byte", " a block"),
        "parameters": ", ".join(f"{name} = {value}" for name, value in e.params.items()),
        "dtype": e.dtype,
    }


def _resources(e: Explanation) -> dict[str, Any]:
    resources = e.resources
    return {
        "registers": _counted(resources.get("registers"), "register", " a thread"),
        "static shared memory": _counted(resources.get("shared_bytes"), "byte", " a block"),
        "local memory": _counted(resources.get("local_bytes"), "byte", " a thread"),
        "largest block": _counted(resources.get("max_threads"), "thread"),
    }


def _gpu(e: Explanation) -> dict[str, Any]:
    peak, bandwidth, clock = (finite(e.gpu.get(key)) for key in ("peak_gflops", "bandwidth_gbs", "clock_mhz"))
    return {
        "name": e.gpu.get("name"),
        "compute capability": e.gpu.get("compute_capability"),
        "multiprocessors": e.gpu.get("sms"),
        "clock": f"{clock:,.0f} MHz" if clock else "",
        "arithmetic": f"{peak:,.0f} GFLOPS of {e.dtype}" if peak else "",
        "device memory": f"{bandwidth:,.0f} GB/s" if bandwidth else "",
    }


def _extent(sizes: Any, noun: str) -> str:
    return f"{' × '.join(map(str, sizes))} {noun}" if sizes else ""


def _counted(value: Any, noun: str, of: str = "") -> str:
    known = finite(value)
    return "" if known is None else with_noun(int(known), noun) + of


def _seconds(value: Any) -> str:
    known = finite(value)
    return duration(known) if known else ""


def occupancy_limits(e: Explanation) -> list[dict[str, Any]]:
    """Blocks that each resource alone would allow, and whether it is the one that limits."""
    limiting = e.occupancy.get("limiting") or []
    return [
        {
            "name": RESOURCES.get(name, str(name)),
            "words": "not used" if finite(value) is None else with_noun(int(value), "block"),
            "limits": name in limiting,
        }
        for name, value in (e.occupancy.get("limits") or {}).items()
    ]
