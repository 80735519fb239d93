"""The event loop that runs coroutines, counted rather than timed."""

import threading

import pytest
from django.db import transaction

from horsies_django.core.backends import horsies_backend
from horsies_django.enqueue.django_result import own_logging
from horsies_django.models import Task
from horsies_django.models.claims import WorkerInfo
from horsies_django.worker.body_connections import BodyConnections
from horsies_django.worker.execution import Execution
from horsies_django.worker.loop_executor import LoopExecutor
from tests.jobs import tasks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

RUNNER = WorkerInfo("guard", "host", 1)


class Results:
    """Counts the wake-ups of a producer, and ends the wait once all results are there."""

    def __init__(self, expected):
        self.items, self.wakes, self.last_wakes = [], 0, 0
        self.expected = expected
        self.is_complete = threading.Event()

    def add(self, item):
        self.items.append(item)

    def wake(self, *, has_next):
        self.wakes += 1
        self.last_wakes += not has_next
        if len(self.items) == self.expected:
            self.is_complete.set()


def run(slots, count):
    """Run coroutines that do nothing on an event loop; return what the producer gets."""
    tasks.anoop.send_many({} for _ in range(count))
    with transaction.atomic():
        claims = Task.objects.all().claim(RUNNER.worker_id, start=count, is_async=True)
    results = Results(count)
    executor = LoopExecutor(slots, results, BodyConnections(None))
    with own_logging():  # Django's own receivers of signals would need a thread for each coroutine
        executor.submit([Execution(claim, horsies_backend("default").config, RUNNER) for claim in claims])
        assert results.is_complete.wait(30)
        executor.close()
    return results


def test_the_coroutines_of_one_turn_of_the_loop_wake_the_producer_once():
    results = run(slots=100, count=100)

    assert results.wakes == 1
    assert all(result.completion.is_success for result in results.items)


def test_coroutines_that_wait_for_slots_follow_in_turns():
    results = run(slots=50, count=200)

    assert (results.wakes, results.last_wakes) == (4, 1)
    assert len({result.execution.task_id for result in results.items}) == 200
