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


PLAIN, POOLED, PREPARED, LISTENING = (
    "tests.settings",
    *(f"tests.faults.{name}_settings" for name in ("pooled", "prepared", "listening")),
)


@pytest.fixture
def pooler(own_cluster):
    """Start PgBouncer in front of ``own_cluster``. Request it before ``start``, whose processes it must outlive."""
    with ExitStack() as stack:
        yield lambda *arguments: stack.enter_context(pgbouncer(own_cluster, *arguments))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "size", "settings"),
    [
        pytest.param("session", ENOUGH, [PLAIN, PLAIN], id="session", marks=pytest.mark.nightly),
        pytest.param("transaction", FEW, [PLAIN, POOLED], id="transaction"),
    ],
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
        assert all(not connection.execute("SELECT * FROM pg_listening_channels()").fetchall() for _ in range(FEW))
    statements = {statement for rows in prepared for (statement,) in rows}
    assert any("horsies_tasks" in statement for statement in statements)
    assert worker.process.poll() is None
    assert "Traceback" not in worker.output


#: The first of two waits, until a query that no poll for both has made finds its task: a notification caused it.
_WAIT = """
import sys, threading
from datetime import timedelta
import django; django.setup()
from django.db.backends.signals import connection_created
from tests.jobs import tasks

counts = []

def record(execute, sql, params, many, context):
    if threading.current_thread().name == "horsies-waiter" and sql.startswith("SELECT") and "horsies_tasks" in sql:
        counts.append(len(params))
    return execute(sql, params, many, context)

connection_created.connect(lambda connection, **_: connection.execute_wrappers.append(record), weak=False)
other = tasks.noop.with_options(run_after=timedelta(hours=1)).send()
threading.Thread(target=other.get, args=(600,), daemon=True).start()
for _ in range(20):
    tasks.nap.send(2).value(60)
    if counts[-2:] == [2, 1]:
        sys.exit()
sys.exit(f"no completion was received: {counts}")
"""


@pytest.mark.slow
def test_workers_and_waiters_behind_pgbouncer_listen_over_another_alias(own_cluster, pooler, start):
    url = pooler("transaction", FEW)
    environment = {"DATABASE_URL": url, "DIRECT_DATABASE_URL": own_cluster.url, "DJANGO_SETTINGS_MODULE": LISTENING}
    worker = start("horsies_worker", "--threads", "2", REFUSE_FIRST_LISTEN="1", **environment)
    wait_until(lambda: "LookupError: no secret yet" in worker.output)
    with psycopg.connect(own_cluster.url, autocommit=True) as connection:
        listening = "SELECT FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
        wait_until(lambda: connection.execute(listening).fetchone() is not None, 60, "it listens after all")

    # The worker sends the completion only because it has received the waiter's subscription.
    subprocess.run([sys.executable, "-c", _WAIT], env={**os.environ, **environment}, check=True, timeout=120)
    assert "LISTEN lost" not in worker.output


@pytest.mark.slow
@pytest.mark.parametrize(
    "is_pooled",
    [pytest.param(False, id="another database"), pytest.param(True, id="another pooler", marks=pytest.mark.nightly)],
)
def test_a_worker_whose_listen_database_leads_elsewhere_says_so_and_polls(own_cluster, pooler, start, is_pooled):
    url = pooler("transaction", FEW)
    wrong = pooler("transaction", FEW) if is_pooled else own_cluster.url.replace("/postgres?", "/template1?")
    environment = {"DATABASE_URL": url, "DIRECT_DATABASE_URL": wrong, "DJANGO_SETTINGS_MODULE": LISTENING}
    worker = start("horsies_worker", TEST_HEARTBEAT_MS="1000", **environment)

    why = "no notification of the queue's database arrives over listen_database"
    wait_until(lambda: f"LISTEN lost, polling until it is back error={why}" in worker.output, 60, why)
    assert tasks.noop.send().get(timeout=60).is_ok()
    assert "Traceback" not in worker.output
