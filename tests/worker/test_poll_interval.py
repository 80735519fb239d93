"""When a runner that gets notifications polls beside its claims."""

from __future__ import annotations

import time

import pytest

from horsies_django.worker.poll_interval import MIN_PAUSE, PollInterval

pytestmark = pytest.mark.once


def polled_interval(*, is_notified: bool) -> PollInterval:
    """Return the interval of a runner that has just polled and found work."""
    interval = PollInterval(longest=1.0, processes=2)
    interval.set_notified(is_notified)
    interval.record_poll(found=True, due_in=None)
    return interval


def test_notifications_of_one_queue_alone_postpone_the_poll_until_they_pause():
    interval = polled_interval(is_notified=True)

    interval.record_notification("mail")
    first = interval.next_poll
    interval.record_notification("mail")

    assert interval.next_poll > first


@pytest.mark.parametrize("other", ["reports", None])
def test_a_notification_of_another_queue_does_not_postpone_the_poll(other):
    interval = polled_interval(is_notified=True)

    interval.record_notification("mail")
    first = interval.next_poll
    interval.record_notification(other)
    interval.record_notification("mail")

    assert interval.next_poll == first


def test_without_proof_that_notifications_arrive_the_poll_is_not_postponed_beyond_the_shortest_pause():
    interval = polled_interval(is_notified=False)
    polled_before = time.monotonic()

    interval.record_notification("mail")
    first = interval.next_poll
    while time.monotonic() < polled_before + 0.01:
        interval.record_notification("mail")

    assert interval.next_poll <= max(first, polled_before + MIN_PAUSE)


def test_a_poll_that_is_due_for_a_deferred_task_is_not_postponed():
    interval = polled_interval(is_notified=True)
    interval.poll_by(0.0)

    for _ in range(2):
        interval.record_notification("mail")

    assert interval.is_due()
