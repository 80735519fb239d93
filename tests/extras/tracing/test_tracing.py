"""Traces go from the sender to each attempt: the spans that an SDK exports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from asgiref.sync import async_to_sync
from django.core.management import call_command
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from horsies_django import Join, TaskStatus, Unique, Workflow
from horsies_django.db.now import Now
from horsies_django.models import Schedule, Task, TaskAttempt, Worker, WorkflowTask
from horsies_django.schedules import dispatch
from tests.conftest import FORKS, ROOT, wait_until
from tests.extras.tracing import jobs
from tests.jobs.models import Entry

pytestmark = pytest.mark.django_db(transaction=True)

KINDS = pytest.mark.parametrize("job", [jobs.plain, jobs.aplain], ids=["function", "coroutine"])


@pytest.fixture(scope="session")
def memory():
    """Return what keeps the spans of this process, whose provider can be set only once."""
    memory, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    trace.set_tracer_provider(provider)
    return memory


@pytest.fixture
def exporter(memory, settings):
    """Trace sends and bodies of the default backend, and return what keeps the spans."""
    default = settings.TASKS["default"]
    middleware = ["horsies_django.extras.opentelemetry.OpenTelemetryMiddleware"]
    settings.TASKS = {"default": {**default, "OPTIONS": {**default["OPTIONS"], "middleware": middleware}}}
    memory.clear()
    return memory


def spans_of(exporter, kind):
    return [span for span in exporter.get_finished_spans() if span.kind is kind]


def processed(exporter):
    return spans_of(exporter, SpanKind.CONSUMER)


@KINDS
def test_a_body_is_a_child_of_its_send_in_the_trace_of_the_sender(drain, exporter, job):
    token = context.attach(baggage.set_baggage("user", "ada"))
    with jobs.tracer.start_as_current_span("request") as request:
        handle = job.send()
    context.detach(token)

    drain()

    (send,) = spans_of(exporter, SpanKind.PRODUCER)
    (body,) = processed(exporter)
    (inside,) = [span for span in exporter.get_finished_spans() if span.name == "inside"]
    assert send.parent.span_id == request.get_span_context().span_id
    assert body.parent.span_id == send.context.span_id
    assert inside.parent.span_id == body.context.span_id
    assert {span.context.trace_id for span in (send, body, inside)} == {request.get_span_context().trace_id}
    assert handle.value(0) == {"span": format(inside.context.span_id, "016x"), "user": "ada"}


@pytest.mark.once
def test_spans_have_the_attributes_of_the_messaging_conventions(drain, exporter):
    handle = jobs.plain.send()

    drain()

    (send,) = spans_of(exporter, SpanKind.PRODUCER)
    (body,) = processed(exporter)
    common = {
        "messaging.system": "horsies",
        "messaging.destination.name": "default",
        "messaging.message.id": str(handle.id),
        "horsies.task.name": jobs.plain.module_path,
    }
    sending = {"messaging.operation.name": "send", "messaging.operation.type": "send"}
    assert (send.name, dict(send.attributes)) == ("send default", common | sending)
    assert (body.name, dict(body.attributes)) == (
        "process default",
        {
            **common,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.client.id": TaskAttempt.objects.get().worker_id,
            "horsies.task.attempt": 1,
            "horsies.task.max_attempts": 1,
            "horsies.outcome": "completed",
        },
    )
    assert body.instrumentation_scope.name == "horsies_django"
    assert body.status.status_code is StatusCode.UNSET


@pytest.mark.once
@pytest.mark.parametrize(
    ("job", "attempts"),
    [
        (jobs.fail, [("failed", "ERROR", "LookupError")]),
        (jobs.afail, [("failed", "ERROR", "LookupError")]),
        (jobs.fail_unprintably, [("failed", "ERROR", f"{jobs.__name__}.Unprintable")]),
        (
            jobs.fail_twice,
            [("retrying", "ERROR", "LookupError"), ("retrying", "ERROR", "LookupError"), ("completed", "UNSET", None)],
        ),
        (jobs.ask_for_another, [("retrying", "UNSET", None), ("completed", "UNSET", None)]),
        (
            jobs.ask_without_end,
            [("retrying", "UNSET", None), ("failed", "ERROR", "horsies_django.exceptions.Retry")],
        ),
        (jobs.ask_without_end_because_of_an_error, [("retrying", "UNSET", None), ("failed", "ERROR", "LookupError")]),
        (jobs.snooze_once, [("snoozed", "UNSET", None), ("completed", "UNSET", None)]),
        (jobs.discard, [("discarded", "UNSET", None)]),
        (jobs.return_an_error, [("failed", "ERROR", "NO_STOCK")]),
        (jobs.sleep_too_long, [("failed", "ERROR", "horsies_django.exceptions.TaskTimeLimit")]),
        (jobs.asleep_too_long, [("failed", "ERROR", "asyncio.exceptions.CancelledError")]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_each_attempt_is_a_span_of_the_same_trace_with_its_outcome(drain, exporter, job, attempts):
    handle = job.send()

    drain()

    (send,) = spans_of(exporter, SpanKind.PRODUCER)
    bodies = processed(exporter)
    found = [
        (span.attributes["horsies.outcome"], span.status.status_code.name, span.attributes.get("error.type"))
        for span in bodies
    ]
    assert found == attempts
    assert {span.parent.span_id for span in bodies} == {send.context.span_id}
    assert handle.info().status == (TaskStatus.COMPLETED if attempts[-1][0] == "completed" else TaskStatus.FAILED)
    if attempts[-1][0] != "completed":
        assert bodies[-1].attributes["horsies.error_code"] == handle.info().error_code


@pytest.mark.once
def test_a_failure_is_an_event_of_its_span(drain, exporter):
    jobs.fail.send()

    drain()

    (body,) = processed(exporter)
    (event,) = body.events
    assert (event.name, event.attributes["exception.message"]) == ("exception", "no luck")
    assert "in fail" in event.attributes["exception.stacktrace"]
    assert body.status.description == "LookupError: no luck"


@pytest.mark.parametrize(("sender", "sent"), [(jobs.send_another, "plain"), (jobs.asend_another, "aplain")])
def test_what_a_body_sends_goes_on_in_its_trace(drain, exporter, sender, sent):
    sender.send()

    drain()

    first, second = sorted(processed(exporter), key=lambda span: span.start_time)
    sends = {
        span.attributes["horsies.task.name"].rpartition(".")[2]: span for span in spans_of(exporter, SpanKind.PRODUCER)
    }
    assert sends[sent].parent.span_id == first.context.span_id
    assert second.parent.span_id == sends[sent].context.span_id
    assert second.context.trace_id == first.context.trace_id


@pytest.mark.parametrize(
    "send",
    [
        lambda: jobs.plain.send_many({} for _ in range(3)),
        lambda: async_to_sync(jobs.plain.asend_many)({} for _ in range(3)),
        lambda: jobs.plain.with_options(unique=Unique(by=("n",))).send_many([{"n": n} for n in range(3)]),
    ],
    ids=["send_many", "asend_many", "unique"],
)
def test_a_batch_of_calls_is_sent_in_one_span(drain, exporter, send):
    send()

    drain()

    (span,) = spans_of(exporter, SpanKind.PRODUCER)
    assert span.attributes["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in span.attributes
    assert [body.parent.span_id for body in processed(exporter)] == [span.context.span_id] * 3


@pytest.mark.once
def test_a_send_that_finds_a_task_says_so(exporter):
    first, second = [jobs.plain.with_options(unique_key="one").send() for _ in range(2)]

    spans = spans_of(exporter, SpanKind.PRODUCER)
    assert first.id == second.id
    assert [span.attributes.get("horsies.deduplicated") for span in spans] == [None, True]
    assert {span.attributes["messaging.message.id"] for span in spans} == {str(first.id)}


@pytest.mark.once
def test_a_send_that_fails_is_a_span_with_an_error(exporter):
    with pytest.raises(TypeError):
        jobs.fail.send(1)

    (span,) = spans_of(exporter, SpanKind.PRODUCER)
    assert (span.status.status_code, span.attributes["error.type"]) == (StatusCode.ERROR, "TypeError")
    assert not Task.objects.exists()


@pytest.mark.once
def test_a_schedule_starts_a_trace(drain, exporter):
    row = Schedule.objects.create(name="nightly", timing="every:60", task_name=jobs.plain.module_path)
    dispatch.run_now(row)

    drain()

    (send,) = spans_of(exporter, SpanKind.PRODUCER)
    (body,) = processed(exporter)
    assert send.parent is None
    assert body.parent.span_id == send.context.span_id


@pytest.mark.once
def test_a_group_runs_in_the_trace_of_its_first_call(drain, exporter):
    jobs.gathered.send(item=1)
    jobs.gathered.send(item=2)
    Task.objects.update(enqueued_at=Now())

    drain()

    first, second = spans_of(exporter, SpanKind.PRODUCER)
    (body,) = processed(exporter)
    assert body.parent.span_id == first.context.span_id
    assert first.attributes["messaging.message.id"] == second.attributes["messaging.message.id"]


def test_an_atomic_task_is_traced_too(drain, exporter):
    jobs.write_atomically.send("a")

    drain()

    assert [body.attributes["horsies.outcome"] for body in processed(exporter)] == ["completed"]
    assert Entry.objects.filter(key="a").exists()


def drain_inline():
    """Run tasks in the test's own transaction, thread and context."""
    call_command("horsies_worker", drain=True, verbosity=0)


