"""What the page of accuracy says in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from ..accuracy import GRADES, AccuracyGrade, MeasuredAccuracy
from .words import digits, sentence_list

_Products = Sequence[MeasuredAccuracy]


def distribution_text(name: str) -> str:
    """
    >>> distribution_text("graded_rows"), distribution_text("graded:60"), distribution_text("lognormal:4")
    ('graded rows', 'graded, 60 binades', 'lognormal, σ = 4')
    """
    what, _, number = name.replace("_", " ").partition(":")
    if not number:
        return what
    return f"{what}, {number} binades" if what == "graded" else f"{what}, σ = {number}"


def path_text(path: str) -> str:
    """A path's name without a comma, so that it can stand in a list.

    >>> path_text('tilewright, "highest"')
    'tilewright "highest"'
    """
    return path.replace(", ", " ")


def number_text(value: float) -> str:
    """Three digits; as a power of ten where that is shorter.

    >>> [number_text(value) for value in (0.0641, 1024.0, 1.9e12, 4.46e-5)]
    ['0.0641', '1,024', '1.9e12', '4.5e-5']
    """
    if 1e-3 <= value < 1e6 or not value:
        return digits(value)
    mantissa, _, power = f"{value:.1e}".partition("e")
    return f"{mantissa}e{int(power)}"


def grades_sentence(grades: Sequence[AccuracyGrade]) -> str:
    """Which path has which grade."""
    of = {letter: [each.path for each in grades if each.grade == letter] for letter in GRADES}
    said = [f"Grade {letter}: {sentence_list(of[letter])}" for letter in GRADES[:3] if of[letter]]
    if of["–"]:
        said.append(f"no grade: {sentence_list(of['–'])}")
    return "; ".join(said) + "." if said else ""


def size_sentence(products: _Products) -> str:
    """The errors of the largest products, beside the classical bound and those of the smallest ones."""
    known = [each for each in products if each.componentwise is not None]
    if not known:
        return ""
    first, last = min(each.n for each in known), max(each.n for each in known)
    largest = sorted((each for each in known if each.n == last), key=_error)
    best, worst = largest[0], largest[-1]
    bound = max(each.k for each in largest)
    low, high = number_text(_error(best)), number_text(_error(worst))
    text = f"At n = {last:,} the largest errors are from {low} u ({best.path}) to {high} u ({worst.path})"
    above = [each.path for each in largest if _error(each) > bound] or ["no path"]
    text += f"; the classical bound is {bound:,} u, and {sentence_list(above)} {_are(above)} above it."
    before = next((each for each in known if each.n == first and each.path == worst.path), worst)
    if before.n == last or not before.componentwise:
        return text
    grown = _error(worst) / before.componentwise
    how = (
        f"grows by a factor of {number_text(grown)}" if grown >= 1 else f"falls by a factor of {number_text(1 / grown)}"
    )
    return f"{text} From n = {first:,} on, the error of {worst.path} {how}."


def span_sentence(products: _Products) -> str:
    """Which paths keep the classical bound at every span, and from which span on the others do not."""
    widest = max((each.binades or 0 for each in products), default=0)
    keep, lose = _kept(products)
    said = [f"{sentence_list(keep)} {_keeps(keep)} the classical bound up to {widest} binades"] if keep else []
    above: dict[str, list[str]] = {}
    for path in lose:
        first = min(each.binades or 0 for each in products if each.path == path and not keeps_bound(each))
        above.setdefault(f"from {first} binades on" if first else "at every span", []).append(path)
    said += [f"{sentence_list(paths)} {_are(paths)} above it {where}" for where, paths in above.items()]
    return "; ".join(said) + "." if said else ""


def distribution_sentence(products: _Products) -> str:
    """Which paths keep the classical bound for all operands, and for which operands the others do not."""
    keep, lose = _kept(products)
    count = len({each.distribution for each in products})
    said = (
        [f"{sentence_list(keep)} {_keeps(keep)} the classical bound on all {count} kinds of operands"] if keep else []
    )
    above: dict[str, list[str]] = {}
    for path in lose:
        wrong = [each for each in products if each.path == path and not keeps_bound(each)]
        names = sentence_list([distribution_text(each.distribution).replace(",", " with") for each in wrong])
        above.setdefault("all of them" if len(wrong) == count else names, []).append(path)
    said += [f"{sentence_list(paths)} {_are(paths)} above it on {where}" for where, paths in above.items()]
    return "; ".join(said) + "." if said else ""


def keeps_bound(each: MeasuredAccuracy) -> bool:
    """Whether no element is farther off than k·u·(|A||B|), and infinities and NaN are where they belong."""
    return each.as_ieee and each.componentwise is not None and each.componentwise <= each.k


def _kept(products: _Products) -> tuple[list[str], list[str]]:
    """The paths that keep the classical bound in all products, and the others."""
    lose = dict.fromkeys(each.path for each in products if not keeps_bound(each))
    return [path for path in dict.fromkeys(each.path for each in products) if path not in lose], list(lose)


def _keeps(paths: Sequence[str]) -> str:
    return "keeps" if len(paths) == 1 else "keep"


def _are(paths: Sequence[str]) -> str:
    return "is" if len(paths) == 1 else "are"


def _error(each: MeasuredAccuracy) -> float:
    return each.componentwise or 0.0
