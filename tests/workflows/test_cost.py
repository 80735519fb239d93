"""What a workflow costs the database, counted and not clocked, so that whoever makes it dearer hears of it.

Each bound on a number of statements is a little above what was seen.
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
from tests.workflows import bodies

pytestmark = pytest.mark.django_db(transaction=True)


def is_postgres():
    return connection.vendor == "postgresql"


def drain(threads=1, **options):
    """Run what is due in this process. With one thread, no transaction has the ends of two nodes."""
    options = {"drain": True, "no_reaper": True, "prefetch": 0, "start_ahead": 0, "verbosity": 0, **options}
    call_command("horsies_worker", threads=threads, **options)


def nodes(count, **options):
    return [bodies.give.node(**options)() for _ in range(count)]


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
    """Sees what a worker of this process says in each transaction.

    ``meter`` is asked after each commit, on the same connection.
    """

    def __init__(self, meter=None):
        self.transactions, self.readings = [], []
        self.meter, self.thread = meter, threading.current_thread()
        self.open = []

    def connected(self, sender, connection, **_):
        if threading.current_thread() is not self.thread:
            return  # a body's
        commit = connection._commit

        def committed():
            done = commit()
            if self.meter is not None:
                self.readings.append(self.meter.read(connection))
            self.transactions.append(self.open)
            self.open = []
            return done

        connection._commit = committed
        connection.execute_wrappers.append(self.listen)

    def listen(self, execute, sql, params, many, context):
        if context["connection"].in_atomic_block:
            self.open.append(sql)
        return execute(sql, params, many, context)

    @property
    def finishes(self):
        """What the engine has said in each transaction in which a node has ended."""
        return [list(filter(_is_told, said)) for said in self.transactions if _ends_a_node(said)]


def _is_told(sql):
    return "horsies_workflow" in sql


def _ends_a_node(said):
    """Such a one begins by locking the workflow."""
    return any('"horsies_workflows"' in sql for sql in said)


@contextmanager
def watching(meter=None):
    watch = Watch(meter)
    connection_created.connect(watch.connected)
    try:
        yield watch
    finally:
        connection_created.disconnect(watch.connected)


def statements(watch):
    """How many statements of the engine each end of a node took, in turn."""
    return [len(said) for said in watch.finishes]


def ends(workflow):
    """The same of a workflow that is run from its start to its end."""
    handle = workflow.start()
    with watching() as watch:
        drain()
    assert str(handle.status()) == "COMPLETED"
    return statements(watch)


def ends_of_fan(count, meter=None):
    """Run a fan, and return what was seen of its first ten ends, of its last ten, and of that of the last node."""
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


def test_the_last_of_300_nodes_to_end_costs_as_many_statements_as_the_first():
    first, last, after = map(statements, ends_of_fan(300))
    of_one = ends(fan_of(1))

    print(f"statements of 300 ends: {first[0]} of the first, {last[-1]} of the last; {of_one[0]} of one only")
    assert (len(first), len(last)) == (10, 10)
    assert {*first, *last[:-1]} == {first[0]}
    # With the last one another node begins, which is said as if there had been no other.
    assert [last[-1], *after] == of_one
    assert last[-1] <= first[0] + (0 if is_postgres() else 1)


def first_end(workflow):
    """How many statements of the engine the end of the node took that begins."""
    workflow.start()
    with watching() as watch:
        drain(queues="first")
    (count,) = statements(watch)
    return count


def test_starting_300_nodes_costs_as_many_statements_as_starting_one():
    def fan_out(count):
        first = nodes(1, queue_name="first")
        return Workflow("out", [*first, *nodes(count, waits_for=first)])

    assert first_end(fan_out(300)) == first_end(fan_out(1))


def test_starting_a_map_costs_as_many_statements_for_900_items_as_for_10():
    def mapped(count):
        items = bodies.give.node(queue_name="first")(value=list(range(count)))
        each = bodies.give.map(over=items)
        return Workflow("map", [items, each, bodies.give.node()(value=each)])

    assert first_end(mapped(900)) == first_end(mapped(10))


@pytest.mark.parametrize("shape", [chain_of, fan_of])
def test_a_start_costs_as_many_statements_for_900_nodes_as_for_10(shape):
    def started(count):
        workflow = shape(count)
        with CaptureQueriesContext(connection) as captured:
            workflow.start()
        return len([query for query in captured if _is_told(query["sql"])])

    counts = [started(count) for count in (10, 100, 900)]

    print(f"statements of a start of 10, 100, 900 nodes: {counts}")
    assert len(set(counts)) == 1
    assert counts[0] <= 10


def test_a_node_of_a_chain_costs_at_most_16_statements():
    chain_of(20).start()
    with watching() as watch:
        drain()

    # Its own end and attempt, what follows in the workflow, and the claim of the next one.
    cost = median(len(said) for said in watch.transactions if _ends_a_node(said))

    print(f"statements of a node of a chain: {cost}, in one transaction")
    assert cost <= 16


# What they touch.


class Buffers:
    """Pages of the tables and indexes of tasks, workflows and nodes, TOAST too."""

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
    """Hundreds of steps of SQLite's machine."""

    count = 0

    def read(self, connection):
        connection.connection.set_progress_handler(self, 100)
        return self.count

    def __call__(self):
        self.count += 1


