"""The cost of workflows in the database, as counts and not as times, so that a regression fails a test.

Each limit on a number of statements is a little above the measured number.
"""

import json
import threading
from contextlib import contextmanager
from statistics import median

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.backends.signals import connection_created
from django.test.utils import CaptureQueriesContext

from horsies_django import Join, OnError, Workflow, sleep, wait_for_event
from horsies_django.models import Task, WorkflowTask
from horsies_django.models import Workflow as WorkflowRow
from tests.database import is_postgres
from tests.workflows import bodies

pytestmark = pytest.mark.django_db(transaction=True)


def drain(threads=1, **options):
    """Run the due tasks in this process. With one thread, no transaction ends two nodes."""
    options = {"drain": True, "no_reaper": True, "prefetch": 0, "start_ahead": 0, "verbosity": 0, **options}
    call_command("horsies_worker", threads=threads, **options)


def nodes(count, **options):
    return [bodies.echo.node(**options)() for _ in range(count)]


def chain_of(count):
    made = nodes(1)
    for _ in range(count - 1):
        made += nodes(1, waits_for=made[-1:])
    return Workflow("chain", made)


def fan_of(count):
    parents = nodes(count)
    return Workflow("fan", [*parents, *nodes(1, waits_for=parents)])


# Statements.


class Watch:
    """Records the statements of a worker of this process by transaction.

    Reads ``meter`` after each commit, on the same connection.
    """

    def __init__(self, meter=None):
        self.transactions, self.readings = [], []
        self.meter, self.thread = meter, threading.current_thread()
        self.open = []

    def connected(self, sender, connection, **_):
        if threading.current_thread() is not self.thread:
            return  # a connection of a body
        commit = connection._commit

        def committed():
            done = commit()
            if self.meter is not None:
                self.readings.append(self.meter.read(connection))
            self.transactions.append(self.open)
            self.open = []
            return done

        connection._commit = committed
        connection.execute_wrappers.append(self.record)

    def record(self, execute, sql, params, many, context):
        if context["connection"].in_atomic_block:
            self.open.append(sql)
        return execute(sql, params, many, context)

    @property
    def finishes(self):
        """Return the engine's statements of each transaction in which a node has ended."""
        return [list(filter(_is_of_engine, sqls)) for sqls in self.transactions if _ends_a_node(sqls)]


def _is_of_engine(sql):
    return "horsies_workflow" in sql


def _ends_a_node(sqls):
    """Return whether these are the statements of such a transaction, which locks the workflow first."""
    return any('"horsies_workflows"' in sql for sql in sqls)


@contextmanager
def watching(meter=None):
    watch = Watch(meter)
    connection_created.connect(watch.connected)
    try:
        yield watch
    finally:
        connection_created.disconnect(watch.connected)


def statements(watch):
    """Return the number of the engine's statements for each end of a node, in order."""
    return [len(sqls) for sqls in watch.finishes]


def ends(workflow):
    """Run a workflow, and return the number of statements for each end of a node."""
    handle = workflow.start()
    with watching() as watch:
        drain()
    assert str(handle.status()) == "COMPLETED"
    return statements(watch)


def ends_of_fan(count, meter=None):
    """Run a fan-in; return the records of its first ten ends, of its last ten parents and of the joining node."""
    parents = [*nodes(10, queue_name="first"), *nodes(count - 20), *nodes(10, queue_name="last")]
    handle = Workflow("fan", [*parents, *nodes(1, waits_for=parents, queue_name="after")]).start()
    with watching(meter) as first:
        drain(queues="first")
    drain(queues="default", threads=32)
    with watching(meter) as last:
        drain(queues="last")
    with watching(meter) as after:
        drain(queues="after")
    assert str(handle.status()) == "COMPLETED"
    return first, last, after


@pytest.mark.slow
def test_the_last_of_300_nodes_to_end_costs_as_many_statements_as_the_first():
    first, last, after = map(statements, ends_of_fan(300))
    of_one = ends(fan_of(1))

    print(f"statements of 300 ends: {first[0]} of the first, {last[-1]} of the last; {of_one[0]} of one only")
    assert (len(first), len(last)) == (10, 10)
    assert {*first, *last[:-1]} == {first[0]}
    # The last parent to end also starts the joining node, at the cost of a fan-in of one.
    assert [last[-1], *after] == of_one
    assert last[-1] <= first[0] + (0 if is_postgres() else 1)


def first_end(workflow):
    """Return the number of the engine's statements for the end of the first node."""
    workflow.start()
    with watching() as watch:
        drain(queues="first")
    (count,) = statements(watch)
    return count


@pytest.mark.slow
def test_starting_300_nodes_costs_as_many_statements_as_starting_one():
    def fan_out(count):
        first = nodes(1, queue_name="first")
        return Workflow("out", [*first, *nodes(count, waits_for=first)])

    assert first_end(fan_out(300)) == first_end(fan_out(1))


