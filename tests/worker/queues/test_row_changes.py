"""Workers apply changes of queue rows within a second, however they are written, and cost little while idle."""

import time

import pytest
from django.db import connection

from horsies_django.models import Queue, Task
from horsies_django.worker.store import POLICY_TTL
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.worker.queues.test_limits import SOON, most_at_once, ran

pytestmark = pytest.mark.django_db(transaction=True)

IS_POSTGRES = connection.vendor == "postgresql"

#: With notifications (PostgreSQL), polls are too rare to find a change within a test.
LONG_POLL = ("--poll-interval", "30" if IS_POSTGRES else "1")

#: Seconds after which an idle worker polls only every five seconds.
IDLE = 8 if IS_POSTGRES else 0


@pytest.mark.slow
@pytest.mark.parametrize("rules", [{"max_concurrency": 1}, {"rate_limit": "1/h, 1"}], ids=["concurrency", "rate"])
def test_an_idle_worker_applies_a_limit_written_by_update_within_a_second(worker, rules):
    Queue.objects.create(name="default")
    worker("--threads", "8", "-v0", *LONG_POLL)
    tasks.noop.send().get(timeout=20)
    time.sleep(IDLE)

    Queue.objects.filter(name="default").update(**rules)
    time.sleep(2.5)  # a second plus a margin for a busy machine
    tasks.nap.send_many({"seconds": 0.3} for _ in range(4))

    if "rate_limit" in rules:
        wait_until(lambda: Task.objects.completed().count() == 2)
        time.sleep(0.5)
        assert Task.objects.completed().count() == 2
    else:
        wait_until(lambda: Task.objects.completed().count() == 5)
        assert most_at_once(ran()) == 1


@pytest.mark.slow
@pytest.mark.sqlite
def test_saving_or_deleting_a_queue_row_notifies_idle_workers(worker):
    worker("-v0", *LONG_POLL)
    Queue.objects.create(name="default", max_concurrency=0)
    Queue.objects.create(name="other", max_concurrency=0)
    tasks.noop.using(queue_name="free").send().get(timeout=20)
    time.sleep(POLICY_TTL)  # without a notification a worker keeps its policies for as long
    tasks.noop.send()
    tasks.noop.using(queue_name="other").send()
    tasks.noop.using(queue_name="free").send().get(timeout=20)
    assert Task.objects.pending().count() == 2

    row = Queue.objects.get(name="default")
    row.max_concurrency = 1
    row.save()
    wait_until(lambda: Task.objects.completed().count() == 3, SOON)
    Queue.objects.get(name="other").delete()

    wait_until(lambda: Task.objects.completed().count() == 4, SOON)


@pytest.mark.slow
@pytest.mark.parametrize("most", [0, 1], ids=["stopped", "full"])
def test_a_worker_stays_idle_while_its_only_queue_is_blocked(worker, tmp_path, most):
    if not IS_POSTGRES:
        return  # without notifications a worker has to poll for a free slot
    gate = tmp_path / "gate"
    Queue.objects.named("default").set(max_concurrency=most)
    tasks.hold.send_many({"key": "held", "gate": str(gate)} for _ in range(3))
    tally = tmp_path / "tally"
    worker("--threads", "4", "-v0", "--no-reaper", "--no-scheduler", COUNT_STATEMENTS=str(tally))
    time.sleep(IDLE)

    before = tally.stat().st_size
    time.sleep(6)
    rate = (tally.stat().st_size - before) / 6

    print(f"{rate:.1f} statements a second")
    assert rate <= 6  # most are heartbeats; it was 11 and 14
    gate.touch()
    Queue.objects.named("default").set(max_concurrency=1)
    wait_until(lambda: Task.objects.completed().count() == 3)