def touched(watch):
    """What each end of a node has touched, in turn; what came before the first commit is not known."""
    between = [after - before for before, after in zip(watch.readings, watch.readings[1:], strict=False)]
    costs = zip(between, watch.transactions[1:], strict=True)
    return [cost for cost, said in costs if _ends_a_node(said)]


@pytest.fixture
def unswept():
    """Tables that nobody else looks after, so that all that is counted is ours, and versions of rows stay."""
    if is_postgres():
        _sweep(False)
    yield
    if is_postgres():
        _sweep(True)


def _sweep(is_on):
    with connection.cursor() as cursor:
        for model in (Task, WorkflowRow, WorkflowTask):
            cursor.execute(f"ALTER TABLE {model._meta.db_table} SET (autovacuum_enabled = {is_on})")


@pytest.mark.slow
@pytest.mark.alone  # how many ends meet in a tick depends on what runs beside it
def test_the_work_per_node_does_not_grow_with_the_width_of_a_fan_in(unswept):
    meter = Buffers() if is_postgres() else Steps()
    wide, narrow = ([median(touched(watch)) for watch in ends_of_fan(count, meter)[:2]] for count in (2_000, 50))

    print(f"touched by ends of 2,000: {wide[0]} first, {wide[1]} last; of 50: {narrow[0]} first, {narrow[1]} last")
    assert wide[1] <= 1.5 * wide[0]
    assert max(wide) <= 1.5 * max(narrow)


# How the statements find their rows.

OTHERS = 2_000
EACH = 100


def copied(model, source, **changes):
    """Copy rows in the database, with these columns changed."""
    columns = [field.column for field in model._meta.concrete_fields if not (field.primary_key and "id" not in changes)]
    values = [changes.get(column, f'one."{column}"') for column in columns]
    names = ", ".join(f'"{column}"' for column in columns)
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {model._meta.db_table} ({names}) SELECT {', '.join(values)} FROM {source}")


