"""``manage.py horsies_task``."""

import io
import json
import os
import subprocess
import sys
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command

from horsies_django.models import Task, TaskStep
from horsies_django.testing import drain
from tests.admin import step_jobs
from tests.conftest import ROOT, Process, database_url
from tests.jobs import tasks
from tests.ops.inspector.factories import COLUMNS, make, one_of_each, some
from tests.steps import event_jobs

pytestmark = pytest.mark.django_db(transaction=True)


class Terminal(io.StringIO):
    """Standard input from a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def task(capsys):
    """Run the command; return its exit status, its output and its errors."""

    def run(*arguments, **options):
        try:
            call_command("horsies_task", *map(str, arguments), **options)
        except CommandError as error:
            return error.returncode, capsys.readouterr().out, str(error)
        out, err = capsys.readouterr()
        return 0, out, err

    return run


def status(task):
    return Task.objects.filter(pk=task.pk).values_list("status", flat=True).first()


@pytest.mark.once
@pytest.mark.parametrize("state", COLUMNS)
def test_list_shows_the_tasks_of_a_state(task, state):
    made = one_of_each()

    code, out, _ = task("list", "--status", state)

    assert code == 0
    heads, *rows = out.splitlines()
    assert heads.split() == ["id", "state", "task", "queue", "priority", "attempt", "when", "error", "fingerprint"]
    assert [row.split()[:2] for row in rows] == [[str(made[state].pk), state]]
    assert "  tests.jobs.tasks.noop  " in rows[0]


@pytest.mark.slow
@pytest.mark.once
def test_list_and_show_print_the_fingerprint_and_actions_filter_by_it(task):
    made = make("failed", fingerprint="0123456789ab", error_code="X")
    other = make("failed", fingerprint="ba9876543210", error_code="X")

    _, listed, _ = task("list", "--error", "0123456789ab")
    _, as_json, _ = task("list", "--error", "0123456789ab", "--json")
    _, shown, _ = task("show", made.pk)
    code, _, _ = task("retry", "--all", "--error", "0123456789ab", "--yes")
    wrong, _, err = task("list", "--error", "ValueError")

    (row,) = listed.splitlines()[1:]
    assert str(made.pk) in row
    assert "0123456789ab" in row.split()
    assert json.loads(as_json)["fingerprint"] == "0123456789ab"
    assert "fingerprint: 0123456789ab" in shown
    assert (code, status(made), status(other)) == (0, "PENDING", "FAILED")
    assert wrong == 2
    assert "--error is 'ValueError'; allowed: a fingerprint" in err


@pytest.mark.once
def test_list_prints_thirty_tasks_and_how_to_get_the_next(task):
    made = [str(key) for key in some(40, "failed")[::-1]]

    _, out, err = task("list")
    _, more, end = task("list", "--after", made[29])
    _, few, _ = task("list", "--limit", "2")

    assert [line.split()[0] for line in out.splitlines()[1:]] == made[:30]
    assert f"--after {made[29]}" in err
    assert [line.split()[0] for line in more.splitlines()[1:]] == made[30:]
    assert end == ""
    assert len(few.splitlines()) == 3


@pytest.mark.slow
@pytest.mark.once
def test_list_all_prints_every_page_as_json_lines_or_ids(task):
    made = [str(key) for key in some(65, "failed")[::-1]]

    _, out, _ = task("list", "--all", "--json")
    _, ids, _ = task("list", "--all", "--ids")

    assert [json.loads(line)["id"] for line in out.splitlines()] == made
    assert ids.split() == made


@pytest.mark.once
def test_filters_narrow_a_list(task):
    make("failed")
    wanted = make("failed", queue_name="emails", task_name="a.b", sent_at="2026-01-01T00:00Z")

    for flags in (["--queue", "emails"], ["--task", "a.b"], ["--older-than", "7d"], ["--older-than", "3600.5"]):
        _, out, _ = task("list", "--ids", *flags)
        assert out.split() == [str(wanted.pk)]


@pytest.mark.slow
@pytest.mark.once
def test_list_and_show_print_no_sensitive_value(task):
    handle = tasks.echo.send("open", password="secret")

    for arguments in (["list"], ["list", "--json"], ["show", handle.id], ["show", handle.id, "--json"]):
        code, out, _ = task(*arguments)
        assert code == 0
        assert "open" in out
        assert "secret" not in out


@pytest.mark.once
def test_show_cuts_long_values_and_prints_them_whole_as_json(task):
    key = make("running", args=["x" * 100_000], progress={"done": 1, "message": "y" * 100_000}).pk

    _, text, _ = task("show", key)
    _, whole, _ = task("show", key, "--json")

    assert max(map(len, text.splitlines())) < 2_100
    assert text.count("… (100,0") == text.count("--json prints them") == 2
    assert json.loads(whole)["payload"]["args"] == ["x" * 100_000]


@pytest.mark.slow
@pytest.mark.once
def test_show_prints_each_task_and_reports_missing_ones(task, drain):
    handle, waiting, gone = tasks.fail.send("no luck"), tasks.add.schedule(3_600, 1), uuid4()
    drain()

    code, out, _ = task("show", handle.id, waiting.id)
    missing = task("show", gone, handle.id)

    assert code == 0
    assert "state: failed" in out
    assert "attempt 1: FAILED UNHANDLED_EXCEPTION no luck" in out
    assert "ValueError: no luck" in out
    assert "why: It is scheduled" in out
    assert out.count("Traceback") == 1
    assert missing[0] == 1
    assert str(handle.id) in missing[1]
    assert "1 not found" in missing[2]


@pytest.mark.parametrize(
    ("arguments", "takes", "becomes"),
    [
        (["run"], "scheduled", "PENDING"),
        (["cancel"], "pending", "CANCELLED"),
        (["cancel", "--running"], "running", "CANCELLED"),
        (["retry"], "failed", "PENDING"),
        (["move", "--to-queue", "slow"], "pending", "PENDING"),
        (["delete"], "completed", None),
    ],
)
def test_each_action_works_on_ids_and_on_all(task, arguments, takes, becomes):
    made = [make(takes) for _ in range(4)]
    other = make("running" if takes != "running" else "failed")

    one = task(*arguments, made[0].pk)
    dry = task(*arguments, "--all", "--status", takes, "--dry-run")
    every = task(*arguments, "--all", "--status", takes, "--yes", "--json")

    assert one[0] == dry[0] == every[0] == 0, (one, dry, every)
    left = 4 if takes == "pending" and "move" in arguments else 3
    assert dry[1].startswith("would be")
    assert dry[1].strip().endswith(f": {left}")
    assert json.loads(every[1])["done"] == left
    assert {status(task) for task in made} == {becomes}
    assert status(other) == other.status


@pytest.mark.once
def test_skipped_tasks_are_listed_and_make_the_command_exit_1(task):
    running, gone = make("running"), uuid4()

    code, out, message = task("retry", make("failed").pk, running.pk, gone)

    assert code == 1
    assert "re-queued: 1" in out
    assert f"  {running.pk}: it is running" in out
    assert f"  {gone}: there is no such task" in out
    assert message == "2 skipped."


@pytest.mark.once
def test_many_skipped_tasks_are_counted_by_reason(task):
    code, out, _ = task("run", *some(30, "pending"))

    assert code == 1
    assert "30 of them: it is pending" in out
    assert len(out.splitlines()) == 23


@pytest.mark.once
def test_ids_can_be_read_from_standard_input(task, monkeypatch):
    made = some(3, "failed")
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(map(str, made))))

    code, out, _ = task("retry", "-")

    assert (code, out) == (0, "re-queued: 3\n")


@pytest.mark.once
def test_a_limit_caps_the_number_of_tasks_acted_on(task):
    some(10, "failed")

    assert task("retry", "--all", "--limit", "4", "--yes")[1] == "re-queued: 4\n"


@pytest.mark.once
@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", 0, 0), ("yes\n", 0, 0), ("n\n", 1, 3), ("", 1, 3)])
def test_an_action_on_all_asks_for_confirmation(task, monkeypatch, answer, code, left):
    some(3, "scheduled")
    monkeypatch.setattr(sys, "stdin", Terminal(answer))

    found = task("cancel", "--all")

    assert found[0] == code
    assert Task.objects.filter(status="PENDING").count() == left


@pytest.mark.once
def test_the_confirmation_shows_the_number_of_tasks_and_their_states(task, monkeypatch, capsys):
    some(3, "failed")
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))

    with pytest.raises(CommandError, match="Nothing was done"):
        call_command("horsies_task", "retry", "--all")

    assert "retry: 3 tasks (cancelled, expired, failed). Continue? [y/N]" in capsys.readouterr().err


@pytest.mark.once
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cancel"], "either ids, or --all"),
        (["cancel", uuid4(), "--all"], "either ids, or --all"),
        (["cancel", uuid4(), "--queue", "emails"], "Filters need --all"),
        (["cancel", "--all"], "--yes, or --dry-run"),
        (["cancel", "nonsense"], "id is 'nonsense'"),
        (["run", "--all", "--status", "running", "--yes"], "run takes"),
        (["run", "--all", "--status", "dead", "--yes"], "--status is 'dead'"),
        (["list", "--status", ""], "--status is ''"),
        (["list", "--limit", "0"], "--limit: '0'"),
        (["list", "--older-than", "soon"], "--older-than: 'soon'"),
        (["list", "--after", "x"], "after is 'x'"),
        (["move", uuid4()], "needs queue"),
        (["move", uuid4(), "--priority", "high"], "move:"),
        (["list", "--backend", "nonsense"], "HorsiesBackend"),
        (["nonsense"], "invalid choice"),
        ([], "required"),
        (["enqueue", "os.system", "--args", '["true"]'], "no task at"),
        (["enqueue", "tests.jobs.tasks.add", "--args", "[1"], "--args"),
        (["enqueue", "tests.jobs.tasks.add", "--args", "{}"], "an array"),
        (["enqueue", "tests.jobs.tasks.add"], "missing a required argument"),
        (["enqueue", "tests.jobs.tasks.add", "--args", "[1]", "--at", "noon"], "--at"),
        (["enqueue", "tests.jobs.tasks.add", "--args", "[1]", "--priority", "999"], "priority"),
        (["enqueue", "tests.jobs.tasks.add", "--args", "[1]", "--retries", "many"], "--retries"),
        (["enqueue", "tests.jobs.tasks.add", "--args", "[1]", "--id", "x"], "task_id is 'x'"),
    ],
)
def test_wrong_usage_is_reported_and_changes_nothing(task, monkeypatch, arguments, message):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    waiting = make("scheduled")

    code, _, found = task(*arguments)

    assert message in found
    assert code == 2 or arguments in ([], ["nonsense"])  # called from Python, the parser itself has no status
    assert status(waiting) == "PENDING"
    assert Task.objects.count() == 1


def test_enqueue_sends_a_call_with_its_arguments(task, drain):
    code, out, _ = task("enqueue", "tests.jobs.tasks.add", "--args", "[2]", "--kwargs", '{"b": 3}', "--json")
    drain()

    assert code == 0
    assert Task.objects.get(pk=json.loads(out)["id"]).result == {"ok": 5}


@pytest.mark.once
def test_enqueue_accepts_a_delay_and_options_of_the_call(task):
    key = str(uuid4())
    flags = "--queue slow --priority -5 --in 2h --timeout 90s --retries 4 --unique-key k --id"
    kept = ["--retention", "completed=7d,failed=forever"]
    arguments = ["enqueue", "tests.jobs.tasks.noop", *kept, *flags.split(), key]

    first, second = task(*arguments), task(*arguments)

    assert first == (0, f"{key}\n", "")
    assert second[1] == f"{key} (it existed already)\n"
    row = Task.objects.get()
    assert (row.queue_name, row.priority, row.timeout, row.max_retries) == ("slow", -5, 90.0, 4)
    assert (row.retention.days, row.retention_by_state) == (7, {"failed": 3_153_600_000})
    assert row.enqueued_at > row.sent_at


@pytest.mark.slow
@pytest.mark.once
def test_the_task_command_has_exit_statuses_and_a_help_with_examples(manage):
    failed = make("failed")
    processes = {
        0: manage("horsies_task", "retry", "--all", "--yes"),
        1: manage("horsies_task", "retry", str(uuid4())),
        2: manage("horsies_task", "retry", "--all", "--nonsense"),
    }
    helped = manage("horsies_task", "--help")

    assert {code: process.wait() for code, process in processes.items()} == {code: code for code in processes}
    assert status(failed) == "PENDING"
    assert helped.wait() == 0
    assert "horsies_task delete -" in helped.output


@pytest.mark.slow
@pytest.mark.once
def test_a_reader_that_closes_the_pipe_early_causes_no_error(transactional_db):
    some(600, "failed")
    environment = {**os.environ, "DATABASE_URL": database_url(), "DJANGO_SETTINGS_MODULE": "tests.settings"}
    command = [sys.executable, "manage.py", "horsies_task", "list", "--all", "--json"]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.readline()
        process.stdout.close()
        message = process.stderr.read().decode()

    assert process.returncode == 0
    assert "BrokenPipe" not in message


@pytest.mark.slow
@pytest.mark.once
def test_the_task_command_exits_1_without_tables(tmp_path):
    process = Process("horsies_task", "list", DATABASE_URL=f"sqlite:///{tmp_path}/empty.sqlite3")

    assert process.wait() == 1
    assert "migrate" in process.output


@pytest.mark.slow
def test_event_sends_an_event_to_tasks_by_id(task):
    handle, missing = event_jobs.waits.send(), uuid4()
    ended, gone = make("completed"), make("scheduled", backend="gone")
    drain()

    code, out, errors = task("event", "approved", handle.id, missing, ended.pk, gone.pk, "--payload", '{"by": 7}')
    assert (code, errors) == (1, "3 skipped.")
    assert out.splitlines() == [
        "sent: 1",
        "skipped: 3",
        f"  {missing}: there is no such task",
        f"  {ended.pk}: it is completed",
        f"  {gone.pk}: backend is 'gone'; allowed: 'default'.",
    ]
    drain()

    assert handle.value(0) == [{"by": 7}]
    assert task("event", "approved", handle.id, "--payload", "{")[0] == 2
    assert task("event", "", missing)[0] == 2


@pytest.mark.slow
def test_event_sends_to_all_tasks_that_wait_for_an_event_unless_states_are_named(task):
    handles = [event_jobs.waits.send() for _ in range(2)]
    drain()
    make("scheduled")

    assert task("event", "approved", "--all", "--yes")[:2] == (0, "sent: 2\n")
    drain()
    assert [handle.value(0) for handle in handles] == [[None], [None]]
    assert task("event", "approved", "--all", "--status", "scheduled", "--yes")[:2] == (0, "sent: 1\n")


@pytest.mark.slow
def test_event_says_that_a_task_has_too_many_events_to_read(task):
    row = make("awaiting")
    TaskStep.objects.bulk_create(
        TaskStep(task_id=row.pk, name="event:other", number=number, kind="event", status="UNREAD")
        for number in range(1, 1_001)
    )

    code, out, _ = task("event", "approved", row.pk)

    assert code == 1
    assert out.splitlines()[-1] == f"  {row.pk}: it has 1,000 events that its body has not read"


def test_show_prints_steps_and_waits_without_their_results(task):
    handle = step_jobs.order.send(3_600)
    drain()

    _, out, _ = task("show", handle.id)

    lines = [line.split() for line in out.splitlines()]
    assert ["step", "charge:", "COMPLETED", "from"] in [line[:4] for line in lines]
    (wait,) = [line for line in lines if line[:3] == ["event", "event:approved:", "WAITING"]]
    assert "until" in wait
    assert "ch_1" not in out
    shown = json.loads(task("show", handle.id, "--json")[1])
    assert [step["name"] for step in shown["steps"]] == ["charge", "fetch_token", "note", "event:approved"]
    assert shown["step_count"] == 4
    assert "result" not in shown["steps"][0]


@pytest.mark.slow
def test_show_prints_the_last_steps_and_how_many_there_are(task):
    handle = step_jobs.many.send(120)
    drain()

    steps = [line.strip() for line in task("show", handle.id)[1].splitlines() if " step" in line]

    assert steps[0] == "the last 100 of 120 steps"
    assert steps[1].startswith("step note #21: COMPLETED from ")
    assert steps[-1].startswith("step note #120: ")
    assert len(steps) == 101
