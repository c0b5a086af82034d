"""Medians, spreads, and intervals for ratios of calls that were timed in turn."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

RESAMPLES: Final = 2000
CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of paired ratios, and the interval that holds it with 95 % confidence."""

    median: float
    low: float
    high: float


def median(values: Sequence[float]) -> float:
    """The middle one, or the mean of the two in the middle."""
    return statistics.median(values)


def spread(values: Sequence[float]) -> float:
    """The distance between the quartiles as a part of the median; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle


def paired_ratio(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """The ratio `above / below`, round by round, with a percentile bootstrap interval.

    Pairing removes what both met alike, such as a slower clock. Bootstrap after Efron, "Bootstrap
    methods: another look at the jackknife" (1979): rounds are drawn again with replacement, from a
    generator that starts alike in every run. ValueError where there is nothing to compare.
    """
    ratios = np.array([a / b for a, b in zip(above, below, strict=True)])
    if not len(ratios):
        raise ValueError("a ratio needs at least one round in which both were timed")
    generator = np.random.default_rng(0)
    drawn = generator.integers(0, len(ratios), (RESAMPLES, len(ratios)))
    medians = np.median(ratios[drawn], axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(medians, (tail, 1 - tail))
    return Ratio(float(np.median(ratios)), float(low), float(high))


def geometric_mean(values: Sequence[float]) -> float:
    """The n-th root of the product of positive numbers; NaN for none."""
    if not values:
        return math.nan
    return math.exp(sum(math.log(value) for value in values) / len(values))


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The slope of log(time) over log(size) by least squares: 1 where cost is proportional.

    ValueError for fewer than two different sizes.
    """
    x, y = np.log(np.asarray(sizes, float)), np.log(np.asarray(times, float))
    if len(set(sizes)) < 2:
        raise ValueError("an exponent needs at least two sizes")
    x = x - x.mean()
    return float((x * (y - y.mean())).sum() / (x * x).sum())