@pytest.fixture
def many_others(transactional_db):
    """200,000 nodes of 2,000 other workflows. Half of these are below another; one in ten has not ended."""
    if not is_postgres():
        return
    parents = nodes(EACH // 2)
    ended = Workflow("other", [*parents, *nodes(EACH // 2, waits_for=parents)]).start()
    drain(threads=32)
    begun = Workflow("other", [*parents, *nodes(EACH // 2, waits_for=parents, queue_name="later")]).start()
    drain(threads=32, queues="default")
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TEMP TABLE others AS SELECT gen_random_uuid() AS id, number,"
            " CASE WHEN number %% 10 = 0 THEN %s ELSE %s END::uuid AS of,"
            " CASE WHEN number %% 2 = 0 THEN %s END::uuid AS above FROM generate_series(1, %s) AS number",
            [begun.id, ended.id, ended.id, OTHERS],
        )
    # Each copy of a node has a copy of its task, whose id tells of which.
    task_id = "md5(others.id || {}::text)::uuid"
    copied(
        WorkflowRow,
        "horsies_workflows AS one JOIN others ON one.id = others.of",
        id="others.id",
        root_id="coalesce(others.above, others.id)",
        depth="CASE WHEN others.above IS NULL THEN 0 ELSE 1 END",
        parent_id="(SELECT min(id) + number % 50 FROM horsies_workflow_tasks WHERE others.above IS NOT NULL)",
    )
    copied(
        Task,
        "horsies_tasks AS one JOIN others ON one.workflow_id = others.of",
        id=task_id.format("one.id"),
        workflow_id="others.id",
    )
    copied(
        WorkflowTask,
        "horsies_workflow_tasks AS one JOIN others ON one.workflow_id = others.of",
        workflow_id="others.id",
        task_id=task_id.format("one.task_id"),
    )
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE others")
        cursor.execute("ANALYZE")
    assert WorkflowTask.objects.count() == EACH * (OTHERS + 2)


class Plans:
    """Asks how each statement would find its rows, on the connection that says it."""

    def __init__(self):
        self.bad = {}
        self.asked = 0

    def connected(self, sender, connection, **_):
        connection.execute_wrappers.append(self.ask)

    def ask(self, execute, sql, params, many, context):
        if (
            "horsies_workflow" in sql
            and sql.split()[0] in ("SELECT", "UPDATE", "INSERT", "DELETE", "WITH")
            and not many
        ):
            self.asked += 1
            with context["connection"].connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN (FORMAT JSON) {sql}", params)
                ((plan,),) = cursor.fetchone()
            if wrong := sorted(set(whole(plan["Plan"]))):
                self.bad[sql] = wrong
        return execute(sql, params, many, context)


OURS = ("horsies_tasks", "horsies_workflows", "horsies_workflow_tasks")


def whole(plan):
    """Yield which of our tables a plan goes through from one end to the other, or an index of theirs."""
    kind, table = plan["Node Type"], plan.get("Relation Name")
    if table in OURS and (kind == "Seq Scan" or (kind.startswith("Index") and "Index Cond" not in plan)):
        yield f"{kind} of {table} {plan.get('Index Name', '')}"
    if kind == "Bitmap Index Scan" and "Index Cond" not in plan:
        yield f"{kind} of {plan['Index Name']}"
    for child in plan.get("Plans", []):
        yield from whole(child)


@contextmanager
def explaining():
    plans = Plans()
    connection_created.connect(plans.connected)
    try:
        with connection.execute_wrapper(plans.ask):
            yield plans
    finally:
        connection_created.disconnect(plans.connected)


@pytest.mark.slow
def test_no_workflow_statement_scans_a_table_of_200_000_nodes(many_others):
    if not is_postgres():
        return  # its plans know nothing of how many rows there are
    with explaining() as plans:
        _run_one_of_each_kind()

    print(f"{plans.asked} statements were asked for their plans")
    assert plans.asked > 100
    assert not plans.bad, json.dumps(plans.bad, indent=1)


def _run_one_of_each_kind():
    items = bodies.give.node()(value=[1, 2, 3])
    each = bodies.give.map(over=items)
    gathered = bodies.give.node()(value=each)
    chosen = bodies.give.node(waits_for=[items], run_when=bodies.yes)()
    below = bodies.Leaf.node(waits_for=[chosen])(key="below")
    event, nap = wait_for_event("said"), sleep(0)
    last = bodies.give.node(waits_for=[gathered, below, event, nap], join=Join.QUORUM, min_success=4)()
    handle = Workflow("each kind", [items, each, gathered, chosen, below, event, nap, last], output=last).start()
    drain(threads=4, queues="default")
    handle.send_event("said", 1)
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
