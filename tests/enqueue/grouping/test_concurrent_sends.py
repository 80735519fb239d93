"""Many threads send calls with one group key at the same time."""

from collections import Counter

import pytest
from django.db import connection

from horsies_django.models import Task, TaskItem
from tests.enqueue.grouping import jobs
from tests.enqueue.test_repeated_sends import run_concurrently


@pytest.fixture
def senders():
    """Return the number of sending threads. On SQLite they take turns at one lock: sixty would wait too long."""
    return 60 if connection.vendor == "postgresql" else 8


@pytest.mark.slow
def test_concurrent_senders_put_each_call_into_exactly_one_group(transactional_db, senders):
    def send(number):
        for turn in range(5):
            jobs.coroutine.send(value=number * 5 + turn)

    results = run_concurrently(senders, send)

    assert Counter(map(repr, results)) == {"None": senders}
    assert sorted(TaskItem.objects.values_list("kwargs__value", flat=True)) == list(range(senders * 5))
    assert set(Task.objects.values_list("item_count", flat=True)) == {2}
