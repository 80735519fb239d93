"""Durations as people read them."""

import doctest

import pytest

from horsies_django.core import durations


def test_the_examples_give_what_they_say():
    result = doctest.testmod(durations)

    assert result.attempted
    assert not result.failed


@pytest.mark.parametrize(
    ("seconds", "words"),
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
def test_a_duration_is_told_in_its_two_largest_units(seconds, words):
    assert durations.format_duration(seconds) == words
