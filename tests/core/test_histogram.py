"""Percentiles from buckets, compared with the sorted data."""

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horsies_django.core.histogram import MAX_ERROR, MIN_SECONDS, bucket_of, bucket_seconds, merge, percentile

seconds = st.floats(0, 10_000_000)

#: Hypothesis limits no times: the machine may be busy.
without_time_limits = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.slow
@without_time_limits
@given(st.lists(seconds, min_size=1, max_size=200), st.floats(0.01, 1))
def test_a_percentile_is_within_the_promised_error(values, share):
    histogram = merge([{str(bucket_of(value)): 1} for value in values])

    exact = sorted(values)[max(1, math.ceil(share * len(values))) - 1]

    found = percentile(histogram, share)
    assert found <= max(exact * MAX_ERROR * 1.000_001, MIN_SECONDS)
    assert found >= exact / MAX_ERROR / 1.000_001


@pytest.mark.slow
@without_time_limits
@given(st.lists(st.dictionaries(st.integers(0, 90).map(str), st.integers(1, 1000)), max_size=5))
def test_merged_histograms_keep_the_total_count(histograms):
    assert sum(merge(histograms).values()) == sum(sum(one.values()) for one in histograms)


@without_time_limits
@given(seconds, seconds)
def test_a_longer_duration_is_never_in_a_lower_bucket(first, second):
    low, high = sorted([first, second])

    assert bucket_of(low) <= bucket_of(high)
    assert bucket_seconds(bucket_of(low)) <= bucket_seconds(bucket_of(high))


def test_an_empty_histogram_has_no_percentile():
    assert percentile({}, 0.5) is None
