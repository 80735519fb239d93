"""``horsies_status --check``, and its counterpart in Python."""

import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from horsies_django.core.compat import task_backends
from horsies_django.db.expressions import NowPlus
from horsies_django.models import Queue, Task, TaskAttempt, Worker, depths
from horsies_django.ops.health import parse_checks, run_checks
from horsies_django.reaper.duties import run_pass
from horsies_django.reaper.loop import Reaper
from tests.jobs import tasks
from tests.ops.inspector.factories import make

pytestmark = pytest.mark.django_db(transaction=True)


def check(*texts):
    """Return whether each check has passed."""
    return [result.is_ok for result in run_checks(parse_checks(texts), task_backends["default"])]


def words(text):
    (result,) = run_checks(parse_checks([text]), task_backends["default"])
    return str(result)


def run(*texts, **options):
    out, err, status = StringIO(), StringIO(), 0
    try:
        call_command("horsies_status", check=list(texts), stdout=out, stderr=err, **options)
    except SystemExit as exit_:
        status = exit_.code
    return status, out.getvalue().splitlines(), err.getvalue().splitlines()


def test_the_oldest_due_task_of_all_queues_or_of_one_is_checked():
    assert check("oldest=0") == [True]
    assert words("oldest=0").endswith("nothing is due (at most 0 ms)")
    late = tasks.noop.with_options(queue_name="slow").send()
    Task.objects.filter(pk=late.id).update(enqueued_at=NowPlus(-90))

    assert check("oldest=60s", "oldest=60", "oldest=2m", "oldest:slow=1m", "oldest:other=1s") == [
        *(False, False, True),
        *(False, True),
    ]
    assert words("oldest:slow=1m").startswith("failed oldest:slow=1m: 9")


@pytest.mark.parametrize("columns", [{"deferred": True}, {}], ids=["no worker has seen", "in the index"])
def test_a_task_that_has_become_due_counts_even_if_no_worker_has_looked(columns):
    make("pending", **columns, enqueued_at=NowPlus(-90), queue_name="late")

    assert check("oldest=60s", "oldest:late=60s", "ready=0", "ready:late=0", "ready:other=0", "ready=1") == [
        *(False, False),
        *(False, False, True, True),
    ]


def test_the_oldest_task_that_waits_for_a_limit_is_checked_and_is_not_due():
    assert words("oldest_blocked=0").endswith("no task waits for a limit (at most 0 ms)")
    blocked = {"deferred": True, "blocked": True, "enqueued_at": NowPlus(-90)}
    Task.objects.create(task_name="x", queue_name="slow", limit_key="a", **blocked)
    Task.objects.create(task_name="x", queue_name="held", **blocked)

    assert check("oldest_blocked=60s", "oldest_blocked:slow=60s", "oldest_blocked:held=60s", "oldest=0", "ready=0") == [
        False, False, True, True, True,
    ]  # fmt: skip
    assert words("oldest_blocked=60s").startswith("failed oldest_blocked=60s: 9")


def test_the_blocked_tasks_of_another_queue_do_not_count_even_if_they_are_too_many(monkeypatch):
    monkeypatch.setattr(depths, "MAX_BLOCKED", 1)
    for _ in range(2):
        make("pending", queue_name="slow", blocked=True, deferred=True, limit_key="a", enqueued_at=NowPlus(-90))

    assert check("oldest_blocked:emails=60s", "oldest_blocked:slow=60s", "oldest_blocked=60s") == [True, False, False]
    assert words("oldest_blocked:emails=60s").endswith(
        "no counted task waits for a limit, but not all were counted (at most 60 s)"
    )
    assert ": at least 9" in words("oldest_blocked:slow=60s")


def test_due_tasks_are_counted_up_to_the_limit_and_others_do_not_count():
    for state in ("scheduled", "completed", "running", "retrying"):
        make(state)
    tasks.noop.send_many({} for _ in range(3))
    tasks.awrite.send("coroutine")

    assert check("ready=3", "ready=4") == [False, True]
    assert words("ready=3") == "failed ready=3: more than 3 due (at most 3)"
    assert words("ready=4") == "ok ready=4: 4 due (at most 4)"


def test_workers_that_are_alive_and_may_claim_are_counted():
    for key in ("a", "quiet", "stopping", "silent", "stalled"):
        Worker.objects.register(key, "", "host", 1, is_quiet=key == "quiet")
    Worker.objects.filter(pk="stopping").request_stop()
    Worker.objects.filter(pk="silent").update(last_beat_at=NowPlus(-3_600))
    Worker.objects.record_stalled("stalled", 5)

    assert check("workers=1", "workers=2") == [True, False]
    assert (
        words("workers=2") == "failed workers=2: 1 alive, and neither quiet, stopping nor standing still (at least 2)"
    )


@pytest.mark.slow
def test_failures_are_checked_as_a_share_or_a_number_of_the_attempts_in_the_window(drain):
    assert check("failed=0%/10m", "failed=0/10m") == [True, True]
    assert words("failed=0%/10m") == "ok failed=0%/10m: no attempt counted in 10 min (at most 0 %)"
    tasks.add.send_many({"a": number} for number in range(3))
    tasks.fail.send()
    drain()
    TaskAttempt.objects.update(finished_at=NowPlus(-300))
    assert words("failed=0/10m") == "ok failed=0/10m: no attempt counted in 10 min, counted up to 5 min ago (at most 0)"
    run_pass(task_backends["default"].config)

    assert check("failed=24.9%/10m", "failed=25%/10m", "failed=0/10m", "failed=1/10m", "failed=0/2m") == [
        *(False, True),
        *(False, True, True),
    ]
    assert words("failed=5%/10m") == (
        "failed failed=5%/10m: 25.0 %: 1 of 4 attempts failed for good in 10 min (at most 5 %)"
    )


