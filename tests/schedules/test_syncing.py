"""Declared schedules: checks, and how sync writes them as rows."""

import importlib
import threading
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import connections, transaction

from horsies_django import Cron, Every, schedule
from horsies_django.checks import check_schedules
from horsies_django.core.backends import config_of
from horsies_django.core.clock import aware
from horsies_django.core.compat import BaseTaskBackend
from horsies_django.db.clock import database_now
from horsies_django.db.expressions import NowPlus
from horsies_django.models import Lease, Schedule
from horsies_django.schedules.declaration import declarations
from horsies_django.schedules.scheduler import Scheduler, lease_name
from horsies_django.testing import travel
from tests.conftest import wait_until
from tests.jobs.tasks import add, noop
from tests.schedules.conftest import make, utc
from tests.schedules.jobs import Import, collect, report


def redeclared(*args, **kwargs):
    declarations.by_place.clear()
    return schedule(*args, **kwargs)


@pytest.mark.once
def test_check_schedules_reports_all_mistakes_and_duplicate_names_together():
    schedule("a", add, Cron("61 * * * *"), kwargs={"a": 1})
    schedule("b", add, Every(minutes=5), kwargs={"a": 1, "nope": 1})
    schedule("c", add, Every(minutes=5), args=(1,), timezone="Mars/Olympus", overlap="queue")
    schedule("d", print, "daily", colour="red")
    schedule("e", noop, Every(hours=1))
    schedule("e", noop, Every(hours=2))

    messages = check_schedules()

    texts = "\n".join(message.msg for message in messages)
    for expected in (
        "'61 * * * *': the minute is '61'",
        "nope",
        "'Mars/Olympus'",
        "'queue'",
        "print",
        "'daily'",
        "'colour'",
    ):
        assert expected in texts
    assert [message.id for message in messages].count("horsies.E006") == 2


@pytest.mark.once
def test_check_schedules_reports_duplicates_of_one_line_but_not_a_reload(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "declaring_twice.py").write_text(
        "from horsies_django import Every, schedule\n"
        "from tests.jobs.tasks import noop\n"
        "def declare(name, hours): schedule(name, noop, Every(hours=hours))\n"
        "for hours in (1, 1): schedule('loop', noop, Every(hours=hours))\n"
        "declare('helper', 1)\n"
        "declare('helper', 2)\n"
        "schedule('once', noop, Every(hours=1))\n"
    )

    module = importlib.import_module("declaring_twice")
    first = check_schedules()
    importlib.reload(module)

    assert sorted(message.msg for message in first) == [
        "schedule 'helper' (declaring_twice:3): this line declares 2 of that name; allowed: a name for each.",
        "schedule 'loop' (declaring_twice:4): this line declares 2 of that name; allowed: a name for each.",
    ]
    assert [message.id for message in first] == ["horsies.E006"] * 2
    assert check_schedules() == first


@pytest.mark.once
def test_check_schedules_reports_invalid_arguments_of_gathered_tasks():
    schedule("a", collect, Every(hours=1), kwargs={"items": [{"value": 1}]})
    schedule("b", collect, Every(hours=1), (1,))
    schedule("c", collect, Every(hours=1), kwargs={"value": 1}, unique_key="c")
    schedule("d", collect, Every(hours=1), kwargs={"value": 1}, overlap="cancel_previous")

    texts = [message.msg for message in check_schedules()]

    expected = ("the keyword arguments of one call", "keyword arguments only", "unique_key is 'c'", "'allow' or 'skip'")
    assert [part in text for part, text in zip(expected, texts, strict=True)] == [True] * 4


def test_a_schedule_uses_the_projects_time_zone_by_default(scheduler, settings):
    settings.TIME_ZONE = "Asia/Tokyo"
    schedule("ours", noop, Cron("0 9 * * *"))
    schedule("theirs", noop, Cron("0 9 * * *"), timezone="UTC")

    scheduler.sync()
    make("by hand", timing="cron:0 9 * * *")

    rows = {row.name: (row.timezone, aware(row.next_run_at).hour) for row in Schedule.objects.all()}
    assert rows == {"ours": ("Asia/Tokyo", 0), "theirs": ("UTC", 9), "by hand": ("Asia/Tokyo", 0)}


@pytest.mark.once
def test_check_schedules_warns_of_a_cron_expression_that_cron_reads_differently():
    schedule("a", noop, Cron("*/61 0 */2 * MON"))
    schedule("b", noop, Cron("*/61 24 * * *"))

    messages = {message.id: message.msg for message in check_schedules()}

    assert messages.keys() == {"horsies.W011", "horsies.E005"}
    assert "schedule 'a' (tests.schedules.test_syncing:" in messages["horsies.W011"]
    assert "schedule 'b'" in messages["horsies.E005"]


@pytest.mark.once
def test_check_schedules_accepts_valid_declarations():
    schedule(
        "a",
        report,
        Every(minutes=5),
        ("monday",),
        {"copies": 2},
        queue_name="mail",
        retention={"failed": timedelta(days=1)},
    )
    schedule("b", Import, Cron("0 9 * * MON-FRI"), kwargs={"day": "friday"}, timezone="Europe/Berlin")

    assert check_schedules() == []


