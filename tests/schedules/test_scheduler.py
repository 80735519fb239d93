"""The scheduler: it sends each slot once with the options of its task, catches up, and handles overlaps and errors."""

import itertools
import threading
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from types import SimpleNamespace

import psycopg
import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from horsies_django import Every, schedule
from horsies_django.checks import check_schedules
from horsies_django.core.backends import config_of
from horsies_django.db import postgres
from horsies_django.db.clock import database_now
from horsies_django.db.notifications import SCHEDULES_CHANGED
from horsies_django.models import Schedule, Task, Workflow
from horsies_django.models.transitions import DEADLOCK
from horsies_django.schedules import dispatch, scheduled_call
from horsies_django.schedules import scheduler as scheduler_module
from horsies_django.schedules.scheduler import Scheduler
from horsies_django.testing import travel, travel_to
from tests.conftest import database_url, wait_until
from tests.database import another_connection_waits_for_our_lock
from tests.schedules import jobs
from tests.schedules.conftest import make, make_due
from tests.schedules.jobs import Asking, report

REPORT = "tests.schedules.jobs.report"


@pytest.mark.django_db
def test_a_due_slot_is_sent_once_and_the_next_is_an_interval_later(scheduler):
    row = make()
    make_due(10)
    slot = Schedule.objects.get().next_run_at

    (fired,) = scheduler.run_once().fired
    again = scheduler.run_once()

    row.refresh_from_db()
    assert again.fired == ()
    assert Task.objects.get().schedule_id == row.pk
    assert (row.last_task_id, row.last_slot_at, row.run_count) == (fired.handle.id, slot, 1)
    assert row.next_run_at == slot + timedelta(hours=1)
    assert row.last_run_at is not None


@pytest.mark.django_db
def test_the_first_run_waits_for_the_next_slot(scheduler):
    row = make(timing="every:600")

    assert scheduler.run_once().fired == ()
    assert 595 < (row.next_run_at - database_now("default")).total_seconds() <= 600


@pytest.mark.django_db
def test_a_scheduled_run_has_the_retry_policy_and_timeout_of_its_task(scheduler):
    make(
        task=REPORT,
        kwargs={"copies": 2},
        options={"priority": 7, "good_for": 60, "retention": {"completed": 3600, "failed": "2h"}},
    )
    make_due(10)

    scheduler.run_once()

    sent, direct = Task.objects.get(), Task.objects.get(pk=report.send().id)
    assert (sent.max_retries, sent.retry_policy, sent.timeout) == (direct.max_retries, direct.retry_policy, 30)
    assert (sent.priority, sent.kwargs, sent.retention) == (7, {"copies": 2}, timedelta(hours=1))
    assert sent.retention_by_state == {"failed": 7_200}
    assert 50 < (sent.good_until - sent.sent_at).total_seconds() < 70


@pytest.mark.django_db
def test_a_schedule_can_start_a_workflow(scheduler):
    row = Schedule.objects.create(
        name="w", timing="every:3600", workflow_name="tests.schedules.import", kwargs={"day": "monday"}
    )
    make_due(10)

    scheduler.run_once()

    row.refresh_from_db()
    workflow = Workflow.objects.get()
    assert (workflow.schedule_id, workflow.pk) == (row.pk, row.last_workflow_id)
    assert Task.objects.get().kwargs == {"day": "monday"}


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize(
    ("policy", "most", "count"), [("latest", 100, 1), ("all", 100, 73), ("all", 5, 5), ("none", 100, 0)]
)
def test_catch_up_runs_the_latest_all_some_or_none_of_the_missed_slots(scheduler, policy, most, count):
    make(catch_up=policy, max_catch_up_runs=most)
    make_due(3 * 86_400 + 600)
    first = Schedule.objects.get().next_run_at

    scheduler.run_all()

    row = Schedule.objects.get()
    assert Task.objects.count() == row.run_count == count
    assert row.last_slot_at == first + timedelta(hours=72)
    assert row.next_run_at == first + timedelta(hours=73)