@pytest.mark.slow
def test_failures_are_unknown_and_the_check_fails_while_no_attempt_of_the_window_is_counted(drain):
    tasks.fail.send()
    drain()
    TaskAttempt.objects.update(finished_at=NowPlus(-720))

    assert check("failed=100%/10m", "failed=100/10m", "failed=100%/20m") == [False, False, True]
    assert words("failed=5%/10m") == (
        "failed failed=5%/10m: unknown: attempts are counted up to 12 min ago (at most 5 %)"
    )
    run_pass(task_backends["default"].config)
    assert check("failed=100%/10m", "failed=100/10m") == [True, True]


def test_the_last_pass_of_the_reaper_is_checked():
    assert words("reaper=1h") == "failed reaper=1h: no pass ever (at most 60 min)"
    reaper = Reaper(task_backends["default"].config, "default", on_pass=lambda _: reaper.stop())

    reaper.run()

    assert check("reaper=1h", "reaper=0") == [True, False]


@pytest.mark.slow
def test_due_tasks_that_no_worker_claims_are_found():
    Worker.objects.register("w", "", "host", 1, queues=["default"])
    tasks.noop.send()
    assert check("unserved") == [True]
    tasks.on_emails.send()

    assert words("unserved") == "failed unserved: no worker claims from emails (at most 0 without)"
    assert check("unserved=1") == [True]
    Worker.objects.record_stalled("w", 5)
    assert check("unserved=1") == [False]
    Worker.objects.record_stalled("w", None)
    assert check("unserved=1") == [True]
    Worker.objects.all().quiet()
    assert check("unserved=1") == [False]


def test_failed_checks_exit_1_and_are_on_stderr_too():
    assert run("ready=5", "oldest=60s") == (
        0,
        ["ok ready=5: 0 due (at most 5)", "ok oldest=60s: nothing is due (at most 60 s)"],
        [],
    )
    failed = "failed workers=1: 0 alive, and neither quiet, stopping nor standing still (at least 1)"
    assert run("ready=5", "workers=1") == (1, ["ok ready=5: 0 due (at most 5)", failed], [failed])

    status, out, err = run("ready=5", "workers=1", json=True)

    assert (status, err) == (1, [failed])
    assert json.loads("\n".join(out)) == {
        "ok": False,
        "checks": [
            {"check": "ready=5", "ok": True, "value": 0, "words": "0 due (at most 5)"},
            {"check": "workers=1", "ok": False, "value": 0, "words": failed.partition(": ")[2]},
        ],
    }


@pytest.mark.once
@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("latest=60s", "oldest=DURATION, oldest:QUEUE=DURATION, oldest_blocked=DURATION"),
        ("", "oldest=DURATION"),
        ("oldest", "oldest=DURATION, oldest:QUEUE=DURATION; seconds, or a text like 90s, 5m, 2h"),
        ("oldest=soon", "seconds, or a text like 90s"),
        ("oldest=-1", "seconds, or a text like 90s"),
        ("oldest:=60s", "there is no queue ''; allowed: any name"),
        ("workers=0", "workers=N; 1 to 1000000"),
        ("workers:emails=1", "workers is of all queues"),
        ("ready=1.5", "ready=N, ready:QUEUE=N; 0 to 1000000"),
        ("ready=1000001", "0 to 1000000"),
        ("failed=5%", "failed=P%/WINDOW, failed=N/WINDOW"),
        ("failed=101%/10m", "failed=P%/WINDOW"),
        ("failed=5%/90s", "a window of whole minutes, 1m to 120m"),
        ("failed=5%/3h", "1m to 120m"),
        ("failed=5%/0", "1m to 120m"),
        ("reaper=", "reaper=DURATION"),
        ("unserved=many", "unserved, unserved=N"),
    ],
)
def test_a_wrong_check_exits_2_before_any_query_and_says_what_is_allowed(text, allowed):
    with CaptureQueriesContext(connection) as captured, pytest.raises(CommandError) as caught:
        run("workers=1", text)

    assert caught.value.returncode == 2
    assert repr(text) in str(caught.value)
    assert allowed in str(caught.value)
    assert len(captured) == 0


@pytest.mark.once
def test_every_wrong_check_is_named_at_once_and_a_queue_must_be_in_the_settings(settings):
    settings.TASKS = {"default": settings.TASKS["default"] | {"QUEUES": ["emails"]}}

    with pytest.raises(CommandError, match="there is no queue 'emial'; allowed: emails") as caught:
        run("oldest:emial=60s", "ready:emails=5", "failed=1")

    assert "'failed=1'" in str(caught.value)


@pytest.mark.once
def test_the_checks_read_few_rows_and_change_nothing():
    Queue.objects.named("emails").pause()
    tasks.noop.send_many({} for _ in range(50))
    run("ready=1")

    with CaptureQueriesContext(connection) as captured:
        run("ready=1", "ready:emails=1", "workers=1", "failed=5%/10m", "oldest=60s", "reaper=60s")

    sqls = [query["sql"] for query in captured if "horsies_" in query["sql"]]
    assert all(sql.startswith(("SELECT", "WITH")) for sql in sqls), sqls
    assert len(sqls) <= 15, sqls