def test_sync_writes_declared_schedules_as_rows(scheduler):
    schedule(
        "a", report, Every(minutes=5), ("monday",), queue_name="mail", retention={"failed": timedelta(days=1)}, jitter=2
    )
    schedule("b", Import, Cron("0 9 * * *"), timezone="Europe/Berlin", enabled=False)

    assert scheduler.sync().created == 2
    assert scheduler.sync().changed == 0

    a, b = Schedule.objects.order_by("name")
    assert (a.timing, a.task_name, a.args, a.source) == (
        "every:300",
        "tests.schedules.jobs.report",
        ["monday"],
        "tests",
    )
    assert (a.options, a.jitter) == ({"queue_name": "mail", "retention": {"failed": 86_400.0}}, 2)
    assert a.next_run_at > database_now("default")
    assert (b.workflow_name, b.enabled, b.disabled_by) == ("tests.schedules.import", False, "CODE")


def test_sync_recomputes_the_next_run_only_if_the_timing_changed(scheduler):
    schedule("a", noop, Every(hours=5))
    scheduler.sync()
    planned = Schedule.objects.get().next_run_at

    redeclared("a", add, Every(hours=5), (1,), priority=4)
    scheduler.sync()
    row = Schedule.objects.get()
    assert (row.task_name, row.args, row.options) == ("tests.jobs.tasks.add", [1], {"priority": 4})
    assert row.next_run_at == planned

    redeclared("a", add, Every(minutes=1), (1,), priority=4)
    scheduler.sync()
    assert Schedule.objects.get().next_run_at < planned


def test_sync_leaves_a_schedule_that_another_process_may_declare(scheduler):
    schedule("a", noop, Every(hours=5))
    schedule("b", noop, Every(hours=5))
    scheduler.sync()
    before = Schedule.objects.values().get(name="b")

    redeclared("a", noop, Every(hours=6))
    scheduler.sync()

    assert Schedule.objects.values().get(name="b") == before


def test_a_removed_schedule_is_disabled_after_ten_minutes_and_a_restored_one_enabled_on_the_same_grid(scheduler):
    schedule("a", noop, Every(hours=5))
    schedule("b", noop, Every(hours=5))
    scheduler.sync()
    planned = Schedule.objects.get(name="a").next_run_at
    Schedule.objects.filter(name="b").disable()
    declarations.by_place.clear()

    with travel(minutes=9):
        assert scheduler.disable_undeclared() == []
    with travel(minutes=11):
        assert scheduler.disable_undeclared() == ["a"]
        assert scheduler.disable_undeclared() == []
    assert list(Schedule.objects.order_by("name").values_list("disabled_by", flat=True)) == ["CODE", "OPERATOR"]

    with travel(hours=11):
        schedule("a", noop, Every(hours=5))
        schedule("b", noop, Every(hours=5))
        assert scheduler.sync().changed == 2
        a, b = Schedule.objects.order_by("name")
        assert (a.enabled, a.disabled_by, a.next_run_at - planned) == (True, "", timedelta(hours=10))
        assert (b.enabled, b.disabled_by) == (False, "OPERATOR")
        assert scheduler.disable_undeclared() == []


@pytest.fixture
def running(transactional_db):
    """Run a scheduler that disables schedules after a number of seconds without a declaration, until the test ends."""
    with ExitStack() as stack:

        def start(seconds):
            options = replace(config_of("default"), disable_undeclared_schedules_after=seconds)
            loop = Scheduler(options, "default", interval=0.01)
            thread = threading.Thread(target=lambda: (loop.run(), connections.close_all()))
            stack.callback(thread.join, 30)
            stack.callback(loop.stop)
            thread.start()

        yield start


@pytest.mark.slow
def test_a_running_scheduler_declares_its_schedules_again_and_disables_what_nobody_declares(running, caplog):
    schedule("a", noop, Every(hours=5))
    schedule("gone", noop, Every(hours=5))
    Scheduler(config_of("default"), "default").sync()
    redeclared("a", noop, Every(hours=5))

    running(10)
    wait_until(lambda: not Schedule.objects.get(name="gone").enabled, limit=60)

    wait_until(lambda: "schedule disabled name='gone': no process has declared it for 10 s" in caplog.text)
    first = Schedule.objects.get(name="a")
    Schedule.objects.update(max_catch_up_runs=7)
    wait_until(lambda: Schedule.objects.get(name="a").declared_at > first.declared_at)
    again = Schedule.objects.get(name="a")
    assert (again.enabled, again.next_run_at, again.max_catch_up_runs) == (True, first.next_run_at, 7)


def test_a_scheduler_that_has_just_started_disables_nothing_and_enables_what_it_declares(running):
    schedule("theirs", noop, Every(hours=5))
    schedule("ours", noop, Every(hours=5))
    Scheduler(config_of("default"), "default").sync()
    Schedule.objects.update(declared_at=NowPlus(-3_600))
    redeclared("ours", noop, Every(hours=5))

    running(600)
    wait_until(lambda: Lease.objects.filter(name=lease_name("default")).exists())

    assert Schedule.objects.filter(enabled=True).count() == 2