@pytest.mark.slow
@pytest.mark.django_db
def test_catch_up_of_many_slots_takes_several_passes_in_each_of_which_slots_on_time_come_first(scheduler, monkeypatch):
    monkeypatch.setattr(scheduler_module, "CATCH_UP_BATCH", 5)
    for number in range(3):
        make(f"missed {number}", catch_up="all", max_catch_up_runs=7)
    make_due(30 * 3_600 + 1_800)
    make("latest", timing="every:60")
    make("on time", catch_up="none")

    counts = []
    for late in (9_000, 40, 20, 10, 5):
        make_due(late, name="latest")
        make_due(late, name="on time")
        first, second, *others = scheduler.run_once().fired
        assert {first.schedule, second.schedule} == {"latest", "on time"}
        assert (first.handle is None or second.handle is None) == (late > dispatch.MISSED_AFTER)
        assert all(one.schedule.startswith("missed") for one in others)
        counts.append(len(others))

    assert counts == [5, 5, 5, 5, 1]
    assert sorted(Schedule.objects.filter(catch_up="all").values_list("run_count", flat=True)) == [7, 7, 7]


@pytest.mark.django_db
def test_missed_slots_that_fail_are_skipped_and_the_others_are_sent(scheduler):
    make("alone", timing="every:60", catch_up="all", task="tests.schedules.jobs.alone")
    make_due(125)

    sent, *others = scheduler.run_once().fired

    assert Task.objects.get().pk == sent.handle.id
    assert ["UniqueKeyHeld" in one.error or "alone" in one.error for one in others] == [True, True]
    row = Schedule.objects.get()
    assert (row.run_count, row.last_slot_at) == (1, others[-1].slot)
    assert row.last_error in [one.error for one in others]


@pytest.mark.django_db
def test_a_slot_that_is_seconds_late_does_not_count_as_missed(scheduler):
    make(catch_up="none")
    make_due(dispatch.MISSED_AFTER / 2)

    scheduler.run_once()

    assert Task.objects.count() == 1


@pytest.mark.django_db
def test_schedules_go_on_after_the_databases_clock_was_a_year_ahead(scheduler, caplog):
    make("sent")
    first = Schedule.objects.get().next_run_at
    with travel(days=365, seconds=7):
        assert len(scheduler.run_once().fired) == 1
        make("made")
    assert scheduler.run_once().fired == ()

    scheduler.sync()

    assert [name for name in ("made", "sent") if f"schedule planned again name={name!r}" in caplog.text] == [
        "made",
        "sent",
    ]
    caplog.clear()
    assert scheduler.run_once().fired == ()
    made, sent = Schedule.objects.order_by("name")
    now = database_now("default")
    assert all(now < row.next_run_at <= now + timedelta(hours=1) for row in (made, sent))
    assert (sent.next_run_at - first) % timedelta(hours=1) == timedelta()
    scheduler.sync()
    assert "planned again" not in caplog.text
    with travel(hours=1):
        assert {one.schedule for one in scheduler.run_once().fired} == {"made", "sent"}


@pytest.mark.django_db
@pytest.mark.parametrize("step", [timedelta(seconds=5), timedelta(minutes=50)])
def test_no_slot_is_sent_twice_after_the_databases_clock_was_set_back(scheduler, step):
    now = database_now("default").replace(minute=0, second=2, microsecond=0) + timedelta(days=1)
    make(timing="cron:0 * * * *")
    with travel_to(now):
        assert len(scheduler.run_once().fired) == 1
    with travel_to(now - step):
        scheduler.sync()
        assert scheduler.run_once().fired == ()
        Schedule.objects.disable()
        Schedule.objects.enable()
        assert scheduler.run_once().fired == ()
    with travel_to(now + timedelta(minutes=1)):
        assert scheduler.run_once().fired == ()

    assert Schedule.objects.get().next_slot_at == now.replace(second=0) + timedelta(hours=1)


@pytest.mark.django_db
def test_a_schedule_past_its_end_is_disabled(scheduler):
    now = database_now("default")
    make(timing=f"cron:0 {(now.hour + 12) % 24} * * *", end_at=now + timedelta(minutes=1))
    assert Schedule.objects.get().disabled_by == "END"

    make("t", timing="every:3600", end_at=database_now("default") + timedelta(minutes=90))
    Schedule.objects.filter(name="t").update(end_at=database_now("default") + timedelta(minutes=30))
    make_due(10, name="t")
    scheduler.run_once()

    row = Schedule.objects.get(name="t")
    assert (row.enabled, row.disabled_by, row.next_run_at, row.run_count) == (False, "END", None, 1)


