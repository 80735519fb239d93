"""The beat: each slot once, with all that its task says; catching up, overlaps, errors."""

import threading
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from types import SimpleNamespace

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from horsies_django import Every, schedule
from horsies_django.checks import check_schedules
from horsies_django.core.backends import config_of
from horsies_django.db.clock import database_now
from horsies_django.models import Schedule, Task, Workflow
from horsies_django.models.transitions import DEADLOCK
from horsies_django.schedules import dispatch, fire_due, scheduler
from horsies_django.schedules.scheduler import Scheduler
from tests.conftest import wait_until
from tests.schedules import jobs
from tests.schedules.conftest import make, put_back
from tests.schedules.jobs import Asking, report

REPORT = "tests.schedules.jobs.report"


@pytest.mark.django_db
def test_a_due_slot_is_sent_once_and_the_next_is_an_interval_later(beat):
    row = make()
    put_back(10)
    slot = Schedule.objects.get().next_run_at

    (passed,) = beat.run_once().fired
    again = beat.run_once()

    row.refresh_from_db()
    assert again.fired == ()
    assert Task.objects.get().schedule_id == row.pk
    assert (row.last_task_id, row.last_slot_at, row.run_count) == (passed.handle.id, slot, 1)
    assert row.next_run_at == slot + timedelta(hours=1)
    assert row.last_run_at is not None


@pytest.mark.django_db
def test_the_first_run_waits_for_the_next_slot(beat):
    row = make(timing="every:600")

    assert beat.run_once().fired == ()
    assert 595 < (row.next_run_at - database_now("default")).total_seconds() <= 600


@pytest.mark.django_db
def test_a_scheduled_fire_has_the_retry_policy_and_the_timeout_of_its_task(beat):
    make(
        task=REPORT,
        kwargs={"copies": 2},
        options={"priority": 7, "good_for": 60, "retention": {"completed": 3600, "failed": "2h"}},
    )
    put_back(10)

    beat.run_once()

    sent, direct = Task.objects.get(), Task.objects.get(pk=report.send().id)
    assert (sent.max_retries, sent.retry_policy, sent.timeout) == (direct.max_retries, direct.retry_policy, 30)
    assert (sent.priority, sent.kwargs, sent.retention) == (7, {"copies": 2}, timedelta(hours=1))
    assert sent.retention_by_state == {"failed": 7_200}
    assert 50 < (sent.good_until - sent.sent_at).total_seconds() < 70


@pytest.mark.django_db
def test_a_schedule_starts_a_workflow(beat):
    row = Schedule.objects.create(
        name="w", timing="every:3600", workflow_name="tests.schedules.import", kwargs={"day": "monday"}
    )
    put_back(10)

    beat.run_once()

    row.refresh_from_db()
    workflow = Workflow.objects.get()
    assert (workflow.schedule_id, workflow.pk) == (row.pk, row.last_workflow_id)
    assert Task.objects.get().kwargs == {"day": "monday"}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("policy", "most", "count"), [("latest", 100, 1), ("all", 100, 73), ("all", 5, 5), ("none", 100, 0)]
)
def test_after_three_days_down_one_all_the_latest_few_or_none_are_run(beat, policy, most, count):
    make(catch_up=policy, max_catch_up_runs=most)
    put_back(3 * 86_400 + 600)
    first = Schedule.objects.get().next_run_at

    beat.run_once()

    row = Schedule.objects.get()
    assert Task.objects.count() == row.run_count == count
    assert row.last_slot_at == first + timedelta(hours=72)
    assert row.next_run_at == first + timedelta(hours=73)


@pytest.mark.django_db
def test_of_thousands_of_missed_slots_each_is_run_by_several_transactions(beat):
    make(timing="every:60", catch_up="all", max_catch_up_runs=250)
    put_back(3 * 86_400)

    for _ in range(3):
        beat.run_once()

    assert Task.objects.count() == 250
    assert beat.run_once().fired == ()


@pytest.mark.django_db
def test_of_missed_slots_those_that_fail_are_left_out_alone(beat):
    make("alone", timing="every:60", catch_up="all", task="tests.schedules.jobs.alone")
    put_back(125)

    sent, *others = beat.run_once().fired

    assert Task.objects.get().pk == sent.handle.id
    assert ["UniqueKeyHeld" in one.error or "alone" in one.error for one in others] == [True, True]
    row = Schedule.objects.get()
    assert (row.run_count, row.last_slot_at) == (1, others[-1].slot)
    assert row.last_error in [one.error for one in others]


