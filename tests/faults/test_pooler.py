"""PgBouncer between the workers and the server, in both modes, as docs/running.md describes it."""

import os
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack

import psycopg
import pytest

from horsies_django import Workflow
from horsies_django.models import Task, TaskAttempt, Worker
from tests.conftest import wait_until
from tests.faults import jobs
from tests.faults.pooler import pgbouncer, prepares_statements
from tests.jobs import tasks
from tests.jobs.models import Entry

MANY = 300

#: Connections to the server: shared by all clients in transaction mode, one per client in session mode.
FEW, ENOUGH = 3, 40


PLAIN, POOLED, PREPARED = "tests.settings", "tests.faults.pooled_settings", "tests.faults.prepared_settings"


@pytest.fixture
def pooler(own_cluster):
    """Start PgBouncer in front of ``own_cluster``. Request it before ``start``, whose processes it must outlive."""
    with ExitStack() as stack:
        yield lambda *arguments: stack.enter_context(pgbouncer(own_cluster, *arguments))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "size", "settings"),
    [("session", ENOUGH, [PLAIN, PLAIN]), ("transaction", FEW, [PLAIN, POOLED])],
    ids=["session", "transaction"],
)
def test_workers_behind_pgbouncer_lose_no_task_and_do_not_listen(own_cluster, pooler, start, mode, size, settings):
    url = pooler(mode, size)
    workers = [
        start("horsies_worker", "--threads", "2", DATABASE_URL=url, DJANGO_SETTINGS_MODULE=one) for one in settings
    ]
    wait_until(lambda: Worker.objects.count() == 2, 60, "the workers are registered")

    jobs.write.send_many({"key": str(number)} for number in range(MANY))
    flow = Workflow("flow", [first := tasks.noop.node()(), tasks.noop.node(waits_for=[first])()]).start()
    assert flow.get(timeout=60).is_ok()
    wait_until(lambda: Task.objects.completed().count() == MANY + 2, 60, "all tasks are completed")
    entries = Counter(Entry.objects.values_list("key", flat=True))
    assert entries == {str(number): 1 for number in range(MANY)}
    assert set(TaskAttempt.objects.values_list("attempt", "outcome")) == {(1, "COMPLETED")}
    dead = jobs.exit_with.send("dead", 1)
    assert dead.get(timeout=60).err.error_code == "WORKER_CRASHED"
    assert tasks.noop.send().get(timeout=60).is_ok()

    # Prepared statements and LISTEN belong to the session, which may serve another client in the next transaction.
    with psycopg.connect(own_cluster.url) as connection:
        listening = "SELECT count(*) FROM pg_stat_activity WHERE query ILIKE 'LISTEN%'"
        assert connection.execute(listening).fetchone() == (0,)
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        for _ in range(size):
            assert connection.execute("SELECT * FROM pg_prepared_statements").fetchall() == []
            assert connection.execute("SELECT * FROM pg_listening_channels()").fetchall() == []
    for worker in workers:
        assert worker.process.poll() is None
        assert "Traceback" not in worker.output
        assert "prepared statement" not in worker.output


_SEND = """
import django; django.setup()
from django.db import transaction
from horsies_django.models import Task
from tests.jobs import tasks
for _ in range(10):
    tasks.noop.send()
    tasks.noop.enqueue()
    with transaction.atomic():
        tasks.noop.send()
tasks.noop.send_many({} for _ in range(2_500))
print(Task.objects.count())
"""


@pytest.mark.slow
def test_sends_behind_pgbouncer_prepare_nothing(own_cluster, pooler):
    url = pooler("transaction", FEW)
    environment = {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": POOLED}

    sent = subprocess.run(
        [sys.executable, "-c", _SEND], env=environment, check=True, capture_output=True, text=True, timeout=120
    )

    assert sent.stdout.strip() == str(Task.objects.count()) == "2530"
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        for _ in range(FEW):
            assert connection.execute("SELECT * FROM pg_prepared_statements").fetchall() == []


@pytest.mark.slow
@pytest.mark.skipif(not prepares_statements(), reason="needs PgBouncer 1.21")
def test_a_worker_prepares_statements_in_transaction_mode_if_the_project_does(own_cluster, pooler, start):
    url = pooler("transaction", FEW, "max_prepared_statements = 100")
    worker = start("horsies_worker", "--threads", "2", DATABASE_URL=url, DJANGO_SETTINGS_MODULE=PREPARED)

    jobs.write.send_many({"key": str(number)} for number in range(MANY))
    wait_until(lambda: Task.objects.completed().count() == MANY, 60, "all tasks are completed")

    assert Counter(Entry.objects.values_list("key", flat=True)) == {str(number): 1 for number in range(MANY)}
    assert set(TaskAttempt.objects.values_list("attempt", "outcome")) == {(1, "COMPLETED")}
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        prepared = [connection.execute("SELECT statement FROM pg_prepared_statements").fetchall() for _ in range(FEW)]
    statements = {statement for rows in prepared for (statement,) in rows}
    assert any("horsies_tasks" in statement for statement in statements)
    assert worker.process.poll() is None
    assert "Traceback" not in worker.output