@pytest.mark.once
@pytest.mark.django_db
def test_a_task_without_headers_is_a_child_of_the_current_span(exporter):
    Task.objects.create(task_name=jobs.plain.module_path, metadata={"traceparent": 5})
    with jobs.tracer.start_as_current_span("test") as test:
        drain_inline()

    (body,) = processed(exporter)
    assert body.parent.span_id == test.get_span_context().span_id


@pytest.mark.once
@pytest.mark.django_db
def test_a_task_with_headers_is_linked_to_the_current_span(exporter):
    jobs.plain.send()
    with jobs.tracer.start_as_current_span("test") as test:
        drain_inline()

    (body,) = processed(exporter)
    (send,) = spans_of(exporter, SpanKind.PRODUCER)
    assert body.parent.span_id == send.context.span_id
    assert [link.context.span_id for link in body.links] == [test.get_span_context().span_id]


@pytest.mark.parametrize("job", [jobs.hold, jobs.ahold], ids=["function", "coroutine"])
@pytest.mark.slow
def test_a_cancelled_body_ends_its_span_without_an_error(worker, tmp_path, job):
    spans = tmp_path / "spans"
    process = worker(
        "--processes", "1", HORSIES_SPANS_FILE=str(spans), DJANGO_SETTINGS_MODULE="tests.extras.tracing.settings"
    )
    handle = job.send(str(tmp_path / "gate"))
    wait_until((tmp_path / "gate.begun").exists)  # RUNNING may be written before it
    handle.cancel(include_running=True)
    wait_until(lambda: "revoked" in process.output)

    process.stop()

    (span,) = read(spans)
    assert (span["attributes"]["horsies.outcome"], span["status"]["status_code"]) == ("cancelled", "UNSET")