@pytest.mark.django_db
def test_a_slot_that_is_seconds_late_counts_as_missed_for_nobody(beat):
    make(catch_up="none")
    put_back(fire_due.MISSED_AFTER / 2)

    beat.run_once()

    assert Task.objects.count() == 1


@pytest.mark.django_db
def test_a_schedule_past_its_end_is_disabled(beat):
    now = database_now("default")
    make(timing=f"cron:0 {(now.hour + 12) % 24} * * *", end_at=now + timedelta(minutes=1))
    assert Schedule.objects.get().disabled_by == "END"

    make("t", timing="every:3600", end_at=database_now("default") + timedelta(minutes=90))
    Schedule.objects.filter(name="t").update(end_at=database_now("default") + timedelta(minutes=30))
    put_back(10, name="t")
    beat.run_once()

    row = Schedule.objects.get(name="t")
    assert (row.enabled, row.disabled_by, row.next_run_at, row.run_count) == (False, "END", None, 1)


@pytest.mark.django_db
def test_skip_leaves_a_slot_out_while_the_run_before_lives(beat):
    make(overlap="skip")
    for _ in range(2):
        put_back(10)
        (passed,) = beat.run_once().fired
    assert Task.objects.count() == 1
    assert passed.handle is None
    assert not passed.error

    Task.objects.cancel()
    put_back(10)
    beat.run_once()

    assert Task.objects.count() == 2


@pytest.mark.django_db
def test_cancel_previous_cancels_the_run_before(beat):
    make(overlap="cancel_previous")
    for _ in range(3):
        put_back(10)
        beat.run_once()

    assert sorted(Task.objects.values_list("status", flat=True)) == ["CANCELLED", "CANCELLED", "PENDING"]


@pytest.mark.django_db
@pytest.mark.parametrize("what", [{"task_name": REPORT}, {"workflow_name": "tests.schedules.import"}])
def test_a_run_now_hides_no_run_that_lives_from_the_overlap(beat, what):
    row = Schedule.objects.create(name="s", timing="every:3600", overlap="skip", **what)
    kind = Task if row.task_name else Workflow
    put_back(10)
    beat.run_once()
    (by_hand,) = Schedule.objects.all().run_now()
    by_hand.cancel()

    put_back(10)
    (skipped,) = beat.run_once().fired
    assert (skipped.handle, kind.objects.count()) == (None, 2)

    Schedule.objects.all().run_now()
    Schedule.objects.update(overlap="cancel_previous")
    put_back(10)
    (sent,) = beat.run_once().fired
    assert kind.objects.exclude(pk=sent.handle.id).filter(status="CANCELLED").count() == 3


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(not connection.features.has_select_for_update, reason="SQLite locks no rows")
def test_a_run_now_and_the_beat_lock_in_one_order(beat):
    row = make(options={"unique_key": "alone"})
    put_back(10)
    thread = threading.Thread(target=lambda: (Schedule.objects.all().run_now(), connections.close_all()))
    with transaction.atomic():
        Schedule.objects.filter(pk=row.pk).locked().get()
        thread.start()
        wait_until(_is_waited_for)
        assert Task.objects.count() == 0
        assert dispatch.send(row, dispatch.prepare(row, database_now("default")))
    thread.join(30)

    assert Task.objects.count() == 1


def _is_waited_for():
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return cursor.fetchone()[0] > 0


@pytest.mark.django_db
def test_overlap_looks_at_workflows_too(beat):
    row = Schedule.objects.create(
        name="w", timing="every:3600", workflow_name="tests.schedules.import", overlap="cancel_previous"
    )
    for _ in range(2):
        put_back(10)
        beat.run_once()
    assert sorted(Workflow.objects.values_list("status", flat=True)) == ["CANCELLED", "RUNNING"]

    Schedule.objects.filter(pk=row.pk).update(overlap="skip")
    put_back(10)
    beat.run_once()

    assert Workflow.objects.count() == 2


@pytest.mark.django_db
def test_a_permanent_error_skips_its_slot_is_told_and_stops_no_other(beat):
    make("gone", task="tests.jobs.tasks.gone")
    make("no task", task="os.remove", args=["/nowhere"])
    make("bad arguments", task="tests.jobs.tasks.add", kwargs={"a": 1, "nope": 1})
    Schedule.objects.create(
        name="refusing", timing="every:3600", workflow_name="tests.schedules.refusing", kwargs={"source": "none"}
    )
    make("well")
    put_back(fire_due.MISSED_AFTER + 10)

    passed = {one.schedule: one for one in beat.run_once().fired}

    assert Task.objects.get().schedule_id == Schedule.objects.get(name="well").pk
    errors = dict(Schedule.objects.values_list("name", "last_error"))
    assert "gone" in errors["gone"]
    assert "not a registered task" in errors["no task"]
    assert "nope" in errors["bad arguments"]
    assert "no source today" in errors["refusing"]
    assert errors["well"] == ""
    assert all(passed[name].error for name in errors if name != "well")
    assert beat.run_once().fired == ()
    assert not Schedule.objects.filter(next_run_at__lte=database_now("default")).exists()