@pytest.mark.django_db
def test_overlap_skip_skips_a_slot_while_the_previous_run_is_live(scheduler):
    make(overlap="skip")
    for _ in range(2):
        make_due(10)
        (fired,) = scheduler.run_once().fired
    assert Task.objects.count() == 1
    assert fired.handle is None
    assert not fired.error

    Task.objects.cancel()
    make_due(10)
    scheduler.run_once()

    assert Task.objects.count() == 2


@pytest.mark.django_db
def test_overlap_cancel_previous_cancels_the_previous_run(scheduler):
    make(overlap="cancel_previous")
    for _ in range(3):
        make_due(10)
        scheduler.run_once()

    assert sorted(Task.objects.values_list("status", flat=True)) == ["CANCELLED", "CANCELLED", "PENDING"]


@pytest.mark.slow
@pytest.mark.django_db
@pytest.mark.parametrize("target", [{"task_name": REPORT}, {"workflow_name": "tests.schedules.import"}])
def test_run_now_does_not_hide_earlier_live_runs_from_the_overlap_check(scheduler, target):
    row = Schedule.objects.create(name="s", timing="every:3600", overlap="skip", **target)
    kind = Task if row.task_name else Workflow
    make_due(10)
    scheduler.run_once()
    (by_hand,) = Schedule.objects.all().run_now()
    by_hand.cancel()

    make_due(10)
    (skipped,) = scheduler.run_once().fired
    assert (skipped.handle, kind.objects.count()) == (None, 2)

    Schedule.objects.all().run_now()
    Schedule.objects.update(overlap="cancel_previous")
    make_due(10)
    (sent,) = scheduler.run_once().fired
    assert kind.objects.exclude(pk=sent.handle.id).filter(status="CANCELLED").count() == 3


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(not connection.features.has_select_for_update, reason="SQLite locks no rows")
def test_run_now_and_the_scheduler_lock_rows_in_the_same_order(scheduler):
    row = make(options={"unique_key": "alone"})
    make_due(10)
    thread = threading.Thread(target=lambda: (Schedule.objects.all().run_now(), connections.close_all()))
    with transaction.atomic():
        Schedule.objects.filter(pk=row.pk).locked().get()
        thread.start()
        wait_until(another_connection_waits_for_our_lock)
        assert Task.objects.count() == 0
        assert scheduled_call.send(row, scheduled_call.prepare(row, database_now("default")))
    thread.join(30)

    assert Task.objects.count() == 1


@pytest.mark.slow
@pytest.mark.django_db
def test_overlap_rules_apply_to_workflows(scheduler):
    row = Schedule.objects.create(
        name="w", timing="every:3600", workflow_name="tests.schedules.import", overlap="cancel_previous"
    )
    for _ in range(2):
        make_due(10)
        scheduler.run_once()
    assert sorted(Workflow.objects.values_list("status", flat=True)) == ["CANCELLED", "RUNNING"]

    Schedule.objects.filter(pk=row.pk).update(overlap="skip")
    make_due(10)
    scheduler.run_once()

    assert Workflow.objects.count() == 2


@pytest.mark.django_db
def test_a_permanent_error_is_stored_skips_its_slot_and_stops_no_other_schedule(scheduler):
    make("gone", task="tests.jobs.tasks.gone")
    make("no task", task="os.remove", args=["/nowhere"])
    make("bad arguments", task="tests.jobs.tasks.add", kwargs={"a": 1, "nope": 1})
    Schedule.objects.create(
        name="refusing", timing="every:3600", workflow_name="tests.schedules.refusing", kwargs={"source": "none"}
    )
    make("good")
    make_due(dispatch.MISSED_AFTER + 10)

    fired = {one.schedule: one for one in scheduler.run_once().fired}

    assert Task.objects.get().schedule_id == Schedule.objects.get(name="good").pk
    errors = dict(Schedule.objects.values_list("name", "last_error"))
    assert "gone" in errors["gone"]
    assert "not a registered task" in errors["no task"]
    assert "nope" in errors["bad arguments"]
    assert "no source today" in errors["refusing"]
    assert errors["good"] == ""
    assert all(fired[name].error for name in errors if name != "good")
    assert scheduler.run_once().fired == ()
    assert not Schedule.objects.filter(next_run_at__lte=database_now("default")).exists()


