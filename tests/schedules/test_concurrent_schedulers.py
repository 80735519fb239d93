"""Many schedulers and many schedules."""

import itertools
import os
import random
import signal
import time
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from horsies_django.db.clock import database_now
from horsies_django.db.expressions import SecondsUntil
from horsies_django.models import Schedule, Task
from tests.conftest import wait_until
from tests.schedules.conftest import make, make_due


@pytest.mark.slow
def test_five_schedulers_of_which_some_are_killed_send_each_of_200_slots_once(manage):
    seconds, count = 20, 10
    now = database_now("default").replace(microsecond=0)
    first = now + timedelta(seconds=6)
    for number in range(count):
        make(
            f"s{number}",
            timing="every:1",
            catch_up="all",
            start_at=first,
            end_at=first + timedelta(seconds=seconds - 1),
        )
    schedulers = [manage("horsies_scheduler") for _ in range(5)]

    while Schedule.objects.filter(enabled=True).exists():
        time.sleep(random.uniform(0.2, 0.8))
        if database_now("default") < first + timedelta(seconds=seconds):  # afterwards the slow starters may finish
            victim = random.randrange(5)
            os.killpg(schedulers[victim].process.pid, signal.SIGKILL)
            schedulers[victim].wait()
            schedulers[victim] = manage("horsies_scheduler")
        assert database_now("default") < first + timedelta(seconds=seconds + 90)

    assert Task.objects.count() == seconds * count == 200
    for row in Schedule.objects.all():
        assert (row.run_count, row.disabled_by) == (seconds, "END")
        assert Task.objects.filter(schedule_id=row.pk).count() == seconds


@pytest.mark.nightly
@pytest.mark.slow
def test_an_idle_pass_over_ten_thousand_schedules_is_one_statement(scheduler):
    now = database_now("default")
    Schedule.objects.bulk_create(
        [
            Schedule(
                name=f"s{number}",
                timing="every:86400",
                timezone="UTC",
                planned_timing="every:86400",
                planned_timezone="UTC",
                task_name="tests.jobs.tasks.noop",
                next_run_at=now + timedelta(seconds=3_600 + number),
            )
            for number in range(10_000)
        ],
        batch_size=1_000,
    )
    if connection.vendor == "postgresql":
        first = Schedule.objects.served_by("default", "tests").next_up().values(seconds=SecondsUntil("next_run_at"))[:1]
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE horsies_schedules")
        assert "horsies_schedule_next" in first.explain()
        stale = Schedule.objects.served_by("default", "tests").with_outdated_plan().values("pk")[:1]
        assert "horsies_schedule_replan" in stale.explain()
    with CaptureQueriesContext(connection) as captured:
        idle = [scheduler.run_once() for _ in range(3)]
    assert len(captured) == 3
    assert all(report.fired == () for report in idle)

    make_due(1, name__in=[f"s{number}" for number in range(300)])
    began = time.monotonic()
    sent = list(itertools.takewhile(len, (scheduler.run_once().fired for _ in itertools.count())))

    assert sum(map(len, sent)) == Task.objects.count() == 300
    print(f"sent: {300 / (time.monotonic() - began):.0f} a second")


@pytest.mark.nightly
@pytest.mark.slow
def test_schedulers_of_two_versions_side_by_side_leave_each_others_schedules_enabled(manage, tmp_path):
    for version, names in {"old": "ac", "new": "ab"}.items():
        lines = [f"schedule({name!r}, noop, Every(hours=5))" for name in names]
        imports = "from horsies_django import Every, schedule\nfrom tests.jobs.tasks import noop\n"
        (tmp_path / f"{version}_schedules.py").write_text(imports + "\n".join(lines))

    def start(version):
        modules = f"tests.schedules.jobs,{version}_schedules"
        return manage("horsies_scheduler", PYTHONPATH=str(tmp_path), TEST_MODULES=modules, TEST_UNDECLARED_AFTER="10")

    def rows():
        return {row.name: (row.next_run_at, row.disabled_by) for row in Schedule.objects.all()}

    new = start("new")
    wait_until(lambda: len(rows()) == 2)
    old = start("old")
    wait_until(lambda: len(rows()) == 3)
    first, before = Schedule.objects.get(name="c").declared_at, rows()
    wait_until(lambda: Schedule.objects.get(name="c").declared_at - first > timedelta(seconds=12), limit=60)
    assert rows() == before

    os.killpg(new.process.pid, signal.SIGKILL)
    wait_until(lambda: rows()["b"] == (None, "CODE"), limit=60)
    assert {name: row for name, row in rows().items() if name != "b"} == {name: before[name] for name in "ac"}
    start("new")
    wait_until(lambda: rows() == before)
    assert "schedule disabled name='b'" in old.stop()


@pytest.mark.slow
def test_a_scheduler_stops_on_sigterm(manage):
    make(timing="every:1")
    process = manage("horsies_scheduler", "--interval=0.2")
    wait_until(lambda: Schedule.objects.get().run_count >= 2)

    process.signal(signal.SIGTERM)

    assert process.wait() == 0
    assert "Traceback" not in process.output


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.django_db
def test_the_overlap_check_reads_only_live_runs_by_an_index(scheduler):
    if connection.vendor != "postgresql":
        pytest.skip("the plan is PostgreSQL's")
    row = make(overlap="skip")
    Task.objects.bulk_create(
        Task(task_name="gone", status="COMPLETED", completed_at=database_now("default"), schedule_id=row.pk)
        for _ in range(3_000)
    )
    make_due(5)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE horsies_tasks")

    with CaptureQueriesContext(connection) as captured:
        (fired,) = scheduler.run_once().fired

    assert fired.handle is not None
    overlap_check, *_ = (query["sql"] for query in captured if '"horsies_tasks"."schedule_id" = ' in query["sql"])
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {overlap_check}")
        assert "horsies_task_run_of_schedule" in str(cursor.fetchall())