def read(path):
    return [json.loads(line.partition(" ")[2]) for line in path.read_text().splitlines()]


# Workflows.


@pytest.mark.slow
def test_a_workflow_is_one_trace_with_links_between_its_nodes(drain, exporter):
    first, second = jobs.plain.node(node_id="first")(), jobs.aplain.node(node_id="second")()
    last = jobs.plain.node(node_id="last")()
    atomic = jobs.write_atomically.node(node_id="atomic")(key="x")
    handle = Workflow("import", [first, second] >> last >> atomic).start()

    drain()

    (start,) = spans_of(exporter, SpanKind.PRODUCER)
    by_node = {span.attributes["horsies.workflow.node"]: span for span in processed(exporter)}
    assert handle.status() == "COMPLETED"
    assert start.name == "start_workflow import"
    assert start.attributes["horsies.workflow.id"] == str(handle.id)
    assert {span.parent.span_id for span in by_node.values()} == {start.context.span_id}
    assert {span.attributes["messaging.message.conversation_id"] for span in by_node.values()} == {str(handle.id)}
    assert links(by_node) == {"first": [], "second": [], "last": ["first", "second"], "atomic": ["last"]}
    for node in by_node.values():
        for link in node.links:
            assert link.context.span_id == by_node[link.attributes["horsies.workflow.node"]].context.span_id


def links(by_node):
    return {
        key: sorted(link.attributes["horsies.workflow.node"] for link in span.links) for key, span in by_node.items()
    }


@pytest.mark.slow
def test_a_node_links_to_the_last_attempt_of_its_source(drain, exporter):
    flaky = jobs.fail_twice.node(node_id="flaky")()
    Workflow("w", flaky >> jobs.plain.node(node_id="after")()).start()

    drain()

    *_, third, after = sorted(processed(exporter), key=lambda span: span.start_time)
    assert [link.context.span_id for link in after.links] == [third.context.span_id]


