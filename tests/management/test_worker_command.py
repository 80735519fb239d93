"""The command lines of ``horsies_worker`` and ``horsies_reaper``."""

import pytest
from django.utils import timezone

from horsies_django import TaskStatus
from tests.conftest import wait_until
from tests.jobs import tasks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once, pytest.mark.slow]


@pytest.mark.once
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--threads", "0"], ["--threads", "0", "from 1 to 1000"]),
        (["--processes", "-1"], ["--processes", "-1"]),
        (["--threads", "many"], ["--threads", "many"]),
        (["--poll-interval", "nan"], ["--poll-interval", "nan"]),
        (["--backend", "nowhere"], ["nowhere", "default"]),
        (["--once", "--drain"], ["not allowed with"]),
        (["--name", "a b"], ["--name", "letters"]),
    ],
    ids=" ".join,
)
@pytest.mark.once
def test_wrong_usage_exits_2_and_names_the_flag_and_allowed_values(manage, arguments, expected):
    process = manage("horsies_worker", *arguments)

    assert process.wait() == 2
    assert all(text in process.output for text in expected), process.output
    assert "Traceback" not in process.output


@pytest.mark.once
def test_an_unknown_queue_exits_2_and_names_the_known_queues(manage):
    process = manage(
        "horsies_worker", "--drain", "--queues", "emials", TEST_QUEUES="emails,default,modules", TEST_MODULES=""
    )

    assert process.wait() == 2
    assert "emials" in process.output
    assert "default, emails, modules" in process.output


@pytest.mark.once
def test_an_environment_variable_sets_a_flag_and_the_flag_itself_wins(manage):
    by_variable = manage("horsies_worker", "--drain", HORSIES_WORKER_THREADS="3")
    by_flag = manage("horsies_worker", "--drain", "--threads", "5", HORSIES_WORKER_THREADS="3")

    assert (by_variable.wait(), by_flag.wait()) == (0, 0)
    assert "threads=3" in by_variable.output
    assert "threads=5" in by_flag.output


@pytest.mark.once
def test_boolean_and_text_flags_have_environment_variables(manage):
    handle = tasks.on_emails.send()

    quiet = manage("horsies_worker", "--drain", HORSIES_WORKER_QUEUES="default", HORSIES_WORKER_NO_REAPER="1")
    wrong = manage("horsies_worker", "--drain", HORSIES_WORKER_NO_REAPER="maybe")

    assert (quiet.wait(), wrong.wait()) == (0, 2)
    assert handle.status() == TaskStatus.PENDING
    assert "HORSIES_WORKER_NO_REAPER" in wrong.output
    assert "'maybe'" in wrong.output


@pytest.mark.once
def test_an_invalid_environment_variable_exits_2_and_is_named(manage):
    process = manage("horsies_worker", "--drain", HORSIES_WORKER_THREADS="lots")

    assert process.wait() == 2
    assert "HORSIES_WORKER_THREADS" in process.output
    assert "lots" in process.output


def test_a_worker_logs_each_start_end_and_retry_of_a_task_with_its_details(manage):
    good, bad = tasks.add.send(1), tasks.fail.send()
    retried = tasks.flaky.send("lines", 1)

    process = manage("horsies_worker", "--drain")
    process.wait()

    for handle, event, attempt in (
        (good, "started", 1),
        (good, "completed", 1),
        (bad, "failed", 1),
        (retried, "retries", 1),
        (retried, "completed", 2),
    ):
        (line,) = [
            line
            for line in process.output.splitlines()
            if f"task {event} id={handle.id}" in line and f"attempt={attempt}" in line
        ]
        assert "name=tests.jobs.tasks." in line
        assert "queue=default" in line
        assert ("duration=" in line) is (event != "started")


@pytest.mark.once
def test_the_worker_help_names_every_flag(manage):
    process = manage("horsies_worker", "--help")

    assert process.wait() == 0
    for flag in (
        "--queues --exclude-queues --backend --processes --threads --async-slots --prefetch --poll-interval --once "
        "--drain --max-tasks-per-child --shutdown-timeout --no-reaper --no-scheduler --name"
    ).split():
        assert f"{flag} " in process.output.replace("\n", " ") + " ", flag


@pytest.mark.once
def test_a_worker_with_verbosity_0_prints_nothing(manage):
    tasks.add.send(1)

    process = manage("horsies_worker", "--drain", "-v0")

    assert process.wait() == 0
    assert process.output == ""


def test_a_worker_with_two_processes_drains_and_exits_0(manage):
    handles = tasks.add.send_many({"a": number} for number in range(100))

    process = manage("horsies_worker", "--drain", "--processes", "2")

    assert process.wait() == 0
    assert {handle.status() for handle in handles} == {TaskStatus.COMPLETED}


@pytest.mark.once
@pytest.mark.once
@pytest.mark.parametrize("interval", ["0", "-1", "nan", "soon"])
def test_an_invalid_reaper_interval_exits_2(manage, interval):
    process = manage("horsies_reaper", "--interval", interval)

    assert process.wait() == 2
    assert "positive number of seconds" in process.output


def test_the_reaper_runs_passes_until_sigterm_and_exits_0(manage):
    late = tasks.noop.with_options(good_until=timezone.now()).send()
    process = manage("horsies_reaper", "--interval", "0.1")
    wait_until(lambda: late.status() == TaskStatus.EXPIRED)

    process.signal()

    assert process.wait() == 0
    assert "duty='expired overdue tasks' count=1" in process.output