@pytest.mark.django_db
def test_what_a_scheduler_can_not_find_is_left_to_others_for_a_minute(beat):
    make("newer", task="tests.jobs.of_the_next_deploy.task")
    Schedule.objects.create(name="theirs", timing="every:3600", workflow_name="of.another.project")
    make("well")
    put_back(fire_due.MISSED_AFTER / 2)
    planned = set(Schedule.objects.exclude(name="well").values_list("next_run_at", "last_error"))

    report = beat.run_once()

    assert [one.schedule for one in report.fired] == ["well"]
    assert {one.schedule for one in report.deferred} == {"newer", "theirs"}
    assert set(Schedule.objects.exclude(name="well").values_list("next_run_at", "last_error")) == planned

    put_back(fire_due.MISSED_AFTER + 10, name__in=["newer", "theirs"])
    passed = Scheduler(config_of("default"), "default").run_once().fired

    assert ["of_the_next_deploy" in one.error for one in passed].count(True) == 1
    assert ["of.another.project" in one.error for one in passed].count(True) == 1
    assert not Schedule.objects.filter(last_error="", run_count=0).exists()


@pytest.mark.django_db
def test_a_good_run_clears_the_error_of_the_one_before(beat):
    make(last_error="old")
    put_back(10)

    beat.run_once()

    assert Schedule.objects.get().last_error == ""