@pytest.mark.slow
def test_starting_a_map_costs_as_many_statements_for_900_items_as_for_10():
    def mapped(count):
        items = bodies.echo.node(queue_name="first")(value=list(range(count)))
        each = bodies.echo.map(over=items)
        return Workflow("map", [items, each, bodies.echo.node()(value=each)])

    assert first_end(mapped(900)) == first_end(mapped(10))


@pytest.mark.parametrize("shape", [chain_of, fan_of])
def test_a_start_costs_as_many_statements_for_900_nodes_as_for_10(shape):
    def started(count):
        workflow = shape(count)
        with CaptureQueriesContext(connection) as captured:
            workflow.start()
        return len([query for query in captured if _is_of_engine(query["sql"])])

    counts = [started(count) for count in (10, 100, 900)]

    print(f"statements of a start of 10, 100, 900 nodes: {counts}")
    assert len(set(counts)) == 1
    assert counts[0] <= 10


@pytest.mark.slow
def test_a_node_of_a_chain_costs_at_most_16_statements():
    chain_of(20).start()
    with watching() as watch:
        drain()

    # The end and the attempt of the node, the progress of the workflow, and the claim of the next node.
    cost = median(len(sqls) for sqls in watch.transactions if _ends_a_node(sqls))

    print(f"statements of a node of a chain: {cost}, in one transaction")
    assert cost <= 16


# Pages and steps.


class Buffers:
    """Counts the pages read of the tables of tasks, workflows and nodes, with their indexes and TOAST."""

    QUERY = (
        "SELECT sum(heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit + idx_blks_read, 0)"
        " + coalesce(toast_blks_hit + toast_blks_read + tidx_blks_hit + tidx_blks_read, 0))"
        " FROM pg_statio_user_tables WHERE relname IN ('horsies_tasks', 'horsies_workflows', 'horsies_workflow_tasks')"
    )

    def read(self, connection):
        raw = connection.connection
        with raw.cursor() as cursor:
            cursor.execute("SELECT pg_stat_force_next_flush()")
            raw.commit()
            found = cursor.execute(self.QUERY).fetchone()
            raw.commit()
        return int(found[0])


class Steps:
    """Counts the steps of SQLite's virtual machine, in hundreds."""

    count = 0

    def read(self, connection):
        connection.connection.set_progress_handler(self, 100)
        return self.count

    def __call__(self):
        self.count += 1


def costs_of(watch):
    """Return the cost of each end of a node, in order; the first transaction has none, as no reading precedes it."""
    between = [after - before for before, after in zip(watch.readings, watch.readings[1:], strict=False)]
    costs = zip(between, watch.transactions[1:], strict=True)
    return [cost for cost, sqls in costs if _ends_a_node(sqls)]


@pytest.fixture
def no_autovacuum():
    """Turn autovacuum off, so that it adds nothing to the counts and old row versions stay."""
    if is_postgres():
        _set_autovacuum(False)
    yield
    if is_postgres():
        _set_autovacuum(True)


def _set_autovacuum(is_on):
    with connection.cursor() as cursor:
        for model in (Task, WorkflowRow, WorkflowTask):
            cursor.execute(f"ALTER TABLE {model._meta.db_table} SET (autovacuum_enabled = {is_on})")


@pytest.mark.slow
@pytest.mark.alone  # the number of ends in one tick depends on the load of the machine
def test_the_work_per_node_does_not_grow_with_the_width_of_a_fan_in(no_autovacuum):
    meter = Buffers() if is_postgres() else Steps()
    wide, narrow = ([median(costs_of(watch)) for watch in ends_of_fan(count, meter)[:2]] for count in (2_000, 50))

    print(f"read by ends of 2,000: {wide[0]} first, {wide[1]} last; of 50: {narrow[0]} first, {narrow[1]} last")
    assert wide[1] <= 1.5 * wide[0]
    assert max(wide) <= 1.5 * max(narrow)


# How the statements find their rows.

WORKFLOWS = 2_000
NODES = 100


def copy_rows(model, source, **changes):
    """Copy rows within the database, with changes to some columns."""
    columns = [field.column for field in model._meta.concrete_fields if not (field.primary_key and "id" not in changes)]
    values = [changes.get(column, f'one."{column}"') for column in columns]
    names = ", ".join(f'"{column}"' for column in columns)
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {model._meta.db_table} ({names}) SELECT {', '.join(values)} FROM {source}")


