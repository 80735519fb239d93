"""The cost of releasing blocked tasks."""

import itertools
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from horsies_django.core.ids import uuid7
from horsies_django.models import Limit, Task, release_blocked
from horsies_django.models.release_blocked import release_waiting
from horsies_django.worker.config import WorkerConfig
from horsies_django.worker.execution import Execution
from horsies_django.worker.executor import InlineExecutor
from horsies_django.worker.inbox import Inbox
from horsies_django.worker.poll import LimitReleaser
from horsies_django.worker.slot_pool import SlotPool, StartAheadTuner
from tests.jobs import limited
from tests.models.limits.test_limiter import RUNNER, TWO, claim, complete

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_worker_queries_limit_keys_without_blocked_tasks_once():
    keys = [TWO + f"{number:03}" for number in range(release_blocked.KEYS_PER_TRANSACTION)]
    limited.two_per_user.send_many({"user": key.removeprefix(TWO)} for key in keys)
    release_blocked.release_all("default", keys)
    complete(claim(len(keys)))

    with CaptureQueriesContext(connection) as captured:
        assert release_waiting("default", keys).routes.total() == 0
    assert len(captured) == 1

    for _ in range(3):
        limited.two_per_user.send(keys[-1].removeprefix(TWO))
    Task.objects.filter(blocked=False).update(status="COMPLETED", completed_at=timezone.now())
    assert release_waiting("default", keys).routes.total() == 1


def test_a_release_locks_no_limit_that_blocks_no_task():
    limited.two_per_user.send_many({"user": key} for key in "aabbb")

    counts = []
    for keys in ("a", "ab"):
        with CaptureQueriesContext(connection) as captured:
            release_waiting("default", [TWO + key for key in keys])
        counts.append(len(captured))

    assert counts[0] == 1 < counts[1]


def test_limits_that_exist_become_due_without_an_insert():
    limited.two_per_user.send_many({"user": key} for key in "aaab")

    with CaptureQueriesContext(connection) as captured:
        release_blocked.mark_due("default", [TWO + "a", TWO + "b"])

    assert Limit.objects.due().count() == 2
    assert not [query["sql"] for query in captured if query["sql"].startswith("INSERT")]


def test_the_sweep_only_reads_limits_that_have_no_room_or_no_tokens():
    limited.two_per_user.send_many([{"user": "a"}] * 3)
    limited.rate_limited.send_many([{"user": "a"}] * 6)
    Limit.objects.filter(rate__isnull=False).update(next_at=timezone.now() + timedelta(hours=1))

    with CaptureQueriesContext(connection) as captured:
        assert release_blocked.sweep("default") == 0

    assert {query["sql"].split()[0] for query in captured} == {"SELECT", "WITH"}


@pytest.mark.slow
@pytest.mark.sqlite
def test_releasing_many_limit_keys_leaves_a_busy_worker_most_of_its_time(monkeypatch):
    keys = [TWO + f"{number:03}" for number in range(release_blocked.KEYS_PER_TRANSACTION * 3)]
    limited.two_per_user.send_many({"user": key.removeprefix(TWO)} for key in keys)
    config = WorkerConfig.of("default")
    pool = SlotPool(False, 4, 0, InlineExecutor(Inbox().put), StartAheadTuner(4, 0))
    releaser = LimitReleaser("default", [pool])

    def released():
        return sum(admitted.routes.total() for admitted in releaser.release())

    clock = itertools.count()
    # Each reading of this clock is one second later, so a release is one transaction and takes a second.
    monkeypatch.setattr("horsies_django.worker.poll.time", SimpleNamespace(monotonic=lambda: next(clock)))

    releaser.add(keys)
    assert released() == release_blocked.KEYS_PER_TRANSACTION
    assert releaser.is_due  # nothing else is running

    pool.running[(uuid7(), 1)] = Execution(claim(1)[0], config.options, RUNNER)
    assert released() == release_blocked.KEYS_PER_TRANSACTION
    assert releaser.next_at - next(clock) > 2
    soonest = releaser.next_at
    releaser.add([TWO + "another"])
    assert releaser.next_at == soonest
    assert released() == release_blocked.KEYS_PER_TRANSACTION
    released()
    assert not releaser
