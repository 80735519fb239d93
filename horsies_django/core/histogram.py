"""Histograms of seconds: how many fell into each of a few dozen buckets, which add up over any time.

A bucket is √2 times as wide as the one before; number 0 holds what took a millisecond or less. What is said of a bucket
is its middle, so a percentile is right to 19 %, or to a millisecond.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from django.db.models import Case, Expression, IntegerField, Value, When
from django.db.models.functions import Cast, Ceil, Ln
from django.db.models.lookups import GreaterThan, IsNull

#: Buckets for each doubling.
BUCKETS_PER_DOUBLING: Final = 2

#: The upper end of bucket 0, in seconds.
MIN_SECONDS: Final = 0.001

#: Seconds that nothing takes: what seems to is in no bucket, an infinite time or NaN neither.
MAX_SECONDS: Final = 1e12

#: By how much a percentile may be off, as a factor.
MAX_ERROR: Final = 2 ** (1 / (2 * BUCKETS_PER_DOUBLING))


def bucket_of(seconds: float) -> int:
    """Return the number of the bucket that these seconds belong to."""
    return (
        0
        if seconds <= MIN_SECONDS
        else max(0, math.ceil(BUCKETS_PER_DOUBLING * math.log2(min(seconds, MAX_SECONDS) / MIN_SECONDS)))
    )


def bucket_expression(seconds: Expression) -> Case:
    """The same as an expression. Nothing is in no bucket."""
    number = Ceil(Value(BUCKETS_PER_DOUBLING / math.log(2)) * Ln(seconds / Value(MIN_SECONDS)))
    return Case(
        When(GreaterThan(seconds, MAX_SECONDS), then=Value(None)),
        When(GreaterThan(seconds, MIN_SECONDS), then=Cast(number, IntegerField())),
        When(IsNull(seconds, False), then=Value(0)),
        output_field=IntegerField(),
    )


def bucket_seconds(bucket: int) -> float:
    """Return what is said of what is in a bucket, in seconds: its middle, as ratios go."""
    return MIN_SECONDS if bucket <= 0 else MIN_SECONDS * 2 ** ((bucket - 0.5) / BUCKETS_PER_DOUBLING)


def merge(histograms: Iterable[Mapping[str, int]]) -> Counter[int]:
    """Add up histograms as they are stored, with texts for numbers."""
    total: Counter[int] = Counter()
    for histogram in histograms:
        for bucket, count in histogram.items():
            total[int(bucket)] += count
    return total


def percentile(histogram: Mapping[int, int], share: float) -> float | None:
    """Return the seconds within which ``share`` of all, between 0 and 1, were done; None if there were none."""
    total = sum(histogram.values())
    if not total:
        return None
    wanted, seen = max(1, math.ceil(share * total)), 0
    for bucket in sorted(histogram):
        seen += histogram[bucket]
        if seen >= wanted:
            return bucket_seconds(bucket)
    raise AssertionError("unreachable: the counts add up to the total")