@pytest.mark.django_db
def test_an_unknown_task_is_left_to_other_schedulers_for_a_minute(scheduler):
    make("newer", task="tests.jobs.of_the_next_deploy.task")
    Schedule.objects.create(name="theirs", timing="every:3600", workflow_name="of.another.project")
    make("good")
    make_due(dispatch.MISSED_AFTER / 2)
    planned = set(Schedule.objects.exclude(name="good").values_list("next_run_at", "last_error"))

    report = scheduler.run_once()

    assert [one.schedule for one in report.fired] == ["good"]
    assert report.deferred.keys() == {"newer", "theirs"}
    assert set(Schedule.objects.exclude(name="good").values_list("next_run_at", "last_error")) == planned

    make_due(dispatch.MISSED_AFTER + 10, name__in=["newer", "theirs"])
    fired = Scheduler(config_of("default"), "default").run_once().fired

    assert ["of_the_next_deploy" in one.error for one in fired].count(True) == 1
    assert ["of.another.project" in one.error for one in fired].count(True) == 1
    assert not Schedule.objects.filter(last_error="", run_count=0).exists()


@pytest.mark.django_db
def test_a_late_slot_of_another_service_is_left_to_its_schedulers(scheduler, caplog):
    columns = {"source": "tests", "declared_at": database_now("default"), "catch_up": "all"}
    make("theirs", timing="every:60", task="tests.jobs.of_another_service.task", **columns)
    make_due(dispatch.MISSED_AFTER + 10)
    planned = Schedule.objects.get().next_run_at

    report = scheduler.run_once()

    assert (list(report.deferred), report.fired) == (["theirs"], ())
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    row = Schedule.objects.get()
    assert (row.next_run_at, row.last_slot_at, row.last_error) == (planned, None, "")


@pytest.mark.django_db
def test_a_successful_run_clears_the_previous_error(scheduler):
    make(last_error="old")
    make_due(10)

    scheduler.run_once()

    assert Schedule.objects.get().last_error == ""