@pytest.fixture
def many_others(transactional_db):
    """Create 200,000 nodes of 2,000 other workflows. Half of them are subworkflows; one in ten is open."""
    if not is_postgres():
        return
    parents = nodes(NODES // 2)
    ended = Workflow("other", [*parents, *nodes(NODES // 2, waits_for=parents)]).start()
    drain(threads=32)
    running = Workflow("other", [*parents, *nodes(NODES // 2, waits_for=parents, queue_name="later")]).start()
    drain(threads=32, queues="default")
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TEMP TABLE others AS SELECT gen_random_uuid() AS id, number,"
            " CASE WHEN number %% 10 = 0 THEN %s ELSE %s END::uuid AS of,"
            " CASE WHEN number %% 2 = 0 THEN %s END::uuid AS above FROM generate_series(1, %s) AS number",
            [running.id, ended.id, ended.id, WORKFLOWS],
        )
    # The id of a copied task is a hash of the new workflow and the original task, so its node can name it too.
    task_id = "md5(others.id || {}::text)::uuid"
    copy_rows(
        WorkflowRow,
        "horsies_workflows AS one JOIN others ON one.id = others.of",
        id="others.id",
        root_id="coalesce(others.above, others.id)",
        depth="CASE WHEN others.above IS NULL THEN 0 ELSE 1 END",
        parent_id="(SELECT min(id) + number % 50 FROM horsies_workflow_tasks WHERE others.above IS NOT NULL)",
    )
    copy_rows(
        Task,
        "horsies_tasks AS one JOIN others ON one.workflow_id = others.of",
        id=task_id.format("one.id"),
        workflow_id="others.id",
    )
    copy_rows(
        WorkflowTask,
        "horsies_workflow_tasks AS one JOIN others ON one.workflow_id = others.of",
        workflow_id="others.id",
        task_id=task_id.format("one.task_id"),
    )
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE others")
        cursor.execute("ANALYZE")
    assert WorkflowTask.objects.count() == NODES * (WORKFLOWS + 2)


class Plans:
    """Explains each statement on its own connection, and keeps the plans that scan a whole table or index."""

    def __init__(self):
        self.bad = {}
        self.explained = 0

    def connected(self, sender, connection, **_):
        connection.execute_wrappers.append(self.explain)

    def explain(self, execute, sql, params, many, context):
        if (
            "horsies_workflow" in sql
            and sql.split()[0] in ("SELECT", "UPDATE", "INSERT", "DELETE", "WITH")
            and not many
        ):
            self.explained += 1
            with context["connection"].connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN (FORMAT JSON) {sql}", params)
                ((plan,),) = cursor.fetchone()
            if wrong := sorted(set(full_scans(plan["Plan"]))):
                self.bad[sql] = wrong
        return execute(sql, params, many, context)


OURS = ("horsies_tasks", "horsies_workflows", "horsies_workflow_tasks")


def full_scans(plan):
    """Yield the full scans of our tables and of their indexes in a plan."""
    kind, table = plan["Node Type"], plan.get("Relation Name")
    if table in OURS and (kind == "Seq Scan" or (kind.startswith("Index") and "Index Cond" not in plan)):
        yield f"{kind} of {table} {plan.get('Index Name', '')}"
    if kind == "Bitmap Index Scan" and "Index Cond" not in plan:
        yield f"{kind} of {plan['Index Name']}"
    for child in plan.get("Plans", []):
        yield from full_scans(child)


@contextmanager
def explaining():
    plans = Plans()
    connection_created.connect(plans.connected)
    try:
        with connection.execute_wrapper(plans.explain):
            yield plans
    finally:
        connection_created.disconnect(plans.connected)


@pytest.mark.slow
def test_no_workflow_statement_scans_a_table_of_200_000_nodes(many_others):
    if not is_postgres():
        return  # plans of SQLite do not depend on the number of rows
    with explaining() as plans:
        _run_one_of_each_kind()

    print(f"{plans.explained} statements were explained")
    assert plans.explained > 100
    assert not plans.bad, json.dumps(plans.bad, indent=1)


def _run_one_of_each_kind():
    items = bodies.echo.node()(value=[1, 2, 3])
    each = bodies.echo.map(over=items)
    gathered = bodies.echo.node()(value=each)
    chosen = bodies.echo.node(waits_for=[items], run_when=bodies.yes)()
    child = bodies.Leaf.node(waits_for=[chosen])(key="child")
    event, nap = wait_for_event("approval"), sleep(0)
    last = bodies.echo.node(waits_for=[gathered, child, event, nap], join=Join.QUORUM, min_success=4)()
    handle = Workflow("each kind", [items, each, gathered, chosen, child, event, nap, last], output=last).start()
    drain(threads=4, queues="default")
    handle.send_event("approval", 1)
    drain(threads=4, queues="default")
    assert handle.get(timeout=0).is_ok()
    assert handle.result_for("each-kind:7").is_ok()
    assert len(handle.results()) == len(handle.tasks())

    failing = bodies.fail.node()()
    handle = Workflow("paused", [failing, *nodes(1, waits_for=[failing])], on_error=OnError.PAUSE).start()
    drain(queues="default")
    assert str(handle.status()) == "PAUSED"
    assert handle.resume()
    drain(queues="default")
    assert handle.retry()
    handle.pause()
    handle.cancel()
    drain(queues="default")
    assert str(handle.status()) == "CANCELLED"
