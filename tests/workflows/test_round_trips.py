"""How many statements and round trips a worker's tick takes; a slow network makes round trips expensive.

They are counted, not timed: libpq traces its messages. All messages that are sent before the next wait for an answer
are one round trip.
"""

import tempfile
import threading
from typing import NamedTuple

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.backends.signals import connection_created

from horsies_django import Join, OnError, Workflow, sleep, wait_for_event
from horsies_django.models import Workflow as WorkflowRow
from tests.workflows import bodies
from tests.workflows.runs import make_due

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


class Cost(NamedTuple):
    """Numbers of round trips and of statements."""

    trips: int
    statements: int

    def __le__(self, other):
        return self.trips <= other.trips and self.statements <= other.statements


#: Limit of a tick, with BEGIN, COMMIT and the claim, however many nodes end in it. libpq may send part of a pipeline
#: early, so a slow machine makes two to four round trips more than a fast one.
LIMIT = Cost(16, 24)

#: Limit of a tick with workflows of every shape: it also queries paused nodes and retries.
LIMIT_WITH_EVERY_SHAPE = Cost(18, 40)

#: Messages that make libpq send all that it holds back, and that the server answers.
ASKS = {"Query", "Sync", "Flush"}

#: Messages that prepare a statement.
PREPARES = {"Parse", "Sync"}


class Wire:
    """The messages that the worker of this process sends and receives on its connection."""

    def __init__(self):
        self.thread, self.file = threading.current_thread(), tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed below

    def connected(self, sender, connection, **_):
        if threading.current_thread() is self.thread:  # the other threads run bodies
            from psycopg.pq import Trace

            connection.connection.pgconn.trace(self.file.fileno())
            connection.connection.pgconn.set_trace_flags(Trace.SUPPRESS_TIMESTAMPS)

    def __enter__(self):
        connection_created.connect(self.connected)
        return self

    def __exit__(self, *_):
        connection_created.disconnect(self.connected)
        self.file.seek(0)
        self.messages = [line.rstrip("\n").split("\t", 3) for line in self.file if line[:2] in ("F\t", "B\t")]
        self.file.close()

    def ticks(self):
        """Return the round trips and statements of each transaction in which nodes have ended.

        Those that prepare a statement once per connection are left out, and so are heartbeats, one each 30 s.
        """
        found, trips, statements, sql, kinds = [], 0, 0, "", set()
        for sender, _, kind, *rest in self.messages:
            text = rest[0] if rest else ""
            if sender == "F":
                kinds.add(kind)
                statements += kind in ("Query", "Execute")
                sql += text
                continue
            if kinds.intersection(ASKS):
                trips += kinds != PREPARES
                kinds = set()
            if kind == "CommandComplete" and '"BEGIN"' in text:
                trips, statements, sql = 1, 1, ""
            is_commit = kind == "CommandComplete" and '"COMMIT"' in text
            if is_commit and "open_count" in sql and "horsies_heartbeats" not in sql:
                found.append((trips, statements))
        return found


def drain(threads=100):
    call_command(
        "horsies_worker",
        threads=threads,
        drain=True,
        no_reaper=True,
        prefetch=0,
        start_ahead=0,
        verbosity=0,
    )


def echo_nodes(count, **options):
    return [bodies.echo.node(**options)() for _ in range(count)]


def chain_after(first, count):
    """Return a node and a chain of this many nodes after it."""
    made = [first]
    for _ in range(count):
        made += echo_nodes(1, waits_for=made[-1:])
    return made


def chains():
    return [Workflow("chain", chain_after(*echo_nodes(1), 3)) for _ in range(50)]


def fan(count=100):
    parents = echo_nodes(count)
    return [Workflow("fan", [*parents, *echo_nodes(1, waits_for=parents)])]


def maps():
    made = []
    for _ in range(3):
        items = bodies.echo.node()(value=list(range(100)))
        each = bodies.echo.map(over=items)
        made.append(Workflow("map", [items, each, bodies.echo.node()(value=each)]))
    return made


def diamonds():
    made = []
    for join in (Join.ALL, Join.ANY) * 15:
        first = echo_nodes(1)
        middle = echo_nodes(3, waits_for=first)
        made.append(Workflow("diamond", [*first, *middle, *echo_nodes(1, waits_for=middle, join=join)]))
    return made


