"""Converts numbers to text, with three significant digits and a unit."""

from __future__ import annotations

import math
from collections.abc import Sequence

#: A product that takes less than this, in seconds, is too short to be compared (S1.2's fourth mark).
TOO_SHORT_S = 1e-5


def finite(value: float | None) -> float | None:
    """Return the value as a float, or None if it is not a finite number. Records from other programs may hold NaN or
    text.

    >>> finite(float("nan")) is None, finite(2)
    (True, 2.0)
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def digits(value: float) -> str:
    """Return a number as text with three significant digits, without an exponent, and with separated thousands.

    >>> [digits(v) for v in (0.5512, 25.53, 766.4, 12345.6, 2.0)]
    ['0.551', '25.5', '766', '12,346', '2.00']
    """
    if value == 0:
        return "0"
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    if places > 8:
        return f"{value:.2e}"
    return f"{value:,.{places}f}"


def shortly(value: float) -> str:
    """Return a number as text with at most three significant digits, without zeros at the end.

    >>> [shortly(v) for v in (32.0, 16.5, 0.3951, 7.002, 12345.0)]
    ['32', '16.5', '0.395', '7', '12,345']
    """
    text = digits(value)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def duration(seconds: float) -> str:
    """Return a time with its unit: µs below 0.1 ms, ms below 1 s, and seconds above.

    >>> [duration(t) for t in (4.2e-6, 5.5e-4, 0.0255, 5.47, 83.2)]
    ['4.20 µs', '0.550 ms', '25.5 ms', '5.47 s', '83.2 s']
    """
    if seconds < 1e-4:
        return f"{digits(seconds * 1e6)} µs"
    if seconds < 1:
        return f"{digits(seconds * 1e3)} ms"
    return f"{digits(seconds)} s"


def table_time(seconds: float) -> str:
    """Return a time as the table of kernels shows it: in ms below 1 s, and ``< 0.01 ms`` if it is too short to be
    compared.

    >>> table_time(3e-6), table_time(5e-5), table_time(10.2)
    ('< 0.01 ms', '0.050 ms', '10.2 s')
    """
    if seconds < TOO_SHORT_S:
        return "< 0.01 ms"
    return f"{seconds * 1e3:.3f} ms" if seconds < 1e-3 else duration(seconds)


def factor(gain: float) -> str:
    """Return a factor as text, with two decimals below 10 and fewer decimals above.

    >>> factor(1.082), factor(0.4), factor(23.4), factor(211.7)
    ('×1.08', '×0.40', '×23.4', '×212')
    """
    places = 2 if gain < 10 else 1 if gain < 100 else 0
    return f"×{gain:,.{places}f}" if gain >= 0.01 else f"×{gain:.1g}"


def with_noun(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number as text, with its noun in the singular or plural.

    >>> with_noun(1, "thread"), with_noun(2, "thread")
    ('1 thread', '2 threads')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def sentence_list(words: Sequence[str]) -> str:
    """Return several texts as one text that lists them in a sentence.

    >>> sentence_list(["a", "b", "c"]), sentence_list(["a"])
    ('a, b and c', 'a')
    """
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def small(value: float) -> str:
    """Return an error as text with at most two significant digits.

    >>> small(3.1e-5), small(0), small(0.21)
    ('3.1e-05', '0', '0.21')
    """
    return f"{value:.2g}"


#: References by the names that their makers gave them.
_PUBLIC = {
    "openblas": "OpenBLAS",
    "openblas_installed": "OpenBLAS installed",
    "openblas_system": "system's OpenBLAS",
    "mkl": "MKL",
    "blis": "BLIS",
    "torch": "PyTorch",
    "cublas": "cuBLAS",
}


def public_name(kernel: str) -> str:
    """Return a kernel's name for sentences and labels: a library's name, the library's call as users write it, or the
    short name of a rung.

    >>> public_name("ref/openblas"), public_name("tilewright/matmul"), public_name("cpu/ikj")
    ('OpenBLAS', 'tilewright.matmul', 'ikj')
    """
    folder, _, name = kernel.partition("/")
    if folder == "ref":
        return _PUBLIC.get(name, name)
    return f"tilewright.{name}" if folder == "tilewright" else name or kernel