@contextmanager
def refusing(task, sqlstate):
    """Let the database refuse new rows of a task with this error; yield a function that counts the attempts."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE SEQUENCE tries; CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" PERFORM nextval('tries'); RAISE EXCEPTION 'refused' USING ERRCODE = '{sqlstate}'; END $$;"
            f" CREATE TRIGGER refuse BEFORE INSERT ON horsies_tasks FOR EACH ROW WHEN (NEW.task_name = '{task}')"
            f" EXECUTE FUNCTION refuse()"
        )
    try:
        yield partial(_query, "SELECT last_value FROM tries")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TRIGGER refuse ON horsies_tasks; DROP FUNCTION refuse(); DROP SEQUENCE tries")


def _query(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()[0]


on_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite can't raise any SQLSTATE")


@on_postgresql
@pytest.mark.django_db(transaction=True)
def test_a_transient_error_defers_its_slot_and_stops_no_other_schedule(scheduler):
    make("first", task=REPORT)
    make("second")
    make_due(20, name="first")
    make_due(10, name="second")
    planned = Schedule.objects.get(name="first").next_run_at

    with refusing(REPORT, DEADLOCK):
        report = scheduler.run_once()
    assert [one.schedule for one in report.fired] == ["second"]
    assert report.deferred["first"].startswith("OperationalError: refused")
    assert Schedule.objects.get(name="first").next_run_at == planned

    wait_until(lambda: [one.schedule for one in scheduler.run_once().fired] == ["first"])


@on_postgresql
@pytest.mark.django_db(transaction=True)
def test_a_schedule_with_transient_errors_is_retried_with_growing_delays(scheduler, monkeypatch):
    make(task=REPORT)
    make_due(10)

    with refusing(REPORT, DEADLOCK) as tries:
        counts = []
        for now in (0.0, 0.09, 0.11, 0.30, 0.32, 0.71, 0.73, 1.0):  # retried after 0.1, 0.2, 0.4 and 0.8 seconds
            monkeypatch.setattr(f"{Scheduler.__module__}.time", SimpleNamespace(monotonic=lambda now=now: now))
            is_tried = bool(scheduler.run_once().deferred)
            counts.append((is_tried, tries()))

    assert counts == [(True, 1), (False, 1), (True, 2), (False, 2), (True, 3), (False, 3), (True, 4), (False, 4)]


@on_postgresql
@pytest.mark.django_db(transaction=True)
def test_a_permanent_database_error_skips_its_slot(scheduler):
    make(task=REPORT)
    make_due(10)

    with refusing(REPORT, "42P01"):  # undefined_table
        (fired,) = scheduler.run_once().fired

    row = Schedule.objects.get()
    assert fired.error.startswith("ProgrammingError: refused")
    assert (row.last_error, row.last_slot_at) == (fired.error, fired.slot)
    assert row.next_run_at > database_now("default")


@pytest.mark.django_db(transaction=True)
def test_a_workflow_is_built_outside_a_transaction_so_its_queries_may_fail(scheduler):
    row = Schedule.objects.create(
        name="w", timing="every:3600", workflow_name="tests.schedules.asking", kwargs={"asks": True}
    )
    make_due(10)

    (fired,) = scheduler.run_once().fired
    assert Asking.was_in_a_transaction is False
    assert Workflow.objects.get().pk == fired.handle.id

    Asking.was_in_a_transaction = None
    Schedule.objects.filter(pk=row.pk).run_now()
    assert Asking.was_in_a_transaction is False


@pytest.mark.django_db
def test_an_unreadable_timing_disables_only_its_schedule(scheduler):
    make("broken")
    make("good")
    Schedule.objects.filter(name="broken").update(timing="cron:61 * * * *")
    make_due(10)

    scheduler.run_once()

    row = Schedule.objects.get(name="broken")
    assert (row.enabled, row.disabled_by) == (False, "TIMING")
    assert "the minute is '61'" in row.last_error
    assert Schedule.objects.get(name="good").run_count == 1


@pytest.mark.django_db
def test_a_schedule_without_a_next_run_gets_one(scheduler):
    make()
    Schedule.objects.update(next_run_at=None)

    scheduler.run_once()

    assert Schedule.objects.get().next_run_at > database_now("default")
    assert not Task.objects.exists()


@pytest.mark.django_db
def test_jitter_keeps_slots_on_the_grid(scheduler):
    row = make(timing="every:100", jitter=50)
    slot, run_at = row.next_slot_at, row.next_run_at
    Schedule.objects.update(
        next_run_at=run_at - timedelta(seconds=160), next_slot_at=slot - timedelta(seconds=160)
    )  # no slot has this jitter: it counts as set by hand
    scheduler.run_once()

    row.refresh_from_db()
    assert row.run_count == 1
    assert row.next_run_at == row.slots.due_at(row.next_slot_at)
    assert 0 <= (row.next_run_at - row.next_slot_at).total_seconds() < 50


@pytest.mark.django_db
def test_schedules_of_other_backends_and_projects_are_not_sent(scheduler):
    make("elsewhere", backend="other")
    make("theirs", source="another_project")
    make("disabled")
    make_due(10)
    Schedule.objects.filter(name="disabled").update(enabled=False)

    assert scheduler.run_once().fired == ()


@pytest.mark.django_db
def test_an_idle_pass_is_one_statement_for_any_number_of_schedules(scheduler):
    for number in range(20):
        make(f"s{number}")

    with CaptureQueriesContext(connection) as captured:
        report = scheduler.run_once()

    assert len(captured) == 1
    assert report.pause == 1.0


@pytest.mark.django_db(transaction=True)
def test_one_of_two_schedulers_that_see_a_due_slot_sends_it(scheduler):
    row = make()
    make_due(10)
    rows, now = Schedule.objects.all(), database_now("default")
    planned = Schedule.objects.get().next_run_at

    first = list(dispatch.fire_due(rows, row.pk, planned, now))
    second = list(dispatch.fire_due(rows, row.pk, planned, now))

    assert (len(first), second) == (1, [])
    assert Task.objects.count() == 1


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_due_slot_is_sent_within_a_second(monkeypatch):
    make(timing="every:1")
    loop = Scheduler(config_of("default"), "default")
    fired, run_once = [], loop.run_once

    def recorded():
        report = run_once()
        fired.extend(report.fired)
        return report

    monkeypatch.setattr(loop, "run_once", recorded)

    def run():
        try:
            loop.run()
        finally:
            connections.close_all()

    def three_in_a_row_were_in_time():
        known = list(fired)
        sent_at = dict(Task.objects.values_list("pk", "sent_at"))
        slots = [one.slot for one in known if sent_at[one.handle.id] - one.slot < timedelta(seconds=1)]
        return any(third - first == timedelta(seconds=2) for first, third in zip(slots, slots[2:], strict=False))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(three_in_a_row_were_in_time, limit=60)  # not every slot: the machine may pause
    finally:
        loop.stop()
        thread.join(30)


@pytest.mark.django_db
def test_a_slot_whose_unique_key_is_held_by_a_live_run_is_skipped(scheduler):
    make(options={"unique_key": "alone"})
    Schedule.objects.create(name="w", timing="every:3600", workflow_name="tests.schedules.slotted")
    make_due(10)
    assert [one.handle is not None for one in scheduler.run_once().fired] == [True, True]
    ran_at = list(Schedule.objects.values_list("last_run_at", flat=True))

    make_due(10)
    assert [(one.handle, one.error) for one in scheduler.run_once().fired] == [(None, ""), (None, "")]
    handles = Schedule.objects.all().run_now()

    assert [handle.replayed for handle in handles] == [True, True]
    assert list(Schedule.objects.values_list("run_count", "last_error")) == [(1, ""), (1, "")]
    assert list(Schedule.objects.values_list("last_run_at", flat=True)) == ran_at
    assert [row.last_run_id for row in Schedule.objects.order_by("pk")] == [handle.id for handle in handles]


@pytest.mark.slow
def test_scheduled_for_is_the_slot_of_a_scheduled_run_and_otherwise_none(scheduler, drain):
    make("missed", task="tests.schedules.jobs.slot", catch_up="all", options={"metadata": {"by": "us"}})
    Schedule.objects.create(name="flow", timing="every:3600", workflow_name="tests.schedules.slotted")
    make_due(6 * 3_600 + 60, name="missed")
    make_due(60, name="flow")
    fired = scheduler.run_once().fired
    others = [*Schedule.objects.filter(name="missed").run_now(), jobs.slot.send()]

    drain()

    slots = {one.slot: one.handle.value(0) for one in fired if one.schedule == "missed"}
    assert len(slots) == 7
    assert all(value == slot.isoformat() for slot, value in slots.items())
    (flow,) = (one for one in fired if one.schedule == "flow")
    assert Task.objects.get(workflow_id=flow.handle.id).result == {"ok": flow.slot.isoformat()}
    assert [handle.value(0) for handle in others] == [None, None]
    assert {task.metadata["by"] for task in Task.objects.filter(schedule_id__isnull=False)} == {"us"}


def test_a_gathered_task_gets_one_call_for_each_slot(scheduler, drain):
    schedule("all", jobs.collect, Every(seconds=1), kwargs={"value": 1})
    assert check_schedules() == []
    scheduler.sync()

    for _ in range(2):
        make_due(1)
        assert not scheduler.run_once().deferred
    drain()

    row, task = Schedule.objects.get(), Task.objects.get()
    assert task.result == {"ok": [{"value": 1}, {"value": 1}]}
    assert (row.run_count, row.last_error, row.last_task_id, task.schedule_id) == (2, "", task.pk, row.pk)


def _by_sql(**values):
    columns = ", ".join(f"{name} = %s" for name in values)
    given = [Schedule._meta.get_field(name).get_db_prep_save(value, connection) for name, value in values.items()]
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE horsies_schedules SET {columns}", given)


def _by_queryset(**values):
    assert Schedule.objects.update(**values) == 1


@pytest.mark.django_db
@pytest.mark.parametrize("change", [_by_sql, _by_queryset])
def test_a_timing_changed_by_sql_or_update_recomputes_the_next_run(scheduler, change):
    row = make(timing="cron:0 0 29 2 *", timezone="UTC")
    assert scheduler.run_once().fired == ()

    change(timing="every:60")
    assert scheduler.run_once().fired == ()
    row.refresh_from_db()
    assert 55 < (row.next_run_at - database_now("default")).total_seconds() <= 60
    assert (row.planned_timing, row.planned_timezone) == ("every:60", "UTC")

    change(timing="cron:30 12 * * *")
    assert scheduler.run_once().fired == ()
    change(timezone="Asia/Kolkata")
    assert scheduler.run_once().fired == ()
    row.refresh_from_db()
    assert (row.next_run_at.hour, row.next_run_at.minute) == (7, 0)

    make_due(10)  # due, when its timing changes
    change(timing="cron:0 0 29 2 *")
    assert scheduler.run_once().fired == ()
    assert not Task.objects.exists()
    planned = Schedule.objects.get().next_run_at
    change(timing="cron:0 0 29 2 *")
    with CaptureQueriesContext(connection) as captured:
        scheduler.run_once()
    assert (Schedule.objects.get().next_run_at, len(captured)) == (planned, 1)


@pytest.mark.django_db
def test_a_window_changed_by_sql_or_update_applies(scheduler):
    now = database_now("default")
    row = make(timing="every:60", start_at=now + timedelta(days=300))
    Schedule.objects.update(start_at=now - timedelta(seconds=30))
    scheduler.run_once()
    row.refresh_from_db()
    assert (row.next_run_at - now).total_seconds() <= 60

    Schedule.objects.update(enabled=False)
    make_due(3_600)
    Schedule.objects.update(enabled=True)  # the slots of the meantime are not caught up
    assert scheduler.run_once().fired == ()
    make_due(5)
    Schedule.objects.update(jitter=0.0, end_at=None)  # unchanged values
    assert len(scheduler.run_once().fired) == 1

    make_due(5)
    _by_sql(end_at=now - timedelta(days=1), start_at=None)
    assert scheduler.run_once().fired == ()
    row.refresh_from_db()
    assert (row.enabled, row.disabled_by, row.run_count) == (False, "END", 1)


@on_postgresql
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "change",
    [
        lambda row: make("new"),
        lambda row: Schedule.objects.bulk_create([Schedule(name="new", timing="every:60", task_name=REPORT)]),
        lambda row: (setattr(row, "timing", "every:60"), row.save()),
        lambda row: Schedule.objects.update(timing="every:60"),
        lambda row: Schedule.objects.update(next_run_at=None),
        lambda row: (Schedule.objects.disable(), Schedule.objects.enable()),
    ],
    ids=["create", "bulk_create", "save", "update", "update of the next run", "enable"],
)
def test_a_change_of_a_schedule_notifies_schedulers(change):
    row = make()

    assert SCHEDULES_CHANGED in _heard_during(partial(change, row))


@on_postgresql
@pytest.mark.django_db(transaction=True)
def test_a_run_and_a_change_that_moves_no_run_notify_no_scheduler(scheduler):
    row = make()
    make_due(10)
    row.refresh_from_db()
    row.args = []

    assert SCHEDULES_CHANGED not in _heard_during(row.save)
    assert SCHEDULES_CHANGED not in _heard_during(scheduler.run_once)
    assert Task.objects.count() == 1


def _heard_during(act):
    with psycopg.connect(database_url(), autocommit=True) as other:
        other.execute(f"LISTEN {postgres.CHANNEL}")
        act()
        postgres.notify("default", "the end")
        return list(itertools.takewhile(lambda heard: heard != "the end", (one.payload for one in other.notifies())))


@pytest.mark.django_db(transaction=True)
def test_a_scheduler_that_expects_notifications_looks_when_it_is_woken(scheduler, monkeypatch):
    monkeypatch.setattr(scheduler_module, "NOTIFIED_INTERVAL", 3_600)
    scheduler.expect_notifications(3_600)
    make("first")
    make_due(10)
    thread = threading.Thread(target=lambda: (scheduler.run(), connections.close_all()))
    thread.start()
    try:
        wait_until(lambda: Task.objects.count() == 1)
        make("second")
        make_due(10, name="second")
        scheduler.wake()
        wait_until(lambda: Task.objects.count() == 2)
    finally:
        scheduler.stop()
        thread.join(30)


@pytest.mark.django_db
def test_a_scheduler_looks_less_often_only_while_it_expects_notifications(scheduler, monkeypatch):
    def pause_at(now):
        monkeypatch.setattr(scheduler_module, "time", SimpleNamespace(monotonic=lambda: now))
        return scheduler.run_once().pause

    assert pause_at(0.0) == 1.0
    scheduler.expect_notifications(60)
    assert (pause_at(59.0), pause_at(61.0)) == (5.0, 1.0)