def conditions():
    made = []
    for _ in range(20):
        first = echo_nodes(1)
        run, left = (bodies.echo.node(waits_for=first, run_when=way)() for way in (bodies.yes, bodies.no))
        made.append(Workflow("condition", [*first, run, left, *echo_nodes(1, waits_for=[run, left])]))
    return made


def skips():
    return [Workflow("skip", chain_after(bodies.fail.node()(), 20)) for _ in range(10)]


def retries():
    retried = [bodies.flaky_with_retries.node()(key=f"again {number}", fails=1) for number in range(20)]
    return [Workflow("retry", chain_after(node, 1)) for node in retried]


def subworkflows():
    return [Workflow("sub", chain_after(bodies.Leaf.node()(key=f"leaf {number}"), 1)) for number in range(20)]


def nested():
    return [Workflow("nested", [bodies.Nested.node()(left=6)]) for _ in range(3)]


def failing_nested():
    return [Workflow("nested", chain_after(bodies.Nested.node()(left=6, is_bad=True, skipped=4), 4)) for _ in range(3)]


def events():
    made = []
    for _ in range(10):
        nodes = echo_nodes(1)
        for _ in range(10):
            nodes.append(wait_for_event("approval", waits_for=nodes[-1:]))
        made.append(Workflow("event", [*nodes, *echo_nodes(1, waits_for=nodes[-1:])]))
    return made


def branches(levels=10):
    """Return workflows with a chain of received events, each followed by nodes of several kinds."""
    made = []
    for _ in range(2):
        nodes = echo_nodes(1)
        last = nodes[0]
        for _ in range(levels):
            last = wait_for_event("approval", waits_for=[last])
            after = {"waits_for": [last]}
            leaf, undecided = bodies.Leaf.node(**after)(key="leaf"), bodies.echo.node(run_when=bodies.yes, **after)()
            nodes += [last, leaf, undecided, sleep(0, **after), *echo_nodes(1, **after)]
        made.append(Workflow("event", nodes))
    return made


def maps_over_empty_lists():
    made = []
    for _ in range(10):
        nodes = [bodies.echo.node()(value=[])]
        for _ in range(10):
            nodes.append(bodies.echo.map(over=nodes[-1]))
        made.append(Workflow("nothing", nodes))
    return made


def pauses():
    return [
        Workflow("pause", [bodies.fail.node()(), *chain_after(*echo_nodes(1), 2)], on_error=OnError.PAUSE)
        for _ in range(10)
    ]


SHAPES = (
    chains,
    fan,
    maps,
    diamonds,
    conditions,
    skips,
    retries,
    subworkflows,
    nested,
    failing_nested,
    events,
    branches,
    maps_over_empty_lists,
    pauses,
)

QUICK_SHAPES = {diamonds, failing_nested, branches}


def everything():
    return [workflow for shape in SHAPES for workflow in shape()]


@pytest.mark.parametrize(
    "shape", [shape if shape in QUICK_SHAPES else pytest.param(shape, marks=pytest.mark.slow) for shape in SHAPES]
)
def test_a_tick_makes_at_most_16_round_trips_however_many_nodes_end(shape):
    assert highest_cost(shape) <= LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("shape", [lambda: fan(10), lambda: branches(2), lambda: branches(30)])
def test_the_round_trip_limit_holds_for_few_and_many_nodes_and_levels(shape):
    assert highest_cost(shape) <= LIMIT


@pytest.mark.slow
def test_a_tick_with_workflows_of_every_shape_has_a_round_trip_limit():
    assert highest_cost(everything) <= LIMIT_WITH_EVERY_SHAPE


def highest_cost(shape):
    """Run workflows, and return the highest numbers of round trips and statements of a tick."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite runs in the process and has no round trips")
    for workflow in shape():
        handle = workflow.start()
        if workflow.name == "event":
            handle.send_event("approval", 1)
    with Wire() as wire:
        drain()
        make_due()
        drain()

    ticks = wire.ticks()
    trips, statements = zip(*ticks, strict=True)
    print(f"{len(ticks)} ticks of {max(trips)} round trips and {max(statements)} statements at most")
    ends = set(WorkflowRow.objects.exclude(name="pause").values_list("status", flat=True))
    assert ends <= {"COMPLETED", "FAILED"}
    return Cost(max(trips), max(statements))