@contextmanager
def refusing(task, sqlstate):
    """Have the database refuse new rows of a task with this error; yields what counts the tries."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE SEQUENCE tries; CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            f" PERFORM nextval('tries'); RAISE EXCEPTION 'refused' USING ERRCODE = '{sqlstate}'; END $$;"
            f" CREATE TRIGGER refuse BEFORE INSERT ON horsies_tasks FOR EACH ROW WHEN (NEW.task_name = '{task}')"
            f" EXECUTE FUNCTION refuse()"
        )
    try:
        yield partial(_asked, "SELECT last_value FROM tries")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TRIGGER refuse ON horsies_tasks; DROP FUNCTION refuse(); DROP SEQUENCE tries")


def _asked(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()[0]


on_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="its triggers raise what they please")


@on_postgresql
@pytest.mark.django_db(transaction=True)
def test_a_transient_error_leaves_the_slot_for_a_later_look_and_the_others_alone(beat):
    make("first", task=REPORT)
    make("second")
    put_back(20, name="first")
    put_back(10, name="second")
    planned = Schedule.objects.get(name="first").next_run_at

    with refusing(REPORT, DEADLOCK):
        looked = beat.run_once()
    assert [one.schedule for one in looked.fired] == ["second"]
    (left,) = map(str, looked.deferred)
    assert left.startswith("first: left for later: OperationalError: refused")
    assert Schedule.objects.get(name="first").next_run_at == planned

    wait_until(lambda: [one.schedule for one in beat.run_once().fired] == ["first"])


@on_postgresql
@pytest.mark.django_db(transaction=True)
def test_what_fails_for_now_is_tried_less_and_less_often(beat, monkeypatch):
    make(task=REPORT)
    put_back(10)

    with refusing(REPORT, DEADLOCK) as tries:
        counts = []
        for now in (0.0, 0.09, 0.11, 0.30, 0.32, 0.71, 0.73, 1.0):  # retried after 0.1, 0.2, 0.4 and 0.8 seconds
            monkeypatch.setattr(scheduler, "time", SimpleNamespace(monotonic=lambda now=now: now))
            is_tried = bool(beat.run_once().deferred)
            counts.append((is_tried, tries()))

    assert counts == [(True, 1), (False, 1), (True, 2), (False, 2), (True, 3), (False, 3), (True, 4), (False, 4)]


@on_postgresql
@pytest.mark.django_db(transaction=True)
def test_an_error_of_the_database_that_would_come_again_skips_its_slot(beat):
    make(task=REPORT)
    put_back(10)

    with refusing(REPORT, "42P01"):  # there is no such table
        (passed,) = beat.run_once().fired

    row = Schedule.objects.get()
    assert passed.error.startswith("ProgrammingError: refused")
    assert (row.last_error, row.last_slot_at) == (passed.error, passed.slot)
    assert row.next_run_at > database_now("default")


@pytest.mark.django_db(transaction=True)
def test_a_workflow_is_built_in_no_transaction_so_its_builder_may_fail_at_a_query(beat):
    row = Schedule.objects.create(
        name="w", timing="every:3600", workflow_name="tests.schedules.asking", kwargs={"asks": True}
    )
    put_back(10)

    (passed,) = beat.run_once().fired
    assert Asking.was_in_a_transaction is False
    assert Workflow.objects.get().pk == passed.handle.id

    Asking.was_in_a_transaction = None
    Schedule.objects.filter(pk=row.pk).run_now()
    assert Asking.was_in_a_transaction is False


@pytest.mark.django_db
def test_a_timing_that_cannot_be_read_disables_its_schedule_alone(beat):
    make("broken")
    make("well")
    Schedule.objects.filter(name="broken").update(timing="cron:61 * * * *")
    put_back(10)

    beat.run_once()

    row = Schedule.objects.get(name="broken")
    assert (row.enabled, row.disabled_by) == (False, "TIMING")
    assert "the minute is '61'" in row.last_error
    assert Schedule.objects.get(name="well").run_count == 1


@pytest.mark.django_db
def test_a_row_without_a_next_run_gets_one(beat):
    make()
    Schedule.objects.update(next_run_at=None)

    beat.run_once()

    assert Schedule.objects.get().next_run_at > database_now("default")
    assert not Task.objects.exists()


@pytest.mark.django_db
def test_jitter_keeps_its_slots_on_the_grid(beat):
    row = make(timing="every:100", jitter=50)
    slot, run_at = row.next_slot_at, row.next_run_at
    Schedule.objects.update(
        next_run_at=run_at - timedelta(seconds=160), next_slot_at=slot - timedelta(seconds=160)
    )  # no slot has that jitter: it counts as put there
    beat.run_once()

    row.refresh_from_db()
    assert row.run_count == 1
    assert row.next_run_at == row.slots.due_at(row.next_slot_at)
    assert 0 <= (row.next_run_at - row.next_slot_at).total_seconds() < 50


@pytest.mark.django_db
def test_other_backends_and_other_projects_rows_are_left_alone(beat):
    make("elsewhere", backend="other")
    make("theirs", source="another_project")
    make("disabled")
    put_back(10)
    Schedule.objects.filter(name="disabled").update(enabled=False)

    assert beat.run_once().fired == ()


@pytest.mark.django_db
def test_an_idle_look_is_one_statement_whatever_the_number_of_schedules(beat):
    for number in range(20):
        make(f"s{number}")

    with CaptureQueriesContext(connection) as captured:
        report = beat.run_once()

    assert len(captured) == 1
    assert report.pause == 1.0


@pytest.mark.django_db(transaction=True)
def test_of_two_that_see_a_slot_due_one_sends_it(beat):
    row = make()
    put_back(10)
    rows, now = Schedule.objects.all(), database_now("default")
    planned = Schedule.objects.get().next_run_at

    first = list(fire_due.fire_due(rows, row.pk, planned, now))
    second = list(fire_due.fire_due(rows, row.pk, planned, now))

    assert (len(first), second) == (1, [])
    assert Task.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_due_slot_is_sent_within_a_second(monkeypatch):
    make(timing="every:1")
    loop = Scheduler(config_of("default"), "default")
    passed, run_once = [], loop.run_once

    def noted():
        report = run_once()
        passed.extend(report.fired)
        return report

    monkeypatch.setattr(loop, "run_once", noted)

    def run():
        try:
            loop.run()
        finally:
            connections.close_all()

    def three_in_a_row_were_in_time():
        known = list(passed)
        sent_at = dict(Task.objects.values_list("pk", "sent_at"))
        slots = [one.slot for one in known if sent_at[one.handle.id] - one.slot < timedelta(seconds=1)]
        return any(third - first == timedelta(seconds=2) for first, third in zip(slots, slots[2:], strict=False))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(three_in_a_row_were_in_time)  # not each: the machine may stand still for a slot
    finally:
        loop.stop()
        thread.join(30)


@pytest.mark.django_db
def test_a_slot_whose_unique_key_a_live_run_holds_is_skipped_and_not_counted(beat):
    make(options={"unique_key": "alone"})
    Schedule.objects.create(name="w", timing="every:3600", workflow_name="tests.schedules.slotted")
    put_back(10)
    assert [one.handle is not None for one in beat.run_once().fired] == [True, True]
    ran_at = list(Schedule.objects.values_list("last_run_at", flat=True))

    put_back(10)
    assert [(one.handle, one.error) for one in beat.run_once().fired] == [(None, ""), (None, "")]
    handles = Schedule.objects.all().run_now()

    assert [handle.replayed for handle in handles] == [True, True]
    assert list(Schedule.objects.values_list("run_count", "last_error")) == [(1, ""), (1, "")]
    assert list(Schedule.objects.values_list("last_run_at", flat=True)) == ran_at
    assert [row.last_run_id for row in Schedule.objects.order_by("pk")] == [handle.id for handle in handles]


def test_each_run_knows_its_slot_and_what_no_schedule_has_sent_has_none(beat, drain):
    make("missed", task="tests.schedules.jobs.slot", catch_up="all", options={"metadata": {"by": "us"}})
    Schedule.objects.create(name="flow", timing="every:3600", workflow_name="tests.schedules.slotted")
    put_back(6 * 3_600 + 60, name="missed")
    put_back(60, name="flow")
    passed = beat.run_once().fired
    others = [*Schedule.objects.filter(name="missed").run_now(), jobs.slot.send()]

    drain()

    slots = {one.slot: one.handle.value(0) for one in passed if one.schedule == "missed"}
    assert len(slots) == 7
    assert all(value == slot.isoformat() for slot, value in slots.items())
    (flow,) = (one for one in passed if one.schedule == "flow")
    assert Task.objects.get(workflow_id=flow.handle.id).result == {"ok": flow.slot.isoformat()}
    assert [handle.value(0) for handle in others] == [None, None]
    assert {task.metadata["by"] for task in Task.objects.filter(schedule_id__isnull=False)} == {"us"}


def test_a_task_whose_calls_are_gathered_is_handed_a_call_for_each_slot(beat, drain):
    schedule("all", jobs.collect, Every(seconds=1), kwargs={"value": 1})
    assert check_schedules() == []
    beat.sync()

    for _ in range(2):
        put_back(1)
        assert beat.run_once().deferred == ()
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
def test_a_timing_that_is_changed_past_the_model_has_its_next_run_worked_out_anew(beat, change):
    row = make(timing="cron:0 0 29 2 *", timezone="UTC")
    assert beat.run_once().fired == ()

    change(timing="every:60")
    assert beat.run_once().fired == ()
    row.refresh_from_db()
    assert 55 < (row.next_run_at - database_now("default")).total_seconds() <= 60
    assert (row.planned_timing, row.planned_timezone) == ("every:60", "UTC")

    change(timing="cron:30 12 * * *")
    assert beat.run_once().fired == ()
    change(timezone="Asia/Kolkata")
    assert beat.run_once().fired == ()
    row.refresh_from_db()
    assert (row.next_run_at.hour, row.next_run_at.minute) == (7, 0)

    put_back(10)  # due, when its timing changes
    change(timing="cron:0 0 29 2 *")
    assert beat.run_once().fired == ()
    assert not Task.objects.exists()
    planned = Schedule.objects.get().next_run_at
    change(timing="cron:0 0 29 2 *")
    with CaptureQueriesContext(connection) as captured:
        beat.run_once()
    assert (Schedule.objects.get().next_run_at, len(captured)) == (planned, 1)


@pytest.mark.django_db
def test_a_window_that_is_changed_past_the_model_is_kept_to(beat):
    now = database_now("default")
    row = make(timing="every:60", start_at=now + timedelta(days=300))
    Schedule.objects.update(start_at=now - timedelta(seconds=30))
    beat.run_once()
    row.refresh_from_db()
    assert (row.next_run_at - now).total_seconds() <= 60

    Schedule.objects.update(enabled=False)
    put_back(3_600)
    Schedule.objects.update(enabled=True)  # what passed meanwhile is not made up for
    assert beat.run_once().fired == ()
    put_back(5)
    Schedule.objects.update(jitter=0.0, end_at=None)  # as it was
    assert len(beat.run_once().fired) == 1

    put_back(5)
    _by_sql(end_at=now - timedelta(days=1), start_at=None)
    assert beat.run_once().fired == ()
    row.refresh_from_db()
    assert (row.enabled, row.disabled_by, row.run_count) == (False, "END", 1)


@pytest.mark.django_db
def test_without_time_zones_times_are_taken_for_utc(beat, settings):
    settings.USE_TZ = False
    make(timing="cron:0 0 1 * *", timezone="Asia/Tokyo", jitter=5)
    put_back(10)

    beat.run_once()

    row = Schedule.objects.get()
    assert (row.run_count, row.last_error) == (1, "")
    assert row.next_slot_at.hour == 15  # of the day before, in UTC
