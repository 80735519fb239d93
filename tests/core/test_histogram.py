"""Percentiles out of buckets, against the sorted data."""

import math

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horsies_django.core.histogram import MAX_ERROR, MIN_SECONDS, bucket_of, bucket_seconds, merge, percentile

seconds = st.floats(0, 10_000_000)

#: How long it takes is nobody's concern here, and the machine may be busy.
at_leisure = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@at_leisure
@given(st.lists(seconds, min_size=1, max_size=200), st.floats(0.01, 1))
def test_a_percentile_is_within_the_promised_error(values, share):
    histogram = merge([{str(bucket_of(value)): 1} for value in values])

    exact = sorted(values)[max(1, math.ceil(share * len(values))) - 1]

    found = percentile(histogram, share)
    assert found <= max(exact * MAX_ERROR * 1.000_001, MIN_SECONDS)
    assert found >= exact / MAX_ERROR / 1.000_001


@at_leisure
@given(st.lists(st.dictionaries(st.integers(0, 90).map(str), st.integers(1, 1000)), max_size=5))
def test_histograms_add_up(histograms):
    assert sum(merge(histograms).values()) == sum(sum(one.values()) for one in histograms)


@at_leisure
@given(seconds, seconds)
def test_more_seconds_are_in_no_lower_bucket(first, second):
    low, high = sorted([first, second])

    assert bucket_of(low) <= bucket_of(high)
    assert bucket_seconds(bucket_of(low)) <= bucket_seconds(bucket_of(high))


def test_of_nothing_there_is_no_percentile():
    assert percentile({}, 0.5) is None
