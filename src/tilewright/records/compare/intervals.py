"""Confidence intervals that assume no distribution: order statistics of quotients, exact for any number of samples.

Hodges and Lehmann, Estimates of location based on rank tests, 1963; the coverage comes from the exact distribution of
Mann and Whitney's statistic.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence

#: Wanted coverage. Too few samples cannot reach it: four against four give 97.1 % at most.
CONFIDENCE = 0.99


def ratio_interval(
    before: Sequence[float], after: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float, float]:
    """(low, high, coverage) of the factor by which ``after`` exceeds ``before``, both of positive numbers.

    Exact for independent samples of any distribution, if the two distributions differ by a factor alone. The coverage is
    at least ``confidence``. With too few samples for that, the interval is the widest possible, from the smallest to the
    largest quotient, and its coverage is smaller.

    >>> low, high, coverage = ratio_interval([1.0, 1.1, 1.2, 1.3], [2.0, 2.2, 2.4, 2.6])
    >>> round(low, 2), round(high, 2), round(coverage, 3)
    (1.54, 2.6, 0.971)
    """
    quotients = sorted(b / a for a in before for b in after)
    drop, coverage = _quotients_to_drop(*sorted((len(before), len(after))), confidence)
    return quotients[drop], quotients[-1 - drop], coverage


@functools.lru_cache(maxsize=256)
def _quotients_to_drop(n: int, m: int, confidence: float) -> tuple[int, float]:
    """How many of the n·m sorted quotients to leave off at each end, and the coverage that remains."""
    if n * m > 1600:  # with more samples than 40 against 40 the normal distribution is exact enough
        sigma = math.sqrt(n * m * (n + m + 1) / 12)
        z = statistics.NormalDist().inv_cdf((1 + confidence) / 2)
        return max(0, math.floor(n * m / 2 - z * sigma) - 1), confidence
    counts = _mann_whitney_counts(n, m)
    total = math.comb(n + m, n)
    drop, outside = 0, counts[0]
    while 2 * (outside + counts[drop + 1]) <= (1 - confidence) * total:
        drop += 1
        outside += counts[drop]
    return drop, 1 - 2 * outside / total


def _mann_whitney_counts(n: int, m: int) -> list[int]:
    """For u = 0 … n·m: the number of orderings of n and m samples in which u pairs are in reverse order.

    They are the coefficients of the Gaussian binomial, the product over i of (1 − q^(n+i)) / (1 − q^i).
    """
    counts = [1] + [0] * (n * m)
    for i in range(1, m + 1):
        for u in range(n * m, n + i - 1, -1):
            counts[u] -= counts[u - n - i]
        for u in range(i, n * m + 1):
            counts[u] += counts[u - i]
    return counts
