"""When a runner that gets notifications polls beside its claims."""

from __future__ import annotations

import time

import pytest

from horsies_django.worker.config import WorkerConfig
from horsies_django.worker.executor import InlineExecutor
from horsies_django.worker.inbox import Inbox
from horsies_django.worker.poll import MIN_PAUSE, Poller, PollInterval
from horsies_django.worker.runner_state import RunnerState
from horsies_django.worker.slot_pool import SlotPool, StartAheadTuner

pytestmark = pytest.mark.once


def polled_interval(*, is_notified: bool) -> PollInterval:
    """Return the interval of a runner that has just polled and found work."""
    interval = PollInterval(longest=1.0, processes=2)
    interval.set_notified(is_notified)
    interval.record_poll(has_tasks=True, due_in=None)
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

    assert interval.next_poll == 0.0


def test_an_idle_runner_rests_after_a_poll_that_took_long_unless_a_task_is_due():
    interval = polled_interval(is_notified=True)
    interval.record_poll(has_tasks=False, due_in=None, duration=1_000.0)
    interval.record_notification("mail")
    rested_at = interval.next_poll
    assert rested_at > time.monotonic() + 1_000.0

    interval.poll_by(rested_at - 1)

    assert interval.next_poll == rested_at - 1


def test_a_busy_runner_rests_after_a_poll_that_took_long_whatever_is_requested():
    interval = PollInterval(longest=1.0, processes=2)
    interval.set_notified(False)
    interval.poll_by(0.0)

    interval.record_poll(has_tasks=True, due_in=0.0, duration=1_000.0)
    assert not interval.is_due_while_busy(is_requested=True)

    interval.record_poll(has_tasks=True, due_in=0.0, duration=0.0)
    until = time.monotonic() + MIN_PAUSE
    while time.monotonic() < until:
        pass
    assert interval.is_due_while_busy(is_requested=True)


def test_a_poll_that_is_requested_waits_while_all_slots_of_a_backlog_are_taken_and_not_once_it_is_gone():
    config = WorkerConfig.of("default", processes=1)
    functions = SlotPool(False, 0, 0, InlineExecutor(print), StartAheadTuner(0, 0))
    coroutines = SlotPool(True, 1, 0, InlineExecutor(print), StartAheadTuner(1, 0))
    state = RunnerState(config, "w", Inbox(), [functions, coroutines])
    poller = Poller(state)
    poller.interval.record_poll(has_tasks=False, due_in=None, duration=1_000.0)
    state.is_poll_requested = True

    functions.mark_ready("default")
    assert not poller.is_due()
    functions.mark_empty()
    assert poller.is_due()
