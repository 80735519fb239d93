"""Roles of PostgreSQL: the grants that docs/security.md has suffice, and a worker without them says what it needs."""

import re
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import pytest
from django.db import connection
from django.db.models.functions import Now

from horsies_django import RetryPolicy, TaskStatus
from horsies_django.models import Lease, Schedule, Task
from horsies_django.models.lease import NEVER
from tests.conftest import ROOT, Process, database_url, wait_until
from tests.jobs import tasks

SOON = RetryPolicy.fixed([1.0], auto_retry_for=["*"])

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once, pytest.mark.slow]


@pytest.fixture
def role():
    """Make a role that may connect, and no more than a page's statements grant the role of that name there."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no roles; runs with the tests on PostgreSQL")
    made = []

    def make(granted=None):
        name, secret = f"role_{uuid4().hex[:12]}", uuid4().hex
        execute(f"CREATE ROLE {name} LOGIN PASSWORD '{secret}'")
        made.append(name)
        if granted is not None:
            for statement in (one for one in statements() if granted in one):
                execute(statement.replace(granted, name))
        return with_user(database_url(), name, secret)

    yield make
    for name in made:
        execute(f"DROP OWNED BY {name}")
        execute(f"DROP ROLE {name}")


def execute(statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)


def statements():
    return re.findall(r"^```sql\n(.+?)^```$", (ROOT / "docs" / "security.md").read_text(), re.M | re.S)


def with_user(url, name, secret):
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{name}:{secret}@{parts.netloc.rpartition('@')[2]}"))


def run(url, *arguments):
    process = Process(*arguments, DATABASE_URL=url)
    status = process.wait()
    return status, process.output


@pytest.mark.parametrize("command", ["horsies_worker", "horsies_reaper", "horsies_scheduler"])
def test_a_role_without_grants_is_told_once_what_it_needs_and_nothing_runs(role, command):
    status, output = run(role(), command)

    assert status == 1
    (line,) = [line for line in output.splitlines() if line]
    assert re.search(r"Role 'role_\w+' of database 'default' needs SELECT on ", line)
    assert "horsies_tasks" in line
    assert "INSERT on " in line


def test_a_role_that_lacks_one_privilege_is_told_which(role):
    url = role("horsies_worker")
    execute(f"REVOKE DELETE ON horsies_task_attempts FROM {urlsplit(url).username}")

    status, output = run(url, "horsies_worker")

    assert status == 1
    assert "needs DELETE on horsies_task_attempts: see the page on security." in output


def test_a_role_that_must_not_look_into_the_schema_is_told_so_and_not_to_migrate(role):
    url = role("horsies_worker")
    execute("REVOKE USAGE ON SCHEMA public FROM PUBLIC")
    try:
        status, output = run(url, "horsies_worker")
    finally:
        execute("GRANT USAGE ON SCHEMA public TO PUBLIC")

    assert status == 1
    assert "needs USAGE on schema 'public'" in output
    assert "migrate" not in output


def test_a_worker_under_the_grants_of_the_page_runs_tasks_retries_schedules_and_prunes(role):
    done, failed = tasks.add.send(1, 2), tasks.fail.with_options(retry_policy=SOON).send()
    old = tasks.add.with_options(retention=0).send(3, 4)
    url = role("horsies_worker")

    for command in ("horsies_worker --drain", "horsies_scheduler --once", "horsies_reaper --once"):
        status, output = run(url, *command.split())
        assert status == 0, output
        assert "denied" not in output
    wait_until(lambda: Task.objects.filter(pk=failed.id, enqueued_at__lte=Now()).exists())
    assert run(url, "horsies_worker", "--drain")[0] == 0

    assert done.value(timeout=0) == 3
    assert failed.status() == TaskStatus.FAILED
    assert old.status() is None
    assert run(url, "horsies_prune", "--older-than", "0")[0] == 0
    assert not Task.objects.exists()


def test_a_sender_under_the_grants_of_the_page_sends_and_reads_and_changes_nothing(role):
    url = role("horsies_sender")

    status, output = run(
        url,
        "shell",
        "-c",
        """
from tests.jobs.tasks import add
sent = [add.send(1, 2), *add.send_many([{"a": 1, "b": 2}] * 3), add.schedule(60, 1, 2)]
again = [add.with_options(unique_key="one").send(1, 2) for _ in range(2)]
assert again[1].replayed and again[0].id == again[1].id
assert add.enqueue(1, 2).status == "READY"
assert sent[0].info().status == "PENDING" and sent[0].get(timeout=0).err.error_code == "WAIT_TIMEOUT"
from django.db import ProgrammingError
try:
    sent[0].cancel()
except ProgrammingError as error:
    print("refused:", error)
""",
    )

    assert status == 0, output
    assert "refused: permission denied" in output
    assert Task.objects.filter(status=TaskStatus.PENDING).count() == 7


def test_a_reader_under_the_grants_of_the_page_looks_and_changes_nothing(role):
    handle = tasks.add.send(1, 2)
    url = role("horsies_reader")

    for arguments in (["horsies_status"], ["horsies_task", "list"], ["horsies_task", "show", str(handle.id)]):
        status, output = run(url, *arguments)
        assert status == 0, output
    status, output = run(url, "horsies_task", "cancel", str(handle.id))

    assert status == 1
    assert "permission denied" in output
    assert "Traceback" not in output
    assert handle.status() == TaskStatus.PENDING


def claim():
    tasks.add.send(1, 2)


def make_a_pass():
    Lease.objects.update(renewed_at=NEVER)


def send_on_schedule():
    Schedule.objects.create(name="add", timing="every:1", task_name="tests.jobs.tasks.add", args=[1, 2])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("privilege", "provoke", "loops"),
    [
        ("UPDATE ON horsies_tasks", claim, ["--no-reaper", "--no-scheduler"]),
        ("INSERT ON horsies_task_attempts", None, ["--no-reaper", "--no-scheduler"]),
        ("INSERT ON horsies_task_attempts", None, ["--no-reaper", "--drain"]),
        ("UPDATE ON horsies_leases", make_a_pass, ["--no-scheduler"]),
        ("INSERT ON horsies_tasks", send_on_schedule, ["--no-reaper"]),
    ],
)
def test_a_privilege_that_is_revoked_while_a_worker_runs_is_named_once_and_ends_it(role, privilege, provoke, loops):
    url = role("horsies_worker")
    body = None if provoke else tasks.nap.send(4.0)  # whose end can't be stored
    flags = ["--processes", "1", "--shutdown-timeout", "3", *loops]
    worker = Process("horsies_worker", *flags, DATABASE_URL=url, TEST_CHECK_MS="1000")
    try:
        wait_until(lambda: "worker ready" in worker.output, 40, "the worker is there")
        if body is not None:
            wait_until(lambda: body.status() == TaskStatus.RUNNING)
        execute(f"REVOKE {privilege} FROM {urlsplit(url).username}")
        if provoke is not None:
            provoke()
        status = worker.wait(40)
    finally:
        worker.stop()

    assert status == 1, worker.output
    needed = f"needs {privilege.replace('ON', 'on')}: see the page on security."
    assert worker.output.count(needed) == 1, worker.output
    assert "Traceback" not in worker.output
    assert "next try" not in worker.output
    if body is not None:  # a reaper recovers it, as after an outage
        assert body.status() == TaskStatus.RUNNING