@pytest.mark.slow
def test_the_items_of_a_map_and_what_follows_are_linked(drain, exporter):
    numbers = jobs.numbers.node(node_id="numbers")()
    each = jobs.number.map(over=numbers, node_id="each")
    Workflow("w", numbers >> each >> jobs.plain.node(node_id="after")()).start()

    drain()

    by_node = {span.attributes["horsies.workflow.node"]: span for span in processed(exporter)}
    expected = {"numbers": [], "each[0]": ["numbers"], "each[1]": ["numbers"], "after": ["each[0]", "each[1]"]}
    assert links(by_node) == expected


@pytest.mark.slow
@pytest.mark.once
def test_a_node_is_not_linked_to_one_that_has_not_ended(drain, exporter):
    late, ended = jobs.ask_for_later.node(node_id="late")(), jobs.plain.node(node_id="ended")()
    any_of = jobs.plain.node(node_id="any", join=Join.ANY)()
    Workflow("w", [late, ended] >> any_of).start()

    drain()

    by_node = {span.attributes["horsies.workflow.node"]: span for span in processed(exporter)}
    assert links(by_node) == {"late": [], "ended": [], "any": ["ended"]}


@pytest.mark.once
def test_only_nodes_that_others_wait_for_store_their_span(drain, exporter):
    first = jobs.plain.node(node_id="first", metadata={"own": 1})()
    Workflow("w", first >> jobs.plain.node(node_id="last")()).start()

    drain()

    stored = dict(WorkflowTask.objects.values_list("node_id", "task__metadata"))
    assert stored["first"].keys() == {"own", "traceparent", "horsies.span"}
    assert stored["last"].keys() == {"traceparent"}


# Set-up.


@pytest.mark.slow
def test_a_worker_exports_the_spans_of_its_runners_before_they_exit(worker, tmp_path):
    spans = tmp_path / "spans"
    process = worker(
        "--processes",
        "2",
        "-v1",
        runners=2,
        HORSIES_SPANS_FILE=str(spans),
        DJANGO_SETTINGS_MODULE="tests.extras.tracing.settings",
    )
    handles = jobs.plain.send_many({} for _ in range(20))
    (running,) = jobs.aplain.send_many([{}])
    wait_until(lambda: all(handle.info().status == TaskStatus.COMPLETED for handle in [*handles, running]))

    runners = set(Worker.objects.values_list("pid", flat=True))
    if FORKS:  # although the exporter has a thread
        assert {Path(f"/proc/{pid}/comm").read_text() for pid in runners} == {"horsies-runner\n"}

    process.stop()

    bodies = [span for span in read(spans) if span["kind"] == "SpanKind.CONSUMER"]
    pids = {int(line.partition(" ")[0]) for line in spans.read_text().splitlines()}
    assert len(bodies) == 21
    assert {span["attributes"]["messaging.message.id"] for span in bodies} == {
        str(handle.id) for handle in [*handles, running]
    }
    assert pids <= runners


@pytest.mark.slow
@pytest.mark.once
def test_runners_do_not_fork_from_a_process_with_the_thread_of_an_exporter_and_export_all_the_same(worker, tmp_path):
    spans = tmp_path / "spans"
    process = worker(
        "--processes=1", HORSIES_SPANS_FILE=str(spans), DJANGO_SETTINGS_MODULE="tests.extras.tracing.early_settings"
    )
    handle = jobs.discard.send()
    wait_until(lambda: handle.info().status == TaskStatus.FAILED)
    (pid,) = Worker.objects.values_list("pid", flat=True)
    if FORKS:
        assert Path(f"/proc/{pid}/comm").read_text() != "horsies-runner\n"

    process.stop()

    (span,) = read(spans)
    assert span["attributes"]["messaging.message.id"] == str(handle.id)


@pytest.mark.slow
@pytest.mark.once
def test_a_missing_library_is_named_with_its_extra():
    code = """
import sys
sys.modules["opentelemetry"] = None
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["horsies_django"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    TASKS={"default": {"BACKEND": "horsies_django.backend.HorsiesBackend", "OPTIONS": {
        "middleware": ["horsies_django.extras.opentelemetry.OpenTelemetryMiddleware"]}}},
)
django.setup()
from django.core.management import call_command
call_command("check")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode
    assert "pip install 'horsies-django[opentelemetry]'" in done.stderr


@pytest.mark.slow
@pytest.mark.once
def test_tasks_run_without_a_tracer_provider(worker):
    worker("--processes", "1", DJANGO_SETTINGS_MODULE="tests.extras.tracing.untraced_settings")
    jobs.send_another.send()

    wait_until(lambda: Task.objects.filter(status=TaskStatus.COMPLETED).count() == 2)

    assert set(Task.objects.values_list("metadata", flat=True)) == {None}