@pytest.mark.slow
def test_a_schedule_that_was_disabled_during_a_pause_of_its_process_is_enabled_by_it(running):
    schedule("a", noop, Every(hours=5))
    running(10)
    wait_until(lambda: Schedule.objects.exists())

    with transaction.atomic():
        Schedule.objects.update(declared_at=NowPlus(-10))
        assert Schedule.objects.all().disable_undeclared(5) == ["a"]

    wait_until(lambda: Schedule.objects.get().enabled)


def test_sync_leaves_manual_rows_and_rows_of_other_projects_unchanged(scheduler):
    make("by hand", timing="every:60")
    make("theirs", timing="every:60", source="another_project")
    schedule("by hand", noop, Every(hours=5))
    schedule("theirs", noop, Every(hours=5))

    scheduler.sync()

    assert set(Schedule.objects.values_list("timing", "enabled")) == {("every:60", True)}
    assert Schedule.objects.count() == 2


def test_sync_keeps_a_schedule_disabled_by_an_operator(scheduler):
    schedule("a", noop, Every(hours=5))
    scheduler.sync()
    Schedule.objects.disable()

    redeclared("a", noop, Every(hours=6))
    scheduler.sync()

    row = Schedule.objects.get()
    assert (row.timing, row.enabled, row.disabled_by, row.next_run_at) == ("every:21600", False, "OPERATOR", None)


@pytest.mark.parametrize("reason", ["CODE", "END", "TIMING"])
def test_sync_keeps_a_disabled_schedule_that_an_operator_disables_again(scheduler, reason):
    schedule("a", noop, Every(hours=5))
    scheduler.sync()
    Schedule.objects.update(enabled=False, disabled_by=reason, declared_enabled=None)

    assert Schedule.objects.disable() == 1
    assert Schedule.objects.disable() == 0
    redeclared("a", noop, Every(hours=6))
    scheduler.sync()

    row = Schedule.objects.get()
    assert (row.timing, row.enabled, row.disabled_by) == ("every:21600", False, "OPERATOR")


def test_sync_keeps_an_operators_enable_until_the_code_changes_enabled(scheduler):
    schedule("a", noop, Every(hours=5), enabled=False)
    scheduler.sync()
    assert Schedule.objects.enable() == 1

    scheduler.sync()
    redeclared("a", noop, Every(hours=6), enabled=False)
    scheduler.sync()
    row = Schedule.objects.get()
    assert (row.enabled, row.timing) == (True, "every:21600")
    assert row.next_run_at is not None

    redeclared("a", noop, Every(hours=6))
    scheduler.sync()
    redeclared("a", noop, Every(hours=6), enabled=False)
    scheduler.sync()
    row = Schedule.objects.get()
    assert (row.enabled, row.disabled_by, row.next_run_at) == (False, "CODE", None)


def test_sync_keeps_a_removed_schedule_that_an_operator_enabled(scheduler):
    schedule("a", noop, Every(hours=5))
    scheduler.sync()
    declarations.by_place.clear()
    with travel(hours=1):
        assert scheduler.disable_undeclared() == ["a"]
        Schedule.objects.enable()
    with travel(hours=2):
        assert scheduler.disable_undeclared() == []

    assert Schedule.objects.get().enabled


def test_sync_enables_an_ended_schedule_only_after_its_window_changes(scheduler):
    schedule("a", noop, Every(hours=5), end_at=utc(2026, 1, 1))
    scheduler.sync()
    scheduler.sync()
    assert Schedule.objects.get().disabled_by == "END"

    redeclared("a", noop, Every(hours=5), end_at=None)
    scheduler.sync()
    assert Schedule.objects.get().enabled


def test_sync_leaves_the_row_of_an_invalid_declaration_unchanged(scheduler):
    schedule("a", noop, Every(hours=5))
    scheduler.sync()

    redeclared("a", noop, Cron("61 * * * *"))
    scheduler.sync()

    row = Schedule.objects.get()
    assert (row.timing, row.enabled) == ("every:18000", True)


def test_the_project_option_sets_the_source_of_schedules(scheduler, settings):
    from horsies_django.core.backends import config_of
    from horsies_django.schedules.scheduler import Scheduler

    settings.TASKS = {"default": {**settings.TASKS["default"], "OPTIONS": {"project": "shop"}}}
    schedule("a", noop, Every(hours=5))
    Scheduler(config_of("default"), "default").sync()

    assert Schedule.objects.get().source == "shop"


@pytest.mark.once
def test_check_schedules_reports_nothing_without_a_horsies_backend(settings):
    package = BaseTaskBackend.__module__.removesuffix(".base")
    settings.TASKS = {"default": {"BACKEND": f"{package}.dummy.DummyBackend"}}
    schedule("a", noop, Every(hours=5))

    assert check_schedules() == []
