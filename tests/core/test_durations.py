"""Durations, formatted for people."""

import doctest

import pytest

from horsies_django.core import numbers


def test_the_docstring_examples_of_numbers_and_durations_hold():
    result = doctest.testmod(numbers)

    assert result.attempted
    assert not result.failed


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (-3, "0 ms"),
        (0.9994, "999 ms"),
        (9.96, "9.9 s"),
        (59.9, "59 s"),
        (60, "1 min 0 s"),
        (7_500, "2 h 5 min"),
        (273_600, "3 d 4 h"),
        (3.2, "3.2 s"),
        (86_399, "23 h 59 min"),
    ],
)
def test_a_duration_is_formatted_in_its_two_largest_units(seconds, text):
    assert numbers.format_duration(seconds) == text
