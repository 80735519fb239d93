"""``horsies_scheduler``, and the scheduler in a worker."""

from datetime import timedelta

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from horsies_django import Every, schedule
from horsies_django.db.clock import database_now
from horsies_django.db.expressions import NowPlus
from horsies_django.models import Schedule, Task
from horsies_django.schedules import scheduler
from horsies_django.schedules.declaration import declarations
from horsies_django.testing import travel
from tests.conftest import wait_until
from tests.jobs.tasks import add, noop
from tests.schedules.conftest import make, make_due


@pytest.mark.django_db
def test_once_syncs_declarations_and_sends_and_prints_due_schedules(capsys):
    schedule("declared", noop, Every(hours=1))
    make("due")
    make_due(10)

    call_command("horsies_scheduler", once=True)

    out = capsys.readouterr().out
    assert "1 new" in out
    assert f"id={Task.objects.get().pk}" in out
    assert "1 sent" in out
    assert Schedule.objects.filter(name="declared").exists()


@pytest.mark.slow
@pytest.mark.django_db
def test_once_sends_all_due_slots_even_more_than_a_batch(capsys, monkeypatch):
    monkeypatch.setattr(scheduler, "CATCH_UP_BATCH", 5)
    monkeypatch.setattr(scheduler, "BATCH", 10)
    slots, rows = 17, 32
    make("missed", timing="every:60", catch_up="all", max_catch_up_runs=1_000)
    make_due(60 * slots + 5)
    planned = database_now("default") - timedelta(seconds=10)
    Schedule.objects.bulk_create(
        [
            Schedule(name=f"s{number}", timing="every:86400", task_name=noop.module_path, next_run_at=planned)
            for number in range(rows)
        ]
    )

    call_command("horsies_scheduler", once=True)

    assert f"{slots + 1 + rows} sent" in capsys.readouterr().out
    assert Task.objects.count() == slots + 1 + rows
    assert not Schedule.objects.filter(next_run_at__lte=NowPlus(0)).exists()


def test_a_scheduler_only_sends_tasks_and_a_worker_without_one_runs_them(drain):
    schedule("declared", add, Every(hours=1), (1,), {"b": 4}, queue_name="emails")
    call_command("horsies_scheduler", once=True)
    assert not Task.objects.exists()  # the first run waits for its slot
    make_due(10)

    call_command("horsies_scheduler", once=True)
    sent = Task.objects.get()
    assert (sent.status, sent.task_name, sent.queue_name) == ("PENDING", "tests.jobs.tasks.add", "emails")

    drain(no_scheduler=True)
    sent.refresh_from_db()
    assert (sent.status, sent.result) == ("COMPLETED", {"ok": 5})
    assert Task.objects.count() == 1


@pytest.mark.django_db
def test_two_services_that_run_once_every_31_minutes_both_keep_their_schedules():
    for minutes in (0, 31, 62):
        with travel(minutes=minutes):
            for name in ("a", "b"):
                declarations.by_place.clear()
                schedule(name, noop, Every(minutes=30), catch_up="all")
                call_command("horsies_scheduler", once=True)

    assert list(Schedule.objects.order_by("name").values_list("name", "enabled", "run_count")) == [
        ("a", True, 2),
        ("b", True, 2),
    ]


@pytest.mark.django_db
def test_once_fails_if_a_schedule_can_not_be_sent():
    make("gone", task="tests.jobs.tasks.gone")
    make_due(10)

    with pytest.raises(CommandError):
        call_command("horsies_scheduler", once=True)


@pytest.mark.once
@pytest.mark.parametrize("flags", [{"interval": "0"}, {"interval": "soon"}, {"backend": "nowhere"}])
def test_invalid_scheduler_flags_are_refused_with_exit_status_2(flags):
    with pytest.raises(CommandError, match=r"allowed|no HorsiesBackend") as raised:
        call_command("horsies_scheduler", once=True, **flags)

    assert raised.value.returncode == 2


@pytest.mark.slow
def test_a_worker_sends_due_schedules_and_runs_their_tasks(worker):
    make(timing="every:1")
    process = worker("--threads=1")

    wait_until(lambda: Task.objects.filter(status="COMPLETED").count() >= 2)

    process.stop()
    row = Schedule.objects.get()
    assert row.run_count == Task.objects.filter(schedule_id=row.pk).count()


@pytest.mark.slow
def test_a_worker_with_no_scheduler_sends_no_schedules(worker):
    make(timing="every:1")
    worker("--threads=1", "--no-scheduler")

    noop.send()
    wait_until(lambda: Task.objects.filter(status="COMPLETED").exists())

    assert Schedule.objects.get().run_count == 0
