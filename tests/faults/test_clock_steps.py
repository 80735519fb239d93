"""The database's clock is set back, or a replica takes over, under a worker that sends a schedule each second."""

import environ
import pytest
from django.db import connection

from horsies_django.models import Schedule, Task
from tests.conftest import wait_until
from tests.faults.server import DatabaseClock, Replica
from tests.jobs import limited, tasks

#: A scheduler looks for schedules that were sent in the future each second, and a reaper for limits with room.
ENVIRONMENT = {"TEST_UNDECLARED_AFTER": "10", "TEST_CHECK_MS": "500"}

pytestmark = pytest.mark.slow


def every_second():
    return Schedule.objects.create(name="s", task_name=tasks.noop.task_name, timing="every:1", catch_up="all")


def slots():
    """Return the slots that were sent, each once."""
    rows = Task.objects.filter(schedule_id__isnull=False).values_list("metadata", flat=True)
    sent = sorted(metadata["horsies.scheduled_for"] for metadata in rows)
    assert sorted(set(sent)) == sent
    return sent


def goes_on():
    """Wait until two more slots are sent, and assert that none was sent twice."""
    count = Schedule.objects.get().run_count
    wait_until(lambda: Schedule.objects.get().run_count >= count + 2, limit=40, what="two more slots")
    slots()


def shown_difference():
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('faults.clock', true)")
        return cursor.fetchone()[0]


def set_back(clock, seconds):
    clock.jump(-seconds)
    wait_until(lambda: shown_difference() == f"{-seconds} s", what="this session sees the moved clock")


def test_no_slot_is_sent_twice_and_new_tasks_run_after_the_databases_clock_was_set_back(own_cluster, start):
    clock = DatabaseClock(own_cluster.url)
    clock.install()
    connection.close()  # a session that is open does not see the functions
    start("horsies_worker", DATABASE_URL=own_cluster.url, **ENVIRONMENT)
    every_second()
    goes_on()
    limited.rate_limited.send_many([{"user": "a"}] * 8)
    wait_until(lambda: not Task.objects.filter(limit_key__isnull=False).pending().exists(), what="a limit in use")

    set_back(clock, 5)
    goes_on()
    set_back(clock, 3_605)
    sent = [tasks.noop.send(), *limited.rate_limited.send_many([{"user": "a"}] * 8)]
    wait_until(lambda: all(one.status() == "COMPLETED" for one in sent), limit=40, what="new tasks are completed")
    slots()

    set_back(clock, 3 * 3_600)
    goes_on()


@pytest.mark.nightly
def test_no_slot_is_sent_twice_after_a_failover_to_a_lagging_replica(own_cluster, proxy, start):
    with Replica(own_cluster) as replica:
        worker = start("horsies_worker", DATABASE_URL=proxy.url, **ENVIRONMENT)
        every_second()
        goes_on()
        wait_until(replica.has_caught_up, limit=40, what="the replica has caught up")
        replica.lag()
        goes_on()

        replica.take_over()
        connection.close()
        connection.settings_dict |= environ.Env.db_url_config(replica.url)
        proxy.redirect(replica.socket_folder)

        goes_on()
        worker.stop()
        assert len(slots()) == Schedule.objects.get().run_count
