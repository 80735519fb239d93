"""Tasks of ten steps while runners are killed: each atomic effect happens once, and each key has one payload."""

import random
import time
from collections import Counter, defaultdict

import pytest
from django.db import connection

from horsies_django import TaskStatus
from horsies_django.models import Task, TaskStep
from tests.jobs.models import Entry
from tests.steps import gateway_jobs as jobs
from tests.steps.test_batches_killed import WITH_PROGRESS, is_running, kill_a_runner

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.sqlite]


def test_killed_runners_repeat_no_atomic_step_and_change_no_payload(worker, tmp_path):
    count = 100 if connection.vendor == "sqlite" else 500
    gateway = tmp_path / "gateway"
    jobs.pays.send_many({"gateway": str(gateway), "number": number} for number in range(count))
    worker("--processes", "2", "--threads", "4", "-v0", runners=2)
    failed = Task.objects.filter(status=TaskStatus.FAILED)

    killed: set[int] = set()
    deadline = time.monotonic() + 400
    while is_running() or failed.exists():
        assert time.monotonic() < deadline
        time.sleep(random.uniform(0.2, 0.8))
        if len(killed) < 12:
            kill_a_runner(Task.objects.all(), killed)
        # A crash is charged only if nothing was recorded under its claim.
        assert not failed.exclude(error_code="WORKER_CRASHED").exists()
        assert not failed.filter(WITH_PROGRESS).exists()
        failed.retry()

    assert len(killed) > 2
    assert Task.objects.completed().count() == count
    quotes = Counter(Entry.objects.values_list("key", flat=True))
    assert quotes == {f"{number} {place}": 1 for number in range(count) for place in range(5)}
    payloads = defaultdict(Counter)
    for line in gateway.read_text().splitlines():
        key, amount = line.split()
        payloads[key][amount] += 1
    assert len(payloads) == 5 * count
    assert {len(amounts) for amounts in payloads.values()} == {1}
    assert TaskStep.objects.filter(status="COMPLETED", claim__gt=0).count() == 10 * count
    totals = Counter()
    for key, amounts in payloads.items():
        totals[key.split(":")[0]] += int(next(iter(amounts)))
    assert {str(key): result["ok"] for key, result in Task.objects.values_list("pk", "result")} == dict(totals)
    repeated = sum(amounts.total() - 1 for amounts in payloads.values())
    print(f"{len(killed)} runners were killed, {repeated} of {5 * count} charges were repeated")
