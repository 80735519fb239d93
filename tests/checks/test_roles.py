"""PostgreSQL roles: the grants in docs/security.md suffice, and a worker without them names what it needs."""

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
from tests.faults.jobs import ablock
from tests.jobs import tasks

SOON = RetryPolicy.fixed([1.0], auto_retry_for=["*"])

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once, pytest.mark.slow]


@pytest.fixture
def role():
    """Return a function that makes a role with the grants that docs/security.md gives the named role, or with none."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no roles; runs with the tests on PostgreSQL")
    made = []

    def make(granted=None):
        name, password = f"role_{uuid4().hex[:12]}", uuid4().hex
        execute(f"CREATE ROLE {name} LOGIN PASSWORD '{password}'")
        made.append(name)
        if granted is not None:
            for statement in (one for one in statements() if granted in one):
                execute(statement.replace(granted, name))
        return with_user(database_url(), name, password)

    yield make
    for name in made:
        execute(f"DROP OWNED BY {name}")
        execute(f"DROP ROLE {name}")


def execute(statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)


def statements():
    return re.findall(r"^```postgresql\n(.+?)^```$", (ROOT / "docs" / "security.md").read_text(), re.M | re.S)


def with_user(url, name, password):
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{name}:{password}@{parts.netloc.rpartition('@')[2]}"))


def run(url, *arguments):
    process = Process(*arguments, DATABASE_URL=url)
    status = process.wait()
    return status, process.output


@pytest.mark.parametrize("command", ["horsies_worker", "horsies_reaper", "horsies_scheduler"])
def test_a_command_without_grants_names_them_in_one_line_and_exits(role, command):
    status, output = run(role(), command)

    assert status == 1
    (line,) = [line for line in output.splitlines() if line]
    assert re.search(r"Role 'role_\w+' of database 'default' needs SELECT on ", line)
    assert "horsies_tasks" in line
    assert "INSERT on " in line


def test_a_worker_that_lacks_one_privilege_names_it_and_exits(role):
    url = role("horsies_worker")
    execute(f"REVOKE DELETE ON horsies_task_attempts FROM {urlsplit(url).username}")

    status, output = run(url, "horsies_worker")

    assert status == 1
    assert "needs DELETE on horsies_task_attempts: see the page on security." in output


def test_a_worker_without_usage_on_the_schema_asks_for_it_and_not_for_migrate(role):
    url = role("horsies_worker")
    execute("REVOKE USAGE ON SCHEMA public FROM PUBLIC")
    try:
        status, output = run(url, "horsies_worker")
    finally:
        execute("GRANT USAGE ON SCHEMA public TO PUBLIC")

    assert status == 1
    assert "needs USAGE on schema 'public'" in output
    assert "migrate" not in output


def test_the_documented_worker_grants_suffice_to_run_retry_schedule_and_prune(role):
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


def test_the_documented_sender_grants_allow_sends_and_reads_but_no_changes(role):
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


def test_the_documented_reader_grants_allow_reads_but_no_changes(role):
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


def expire_leases():
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
        ("UPDATE ON horsies_leases", expire_leases, ["--no-scheduler"]),
        ("INSERT ON horsies_tasks", send_on_schedule, ["--no-reaper"]),
    ],
)
def test_a_running_worker_names_a_revoked_privilege_once_and_exits(role, privilege, provoke, loops, tmp_path):
    url = role("horsies_worker")
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    body = None if provoke else ablock.send(str(begun), str(gate))  # the end of this body can't be stored
    flags = ["--processes", "1", "--shutdown-timeout", "3", *loops]
    worker = Process("horsies_worker", *flags, DATABASE_URL=url, TEST_CHECK_MS="1000")
    try:
        wait_until(lambda: "worker ready" in worker.output, 40, "the worker is ready")
        if body is not None:
            wait_until(begun.exists)
        execute(f"REVOKE {privilege} FROM {urlsplit(url).username}")
        gate.touch()
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
