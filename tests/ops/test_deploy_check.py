"""``manage.py horsies_check_deploy``: rows that older code has written, and what this code makes of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from io import StringIO
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from horsies_django import Workflow, register_type, wait_for_event
from horsies_django.core.compat import task_backends
from horsies_django.core.version import __version__
from horsies_django.db.expressions import NowPlus
from horsies_django.models import Schedule, Task, TaskItem, Worker, WorkflowTask
from horsies_django.ops.deploy_check import calls, check_deploy, nodes
from horsies_django.ops.deploy_check import tasks as task_check
from horsies_django.schedules.syncing import project_of
from tests.admin import step_jobs
from tests.core.registry import renamed
from tests.enqueue.grouping import jobs as grouping
from tests.jobs import tasks
from tests.ops.inspector.factories import make, some
from tests.schedules import jobs as scheduled
from tests.workflows import bodies

pytestmark = pytest.mark.django_db(transaction=True)

GONE = "no task of this name is registered"


def check(*arguments):
    """Return the exit status and the lines of the command."""
    out, status = StringIO(), 0
    try:
        call_command("horsies_check_deploy", *arguments, stdout=out)
    except SystemExit as left:
        status = left.code
    return status, out.getvalue().splitlines()


def broken(*arguments):
    """Return the lines of what would break, and check the exit status and the last line."""
    status, (*lines, last) = check(*arguments)
    assert status == (1 if lines else 0)
    assert last.startswith(f"{len(lines)} found. " if lines else "Nothing would break. ")
    return lines


def use_backend(settings, **options):
    settings.TASKS = {"default": settings.TASKS["default"] | options}


def test_with_nothing_in_flight_nothing_would_break():
    make("failed", task_name="shop.gone")
    make("completed", task_name="shop.gone", queue_name="gone")

    assert check() == (0, ["Nothing would break. Read: tasks 0, nodes 0, schedules 0."])


def test_tasks_that_this_code_knows_under_any_of_their_names_break_nothing(settings):
    tasks.add.send(1, b=2)
    tasks.add.schedule(3_600, 1)
    tasks.attempt.send()
    tasks.echo.send(1, 2, three=3)
    renamed.send_it.send(number=2)
    for name in ("mail.send_old", "tests.core.registry.renamed.send_it"):
        make("pending", task_name=name, kwargs={"number": 1})
    use_backend(settings, QUEUES=["default"])

    assert check() == (0, ["Nothing would break. Read: tasks 7, nodes 0, schedules 0."])


@pytest.mark.parametrize("state", ["scheduled", "pending", "retrying", "claimed", "running"])
def test_a_task_without_a_registered_task_of_its_name_would_break(state):
    first = make(state, task_name="shop.gone")
    some(2, state, task_name="shop.gone")

    (line,) = broken()

    assert line.startswith(f"task: shop.gone: {GONE} (3 rows, e.g. ")
    assert Task.objects.get(pk=first.pk).status == first.status


def test_a_task_that_waits_for_its_limit_is_checked():
    row = make("pending", task_name="shop.gone", deferred=True, blocked=True, limit_key="k")

    assert broken() == [f"task: shop.gone: {GONE} (1 row, e.g. {row.pk})"]


@pytest.mark.parametrize(
    ("args", "kwargs", "reason"),
    [
        ([], {"b": 1}, "missing a required argument: 'a'"),
        ([1], {"currency": "EUR"}, "got an unexpected keyword argument 'currency'"),
        ([1, 2, 3], {}, "too many positional arguments"),
        ([1], {"a": 1}, "multiple values for argument 'a'"),
        ({"a": 1}, {}, "a dict is stored in the place of a list"),
    ],
)
def test_stored_arguments_that_do_not_fit_the_signature_would_break(args, kwargs, reason):
    tasks.add.send(1)
    row = make("pending", task_name=tasks.add.task_name, args=args, kwargs=kwargs)

    assert broken() == [f"task: tests.jobs.tasks.add: {reason} (1 row, e.g. {row.pk})"]


def test_the_context_is_no_stored_argument():
    row = make("pending", task_name=tasks.attempt.task_name, args=[1])

    assert broken() == [f"task: tests.jobs.tasks.attempt: too many positional arguments (1 row, e.g. {row.pk})"]


def test_values_of_arguments_are_not_printed():
    make("pending", task_name=tasks.add.task_name, args=["secret", "secret", "secret"], kwargs={"a": "secret"})

    assert "secret" not in "".join(broken())


@pytest.mark.slow
def test_a_queue_that_no_backend_has_would_break(settings):
    row = make("pending", queue_name="bulk")
    make("scheduled", queue_name="bulk")
    assert broken() == []

    use_backend(settings, QUEUES=["default"])
    assert broken() == [
        "queue: bulk: no backend has this queue in its QUEUES (2 rows, e.g. " + str(first_of(row)) + ")"
    ]

    settings.TASKS = {**settings.TASKS, "other": settings.TASKS["default"] | {"QUEUES": ["bulk"]}}
    assert broken() == []


def first_of(row):
    """Return the id of the task that is read before this one: scheduled tasks come first."""
    return Task.objects.exclude(pk=row.pk).get(queue_name=row.queue_name).pk


def test_names_are_printed_on_one_line_without_control_characters():
    make("pending", task_name="shop.\x1b[31mgone\n")

    assert broken()[0].startswith(rf"task: shop.\u001b[31mgone\n: {GONE}")


# Rich values.


@register_type
@dataclass
class Parcel:
    weight: float

    def __post_init__(self):
        raise AssertionError("the check made a value")


PARCEL = {"$type": "dataclass", "class": f"{__name__}.Parcel", "value": {"weight": 1.5}}


@pytest.fixture
def rich(settings):
    use_backend(settings, OPTIONS=settings.TASKS["default"]["OPTIONS"] | {"serializer": "rich"})


def with_value(value):
    return make("pending", task_name=tasks.identity.task_name, kwargs={"value": value}, typed_payload=True)


@pytest.mark.usefixtures("rich")
def test_rich_values_of_known_types_break_nothing_and_are_not_made():
    with_value(PARCEL)
    with_value([{"at": {"$type": "date", "value": "2026-01-01"}}, {"$type": "dict", "value": {"$type": PARCEL}}])

    assert broken() == []


@pytest.mark.usefixtures("rich")
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (PARCEL | {"class": "shop.types.Parcel"}, "'shop.types.Parcel' is not a registered dataclass"),
        (PARCEL | {"value": {}}, f"{__name__}.Parcel: missing a required argument: 'weight'"),
        (PARCEL | {"value": {"weight": 1, "colour": 2}}, f"{__name__}.Parcel: got an unexpected keyword argument"),
        ({"$type": "date", "value": "soon"}, "a stored date can't be read"),
        ({"$type": "money", "value": 1}, "the tag 'money' is unknown"),
        ({"$type": ["date"]}, "the tag ['date'] is unknown"),
    ],
)
def test_rich_values_that_can_not_be_read_would_break(value, reason):
    with_value(PARCEL)
    with_value([{"in": value}])

    (line,) = broken()

    assert line.startswith(f"task: tests.jobs.tasks.identity: {reason}")
    assert "(1 row, e.g. " in line


def test_rich_values_would_break_once_the_serializer_is_json():
    with_value([PARCEL])
    with_value(3)

    (line,) = broken()

    reason = "it has rich values, and TASKS has no 'default' whose serializer is 'rich'"
    assert line.startswith(f"task: tests.jobs.tasks.identity: {reason} (1 row, ")


# Gathered calls.


def test_gathered_calls_break_nothing_while_their_task_gathers():
    grouping.mail.send(customer_id=1, text="a")
    grouping.mail.schedule(3_600, customer_id=1, text="b")

    assert broken() == []


def test_a_group_would_break_if_its_task_takes_no_list():
    grouping.mail.send(customer_id=1)
    Task.objects.update(task_name=tasks.noop.task_name)

    (line,) = broken()

    assert line.startswith("task: tests.jobs.tasks.noop: it has no parameter for the list of its grouped calls (1 row")


def test_a_call_that_was_to_join_a_group_would_break_if_its_task_does_not_take_it():
    grouping.mail.schedule(3_600, customer_id=1)
    Task.objects.update(task_name=tasks.add.task_name)

    (line,) = broken()

    assert line.startswith("task: tests.jobs.tasks.add: missing a required argument: 'a' (1 row, ")


@pytest.mark.usefixtures("rich")
def test_the_values_of_gathered_calls_are_checked():
    grouping.mail.send(customer_id=1, what="a")
    grouping.mail.send(customer_id=1, what="b")
    TaskItem.objects.update(kwargs={"customer_id": 1, "what": PARCEL | {"class": "shop.types.Parcel"}})

    (line,) = broken()

    reason = "a grouped call: 'shop.types.Parcel' is not a registered dataclass"
    assert line.startswith(f"task: {grouping.mail.task_name}: {reason} (1 row, ")


# Schedules.


def schedule(name, **columns):
    row = Schedule(name=name, timing="every:300", **columns)
    row.save()
    return row


def test_schedules_by_hand_that_this_code_can_send_break_nothing():
    schedule("task", task_name=scheduled.report.task_name, kwargs={"day": "today"})
    schedule("workflow", workflow_name="tests.schedules.import", kwargs={"day": "today"})
    schedule("gathered", task_name=scheduled.collect.task_name, kwargs={"anything": 1})
    schedule("renamed", task_name="mail.send_old")

    assert check() == (0, ["Nothing would break. Read: tasks 0, nodes 0, schedules 4."])


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"task_name": "shop.gone"}, f"shop.gone: {GONE}"),
        ({"task_name": "tests.schedules.jobs.report", "args": [1, 2, 3]}, "tests.schedules.jobs.report: too many "),
        ({"task_name": "tests.schedules.jobs.report", "kwargs": {"c": 1}}, "tests.schedules.jobs.report: got an unexp"),
        ({"task_name": "tests.schedules.jobs.collect", "args": [1]}, "tests.schedules.jobs.collect: it gathers its "),
        ({"task_name": "tests.jobs.tasks.noop", "options": {"queue_name": "gone"}}, "queue 'gone' is not in QUEUES of"),
        ({"task_name": "tests.jobs.tasks.on_emails"}, "tests.jobs.tasks.on_emails: its queue 'emails' is not in QUEUE"),
        ({"workflow_name": "shop.import"}, "definition_key 'shop.import' belongs to no imported definition"),
        ({"workflow_name": "tests.schedules.import", "kwargs": {"month": 1}}, "tests.schedules.import: got an unexpec"),
        ({"workflow_name": "tests.schedules.import", "args": [1]}, "tests.schedules.import: a workflow has no positio"),
        ({"task_name": "tests.jobs.tasks.noop", "kwargs": []}, "a list is stored in the place of a dict"),
    ],
)
@pytest.mark.once
def test_a_schedule_by_hand_that_this_code_can_not_send_would_break(settings, columns, reason):
    row = schedule("nightly", **columns)
    use_backend(settings, QUEUES=["default"])

    (line,) = broken()

    assert line.startswith(f"schedule: nightly: {reason}")
    assert line.endswith(f"(1 row, e.g. {row.pk})")


def test_schedules_that_no_scheduler_would_send_as_they_are_break_nothing():
    own = project_of(task_backends["default"].config)
    schedule("disabled", task_name="shop.gone", enabled=False)
    schedule("of the code", task_name="shop.gone", source=own, declared_enabled=True)
    schedule("of another project", task_name="shop.gone", source="another")
    schedule("of another backend", task_name="shop.gone", backend="other")
    assert broken() == []

    schedule("enabled again by an operator", task_name="shop.gone", source=own)
    (line,) = broken()
    assert line.startswith("schedule: enabled again by an operator: ")


# Workflows.


def start_workflow():
    """Start a workflow whose first node waits for an event, so that the others wait for it."""
    begin = wait_for_event("begin", node_id="begin")
    one = bodies.echo.node(node_id="one", waits_for=[begin])(value=1)
    add = tasks.add.node(node_id="add", run_when=bodies.yes, skip_when=bodies.no)(a=one.value)
    each = bodies.flaky_item.map(over=one, param="item", kwargs={"key": "k"}, node_id="each")
    leaf = bodies.Leaf.node(node_id="leaf")(key="leaf", value=one)
    return Workflow("work", [begin, one, add, each, leaf]).start()


def change(node_id, **columns):
    assert WorkflowTask.objects.filter(node_id=node_id).update(**columns) == 1


def test_a_workflow_in_flight_of_which_everything_is_known_breaks_nothing():
    start_workflow()

    assert check() == (0, ["Nothing would break. Read: tasks 0, nodes 5, schedules 0."])


@pytest.mark.parametrize(
    ("node_id", "columns", "line"),
    [
        ("add", {"task_name": "shop.gone"}, f"node: shop.gone: {GONE}"),
        ("each", {"task_name": "shop.gone"}, f"node: shop.gone: {GONE}"),
        ("add", {"kwargs": {"c": 1}}, "node: tests.jobs.tasks.add: got an unexpected keyword argument 'c'"),
        ("add", {"args_from": {}, "values_from": {}}, "node: tests.jobs.tasks.add: missing a required argument: 'a'"),
        ("each", {"param": "thing"}, "node: tests.workflows.bodies.flaky_item: missing a required argument: 'item'"),
        ("add", {"run_when": "shop.is_large"}, "condition: shop.is_large: no condition of this name is registered"),
        ("add", {"skip_when": "shop.is_large"}, "condition: shop.is_large: no condition of this name is registered"),
        ("leaf", {"definition_key": "shop.leaf"}, "workflow: shop.leaf: definition_key 'shop.leaf' belongs to no impo"),
        ("leaf", {"kwargs": {}}, "workflow: tests.running.leaf: missing a required "),
        ("add", {"queue_name": "gone"}, "queue: gone: no backend has this queue in its QUEUES"),
    ],
)
@pytest.mark.once
def test_a_node_in_flight_that_this_code_can_not_run_would_break(settings, node_id, columns, line):
    handle = start_workflow()
    change(node_id, **columns)
    use_backend(settings, QUEUES=["default"])

    (found,) = broken()

    assert found.startswith(line)
    assert found.endswith(f"(1 row, e.g. {handle.id} {node_id})")


@pytest.mark.slow
def test_nodes_whose_tasks_wait_or_run_are_checked(drain):
    Workflow("work", [tasks.add.node(node_id="sent")(a=1)]).start()
    assert Task.objects.count() == 1
    change("sent", kwargs={})

    (line,) = broken()

    assert line.startswith("node: tests.jobs.tasks.add: missing a required argument: 'a' (1 row, ")
    drain()
    assert broken() == []


@pytest.mark.slow
def test_the_calls_of_a_map_that_has_begun_are_nodes_of_their_own(drain):
    source = bodies.echo.node(node_id="source")(value=[1, 2, 3])
    each = bodies.flaky_item.map(over=source, param="item", kwargs={"key": "k"}, node_id="each")
    Workflow("work", [source, each]).start()
    call_command("horsies_worker", once=True, verbosity=0, no_reaper=True)
    items = WorkflowTask.objects.filter(map_index__isnull=False)
    assert items.count() == 3

    assert broken() == []
    items.update(task_name="shop.gone")
    (line,) = broken()
    assert line.startswith(f"node: shop.gone: {GONE} (3 rows, ")


def test_ended_workflows_are_not_checked():
    handle = start_workflow()
    WorkflowTask.objects.filter(node_id="add").update(task_name="shop.gone")
    assert len(broken()) == 1

    handle.cancel()

    assert broken() == []


@pytest.mark.slow
@pytest.mark.usefixtures("rich")
def test_results_that_a_waiting_node_gets_are_checked(drain):
    first = bodies.echo.node(node_id="first")(value=1)
    begin = wait_for_event("begin", node_id="begin")
    last = bodies.echo.node(node_id="last", waits_for=[begin])(value=first)
    unused = bodies.echo.node(node_id="unused")(value=1)
    handle = Workflow("work", [first, begin, last, unused]).start()
    drain()
    assert broken() == []

    value = {"ok": PARCEL | {"class": "shop.types.Parcel"}}
    change("unused", result=value)
    assert broken() == []
    change("first", result=value)

    reason = "a result that it is given: 'shop.types.Parcel' is not a registered dataclass"
    assert broken() == [f"node: tests.workflows.bodies.echo: {reason} (1 row, e.g. {handle.id} last)"]


# Bounds.


def test_the_arguments_of_the_first_and_the_last_rows_of_a_name_are_examined(monkeypatch):
    monkeypatch.setattr(calls, "SAMPLE", 10)
    some(5, "pending", task_name=tasks.add.task_name, kwargs={"a": 1})
    some(10, "pending", task_name=tasks.add.task_name, kwargs={})  # not among them
    some(3, "pending", task_name=tasks.add.task_name, kwargs={"a": 1})
    last = some(2, "pending", task_name=tasks.add.task_name, kwargs={"a": 1, "c": 3})

    reason = "got an unexpected keyword argument 'c'"
    where = f"2 of 10 rows that were examined, e.g. {min(last)}"
    assert broken() == [f"task: tests.jobs.tasks.add: {reason} ({where})"]


def test_rows_beyond_the_bounds_are_not_read_and_reported_as_unread(monkeypatch):
    monkeypatch.setattr(task_check, "MAX_ROWS", 6)
    monkeypatch.setattr(task_check, "MAX_OF_QUEUES", 7)
    monkeypatch.setattr(task_check, "MIN_OF_QUEUE", 2)
    monkeypatch.setattr(task_check, "MAX_QUEUES", 2)
    monkeypatch.setattr(task_check, "MAX_SCHEDULES", 1)
    some(9, "pending", task_name="shop.gone", queue_name="a")
    some(9, "pending", task_name="shop.gone", queue_name="b")
    for name in "cd":
        make("pending", queue_name=name)
    some(8, "running")
    for name in "xyz":
        schedule(name, task_name=tasks.noop.task_name)

    status, lines = check()

    assert status == 1
    assert lines[0].startswith(f"task: shop.gone: {GONE} (at least 8 rows, ")
    assert lines[1:] == [
        "There are more tasks that workers hold than 6; the others were not read.",
        "Tasks wait in more than 2 queues; the others were not read.",
        "There are more tasks that wait in queue 'a' than 6; the others were not read.",
        "There are more tasks that wait in queue 'b' than 2; the others were not read.",
        "There are more schedules of 'default' than 1; the others were not read.",
        "1 found. Read: tasks 14, nodes 0, schedules 1.",
    ]


@pytest.mark.parametrize(
    ("name", "most", "read"), [("MAX_WORKFLOWS", 2, 10), ("MAX_NODES", 8, 5), ("MAX_OF_WORKFLOW", 3, 9)]
)
def test_workflows_beyond_the_bounds_are_not_read_and_reported_as_unread(monkeypatch, name, most, read):
    monkeypatch.setattr(nodes, name, most)
    for _ in range(3):
        start_workflow()

    report = check_deploy()

    assert report.read["nodes"] == read
    assert report.unread


@pytest.mark.slow
def test_the_number_of_statements_does_not_grow_with_the_number_of_rows():
    def statements():
        with CaptureQueriesContext(connection) as queries:
            check_deploy()
        return len(queries)

    some(calls.SAMPLE, "pending")
    start_workflow()
    before = statements()

    some(20 * calls.SAMPLE, "pending")
    some(20 * calls.SAMPLE, "completed")

    assert statements() == before


@pytest.mark.slow
@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="its planner tells")
def test_no_statement_reads_a_whole_table():
    """The indexes have what is in flight: the rows of what has ended are not read."""
    some(4_000, "completed")
    make("failed")
    some(20, "pending")
    some(20, "scheduled")
    some(20, "running")
    some(20, "awaiting")
    start_workflow()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE horsies_tasks")
    with CaptureQueriesContext(connection) as queries:
        check_deploy()
    with connection.cursor() as cursor:
        for query in queries:
            sql = query["sql"]
            sql = sql.partition(" FOR ")[2] if sql.startswith("DECLARE") else sql
            if sql.startswith(("SELECT", "WITH")):
                cursor.execute(f"EXPLAIN {sql}")
                assert "Seq Scan on horsies_tasks" not in "\n".join(row[0] for row in cursor.fetchall()), sql


# The command.


def test_the_json_report_is_one_object():
    row = make("pending", task_name="shop.gone")
    schedule("nightly", task_name=tasks.noop.task_name)

    status, lines = check("--json")

    found = {"what": "task", "name": "shop.gone", "reason": GONE, "count": 1, "sample": None, "is_at_least": False}
    assert status == 1
    assert json.loads("\n".join(lines)) == {
        "breakages": [found | {"example": str(row.pk)}],
        "read": {"tasks": 1, "nodes": 0, "schedules": 1},
        "unread": [],
        "warnings": [],
    }
    Task.objects.all().delete()
    status, lines = check("--json")
    assert (status, json.loads("\n".join(lines))["breakages"]) == (0, [])


@pytest.mark.slow
def test_the_rows_of_one_backend_alone_can_be_checked(settings, monkeypatch):
    settings.TASKS = {"default": settings.TASKS["default"], "other": settings.TASKS["default"]}
    row = make("pending", task_name="shop.gone", backend="other")
    make("pending", task_name="shop.lost")
    schedule("nightly", task_name="shop.lost")
    start_workflow()
    change("add", task_name="shop.lost")

    assert len(broken()) == 4
    assert len(broken("--backend", "default")) == 3
    assert broken("--backend", "other") == [f"task: shop.gone: {GONE} (1 row, e.g. {row.pk})"]
    monkeypatch.setenv("HORSIES_CHECK_DEPLOY_BACKEND", "other")
    assert len(broken()) == 1


@pytest.mark.once
def test_an_unknown_backend_is_wrong_usage():
    with pytest.raises(CommandError, match="There is no HorsiesBackend at TASKS\\['missing'\\]") as caught:
        call_command("horsies_check_deploy", "--backend", "missing")

    assert caught.value.returncode == 2


@pytest.mark.slow
@pytest.mark.once
def test_the_command_exits_with_1_in_a_process_of_its_own(manage):
    make("pending", task_name="shop.gone", id=uuid4())

    process = manage("horsies_check_deploy")

    assert process.wait() == 1
    assert process.output.startswith(f"task: shop.gone: {GONE} (1 row, ")
    assert process.output.endswith("1 found. Read: tasks 1, nodes 0, schedules 0.\n")


# Runs that have begun, and workers.


@pytest.mark.slow
def test_runs_that_have_begun_under_another_version_are_listed_and_break_nothing(settings, drain):
    options = settings.TASKS["default"].get("OPTIONS", {})
    use_backend(settings, OPTIONS={**options, "version": "v1"})
    old = step_jobs.order.send()
    drain()
    use_backend(settings, OPTIONS={**options, "version": "v2"})
    step_jobs.order.send()
    drain()
    step_jobs.order.send().send_event("approved")  # it has an event, and has not begun
    step_jobs.many.send(1)

    status, lines = check()

    reason = "it has begun under another version of the code"
    assert status == 0
    assert lines[0] == f"run: {step_jobs.order.task_name}: {reason} (1 row, e.g. {old.id})"
    assert lines[1].startswith("Nothing would break. Read: tasks 4")


def test_many_scheduled_tasks_hide_no_wait(settings, drain, monkeypatch):
    monkeypatch.setattr(task_check, "MAX_ROWS", 6)
    options = settings.TASKS["default"].get("OPTIONS", {})
    use_backend(settings, OPTIONS={**options, "version": "v1"})
    waiting = step_jobs.order.send()
    drain()
    use_backend(settings, OPTIONS={**options, "version": "v2"})
    some(9, "scheduled")

    _, lines = check()

    assert lines[0].startswith(f"run: {step_jobs.order.task_name}: ")
    assert str(waiting.id) in lines[0]
    assert lines[1] == "There are more scheduled tasks than 6; the others were not read."
    assert lines[2].endswith("Read: tasks 7, nodes 0, schedules 0.")


def test_workers_of_another_release_are_listed_and_break_nothing():
    workers = Worker.objects.all()
    workers.register("w1", "w", "host", 1, version="0.0.1")
    workers.register("w2", "w", "host", 2, version="0.0.1")
    workers.register("w3", "w", "host", 3, version=__version__)
    workers.register("gone", "w", "host", 4, version="0.0.1")
    workers.filter(pk="gone").update(last_beat_at=NowPlus(-86_400))

    status, (line, last) = check()

    assert status == 0
    assert line == "worker: 0.0.1: it runs another release of horsies-django (2 rows, e.g. w1)"
    assert last.startswith("Nothing would break. ")
