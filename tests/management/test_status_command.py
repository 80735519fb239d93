"""``manage.py horsies_status``."""

import json
import re

import pytest
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from horsies_django.core.compat import task_backends
from horsies_django.core.options import Options
from horsies_django.db.expressions import NowPlus
from horsies_django.models import Task, TaskAttempt, Worker, depths
from horsies_django.reaper.duties import run_pass
from horsies_django.testing import travel
from tests.conftest import Process
from tests.jobs import tasks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


def test_the_status_command_works_with_no_tasks_and_no_worker(manage):
    process = manage("horsies_status")

    assert process.wait() == 0
    assert "There is no worker" in process.output
    assert "reaper's last pass: never" in process.output
    assert {"completed 0", "overdue (past good_until) 0"} <= {
        " ".join(line.split()) for line in process.output.splitlines()
    }


@pytest.mark.slow
def test_the_json_status_is_one_object_with_counts_queues_and_workers(worker, manage):
    worker()
    tasks.on_emails.with_options(queue_name="unserved").schedule(0)
    process = manage("horsies_status", "--json")

    assert process.wait() == 0
    found = json.loads(process.output)
    waits = {"oldest_waits", "oldest_blocked_waits"}
    waits |= {f"{name}_is_at_least" for name in waits} | {"waiting_for"}
    assert (
        set(found) == {"counts", "queues", "queues_are_more", "workers", "workflows", "reaper", "clock_behind"} | waits
    )
    assert not found["oldest_waits_is_at_least"]
    assert found["counts"]["failed"] == {"count": 0, "exactness": "exact"}
    assert found["workers"][0]["is_alive"]
    assert {"name", "paused", "due", "oldest_waits", "held", "counts", "last_hour", "run_p95"} <= set(
        found["queues"][0]
    )


@pytest.mark.slow
@pytest.mark.parametrize("is_rolled_up", [False, True])
def test_the_status_says_what_stands_still_after_the_databases_clock_was_set_back(capsys, drain, is_rolled_up):
    with travel(hours=1):
        tasks.noop.send()
        if is_rolled_up:
            drain()
            TaskAttempt.objects.update(finished_at=NowPlus(-20))
            run_pass(Options())
    if is_rolled_up:
        tasks.noop.send()

    call_command("horsies_status")
    call_command("horsies_status", json=True)

    report, _, found = capsys.readouterr().out.partition("{\n")
    assert "The database's clock was set back: rows have times up to" in report
    assert "schedules, sleeps, retries and tasks that were sent before may stand still" in report
    assert 3_400 < json.loads("{" + found)["clock_behind"] <= 3_600

    with travel(hours=1, minutes=1):
        call_command("horsies_status")
    assert "set back" not in capsys.readouterr().out


def test_the_status_marks_workers_that_have_stopped_sending_heartbeats(capsys):
    for name, silence in {"on": 1, "silent": 70, "off": 3_600}.items():
        Worker.objects.register(name, name, "host", 1)
        Worker.objects.filter(pk=name).update(last_beat_at=NowPlus(-silence))

    call_command("horsies_status")

    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if " host " in line}
    assert rows["silent"].endswith("70 s ago  not responding (expected every 30 s)")
    assert rows["off"].endswith("60 min ago  offline")
    assert rows["on"].rstrip().endswith("ago")


@pytest.mark.slow
def test_the_json_status_has_the_roll_ups_of_the_last_hour(manage, drain):
    tasks.add.send(1)
    tasks.fail.send()
    drain()
    TaskAttempt.objects.update(finished_at=NowPlus(-20))
    run_pass(task_backends["default"].config)

    process = manage("horsies_status", "--json")

    assert process.wait() == 0, process.output
    (queue,) = (queue for queue in json.loads(process.output)["queues"] if queue["name"] == "default")
    assert queue["last_hour"] == {"completed": 1, "retried": 0, "failed": 1}
    assert queue["run_p95"] > 0
    report = manage("horsies_status")
    assert report.wait() == 0, report.output
    assert re.search(r"^default .* 1 +1 +≈ \d[\d.]* m?s +≈ \d[\d.]* m?s", report.output, re.MULTILINE)


def test_the_status_says_that_there_are_more_queues_than_it_shows(capsys, monkeypatch):
    monkeypatch.setattr(depths, "MAX_QUEUES", 1)
    tasks.noop.with_options(queue_name="a").send()
    late = tasks.noop.with_options(queue_name="z").send()
    Task.objects.filter(pk=late.id).update(enqueued_at=NowPlus(-7_200))

    call_command("horsies_status")

    printed = capsys.readouterr().out
    assert "There are more queues" in printed
    assert "\nlatency: 2 h\n" in printed

    monkeypatch.setattr(depths, "MAX_SEARCHED", 1)
    call_command("horsies_status")

    assert "\nlatency: at least " in capsys.readouterr().out


def test_the_status_table_has_a_row_for_each_queue(capsys, drain):
    tasks.add.send(1)
    drain()
    tasks.on_emails.send()
    TaskAttempt.objects.update(finished_at="2026-01-01T00:00Z")

    call_command("horsies_status")

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in lines if line[:1] == ["emails"]] == [["emails", "1"]]
    assert ["completed", "1"] in lines


def test_the_status_marks_a_queue_whose_latency_exceeds_its_threshold(capsys, settings):
    options = {"queues": {"slow": {"latency_warning": 60}, "fast": {"latency_warning": "1h"}}}
    settings.TASKS = {"default": settings.TASKS["default"] | {"QUEUES": [], "OPTIONS": options}}
    for name in ("slow", "fast"):
        Task.objects.create(task_name="x", queue_name=name, enqueued_at=NowPlus(-300))

    call_command("horsies_status")
    call_command("horsies_status", "--json")

    printed, _, report = capsys.readouterr().out.partition("\n{\n")
    lines = printed.splitlines()
    assert [line.split()[0] for line in lines if line.endswith(" late")] == ["slow"]
    (late,) = (line for line in lines if line.startswith("late: "))
    assert "slow: oldest task waits 5 min, more than its latency_warning of 60 s, since " in late
    warnings = {queue["name"]: queue["latency_warning"] for queue in json.loads("{" + report)["queues"]}
    assert warnings["slow"]["threshold"] == 60
    assert warnings["fast"] is None


@pytest.mark.parametrize(("flags", "status"), [(["--backend", "nonsense"], 2), (["--nonsense"], 2)])
def test_wrong_usage_of_the_status_command_exits_2(manage, flags, status):
    process = manage("horsies_status", *flags)

    assert process.wait() == status


def test_the_status_command_reads_its_backend_from_the_environment(manage):
    process = manage("horsies_status", HORSIES_STATUS_BACKEND="nonsense")

    assert process.wait() == 2
    assert "HorsiesBackend" in process.output


def test_the_status_command_exits_1_without_tables(tmp_path):
    process = Process("horsies_status", DATABASE_URL=f"sqlite:///{tmp_path}/empty.sqlite3")

    assert process.wait() == 1
    assert "migrate" in process.output


@pytest.mark.slow
def test_the_status_command_only_reads_and_runs_few_queries_on_many_tasks(capsys):
    call_command("horsies_status")
    Task.objects.bulk_create([Task(task_name="tests.jobs.tasks.noop", queue_name=f"q{n % 9}") for n in range(500)])

    with CaptureQueriesContext(connection) as captured:
        call_command("horsies_status")

    queries = [query["sql"] for query in captured if "horsies" in query["sql"]]
    assert len(queries) <= 9, queries
    assert all(sql.startswith(("SELECT", "WITH")) for sql in queries), queries
