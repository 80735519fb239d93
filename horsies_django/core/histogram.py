"""Histograms of seconds: counts in a few dozen buckets, which can be added over any period.

Each bucket is √2 times as wide as the one before; bucket 0 holds durations up to a millisecond. A bucket counts as its
geometric middle, so a percentile is right to within 19 % or a millisecond.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from django.db.models import Case, Expression, FloatField, IntegerField, Value, When
from django.db.models.functions import Cast, Ceil, Ln
from django.db.models.lookups import GreaterThan, IsNull

#: Buckets per doubling of the duration.
BUCKETS_PER_DOUBLING: Final = 2

#: The upper end of bucket 0, in seconds.
MIN_SECONDS: Final = 0.001

#: The upper ends, in seconds, of the buckets of a histogram in metrics, from 4 ms to 70 minutes. Each is the end of a
#: bucket here too, so no count is interpolated. There are few because each is a series of each task.
BOUNDS: Final = tuple(MIN_SECONDS * 2**power for power in (2, 4, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20, 22))

#: The largest error of a percentile, as a factor.
MAX_ERROR: Final = 2 ** (1 / (2 * BUCKETS_PER_DOUBLING))


def bucket_of(seconds: float) -> int:
    """Return the number of the bucket for a duration in seconds."""
    return 0 if seconds <= MIN_SECONDS else math.ceil(BUCKETS_PER_DOUBLING * math.log2(seconds / MIN_SECONDS))


def bucket_expression(seconds: Expression) -> Case:
    """Return :func:`bucket_of` as an SQL expression; NULL is in no bucket."""
    number = Ceil(Value(BUCKETS_PER_DOUBLING / math.log(2)) * Ln(seconds / Value(MIN_SECONDS)))
    return Case(
        When(GreaterThan(seconds, MIN_SECONDS), then=Cast(number, IntegerField())),
        When(IsNull(seconds, False), then=Value(0)),
        output_field=IntegerField(),
    )


def seconds_expression(seconds: Expression) -> Case:
    """Return the seconds as an SQL expression: NULL if they are NULL, and 0 if they are negative."""
    return Case(
        When(GreaterThan(seconds, 0.0), then=seconds),
        When(IsNull(seconds, False), then=Value(0.0)),
        output_field=FloatField(),
    )


def counts_up_to(histogram: Mapping[int, int]) -> list[int]:
    """Return how many durations are at most each of ``BOUNDS``."""
    ends = (BUCKETS_PER_DOUBLING * round(math.log2(bound / MIN_SECONDS)) for bound in BOUNDS)
    return [sum(count for bucket, count in histogram.items() if bucket <= end) for end in ends]


def bucket_seconds(bucket: int) -> float:
    """Return the geometric middle of a bucket, in seconds."""
    return MIN_SECONDS if bucket <= 0 else MIN_SECONDS * 2 ** ((bucket - 0.5) / BUCKETS_PER_DOUBLING)


def merge(histograms: Iterable[Mapping[str, int]]) -> Counter[int]:
    """Add up stored histograms, whose keys are texts."""
    total: Counter[int] = Counter()
    for histogram in histograms:
        for bucket, count in histogram.items():
            total[int(bucket)] += count
    return total


def percentile(histogram: Mapping[int, int], share: float) -> float | None:
    """Return the ``share`` quantile (0 to 1) in seconds; None for an empty histogram."""
    total = sum(histogram.values())
    if not total:
        return None
    wanted, seen = max(1, math.ceil(share * total)), 0
    for bucket in sorted(histogram):
        seen += histogram[bucket]
        if seen >= wanted:
            return bucket_seconds(bucket)
    raise AssertionError("unreachable: the counts add up to the total")
