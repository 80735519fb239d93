"""What bodies write: its order, its limit, its attempts, and what it costs."""

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test.utils import CaptureQueriesContext

from horsies_django import OutputChunk, TaskHandle, TaskStatus
from horsies_django.core.output import OutputBuffer
from horsies_django.core.status import OutputKind
from horsies_django.exceptions import TaskRevoked
from horsies_django.models import Task, TaskOutput
from horsies_django.models.claim.columns import CLAIMED_COLUMNS
from horsies_django.models.claims import ClaimedTask
from horsies_django.testing import drain, immediate, task_context
from tests.output import jobs

pytestmark = pytest.mark.django_db(transaction=True)


def data(handle, after=0):
    return [chunk.data for chunk in handle.output(after)]


CHUNKS = ["a line\n", "", {"rows": [1, 2.5, None, True]}, ["é", "𝄞"], 7, False, None]


@pytest.mark.parametrize("job", [jobs.writes, jobs.awrites, jobs.writes_atomically], ids=["sync", "async", "atomic"])
def test_chunks_come_back_as_they_were_written_and_in_their_order(job):
    handle = job.send(CHUNKS)

    drain()

    chunks = handle.output()
    assert data(handle) == CHUNKS
    assert [type(chunk.data) for chunk in chunks] == [type(chunk) for chunk in CHUNKS]
    assert [(chunk.sequence, chunk.attempt, chunk.kind) for chunk in chunks] == [
        (number, 1, "output") for number in range(1, len(CHUNKS) + 1)
    ]
    row = Task.objects.get(pk=handle.id)
    times = [chunk.at for chunk in chunks]
    assert row.sent_at <= times[0]
    assert times == sorted(times)
    assert all(isinstance(chunk, OutputChunk) for chunk in chunks)


def test_a_reader_gets_what_follows_a_sequence():
    handle = jobs.writes.send(["a", "b", "c"])
    drain()

    assert data(handle, after=1) == ["b", "c"]
    assert data(handle, after=3) == []
    assert [chunk.data for chunk in async_to_sync(handle.aoutput)(2)] == ["c"]


@pytest.mark.parametrize("after", [-1, "1", 1.0, True, None, 2**31])
def test_a_bad_sequence_is_named(after):
    handle = jobs.writes.send(["a"])

    with pytest.raises(ValueError, match=rf"after is {after!r}; allowed: the sequence of a chunk, or 0"):
        handle.output(after)


def test_a_task_that_does_not_exist_has_no_output():
    assert TaskHandle("00000000-0000-7000-8000-000000000000").output() == []


@pytest.mark.slow
def test_a_failed_body_keeps_what_it_has_written(run_script):
    def body(context):
        context.write("before")
        raise ValueError("no")

    handle = run_script(body)

    assert handle.status() == TaskStatus.FAILED
    assert data(handle) == ["before"]


def test_a_transaction_that_is_rolled_back_takes_no_output_with_it():
    handle = jobs.writes_atomically.send(["kept"], fails=True)

    drain()

    assert handle.status() == TaskStatus.FAILED
    assert data(handle) == ["kept"]


@pytest.mark.slow
def test_attempts_are_apart_and_the_sequence_goes_on(run_script):
    def body(context):
        context.write(f"attempt {context.attempt}")
        if not context.is_last_attempt:
            raise ValueError("again")

    handle = run_script(body, attempts=3)

    assert [(chunk.sequence, chunk.attempt, chunk.data) for chunk in handle.output()] == [
        (1, 1, "attempt 1"),
        (2, 2, "attempt 2"),
        (3, 3, "attempt 3"),
    ]


@pytest.mark.slow
def test_a_retry_by_an_operator_goes_on_after_the_last_sequence(run_script):
    def body(context):
        context.write(context.attempt)
        if context.attempt == 1:
            raise ValueError("no")

    handle = run_script(body)
    assert handle.retry()
    drain()

    assert [(chunk.sequence, chunk.data) for chunk in handle.output()] == [(1, 1), (2, 2)]


class _NoJson:
    pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chunk", "error"),
    [(_NoJson(), TypeError), (float("nan"), ValueError), ("a\0b", ValueError), ("\ud800", ValueError)],
    ids=["object", "NaN", "NUL", "surrogate"],
)
def test_a_chunk_that_is_no_json_is_refused_at_the_call(run_script, chunk, error):
    def body(context):
        with pytest.raises(error, match="the chunk of write"):
            context.write(chunk)
        context.write("goes on")

    handle = run_script(body)

    assert handle.status() == TaskStatus.COMPLETED
    assert data(handle) == ["goes on"]


@pytest.mark.slow
def test_write_is_a_checkpoint(run_script):
    def body(context):
        Task.objects.filter(pk=context.run.task_id).cancel(include_running=True)
        context.run.request_stop(TaskRevoked)
        context.write("too late")

    handle = run_script(body)

    assert handle.status() == TaskStatus.CANCELLED
    assert data(handle) == []


def test_output_is_cut_at_its_limit_with_a_note(options):
    options(max_output_bytes=1_024)
    handle = jobs.writes.send(["x" * 800, "é" * 100, "more", {"a": 1}])

    drain()

    assert data(handle) == ["x" * 800, "é" * 12, "[cut: more than 1,024 bytes]"]


def test_a_json_value_beyond_the_limit_is_left_out(options):
    options(max_output_bytes=1_024)
    handle = jobs.writes.send([{"rows": ["x" * 1_100]}, "more"])

    drain()

    assert data(handle) == ["[cut: more than 1,024 bytes]"]


def test_a_chunk_counts_the_bytes_of_its_row(options):
    options(max_output_bytes=1_024)
    handle = jobs.writes.send([""] * 1_000)

    drain()

    assert data(handle) == [""] * 10 + ["[cut: more than 1,024 bytes]"]


@pytest.mark.slow
def test_the_limit_is_of_each_run(options, run_script):
    options(max_output_bytes=1_024)

    def body(context):
        context.write("x" * 924)
        if not context.is_last_attempt:
            raise ValueError("again")

    handle = run_script(body, attempts=2)

    assert data(handle) == ["x" * 924] * 2


@pytest.mark.slow
def test_what_a_thread_writes_after_the_body_is_lost(run_script):
    contexts = []

    def body(context):
        contexts.append(context)
        context.write("in time")

    handle = run_script(body)
    contexts[0].write("too late")

    assert data(handle) == ["in time"]


def test_output_is_deleted_with_its_task():
    handle = jobs.writes.with_options(retention=0).send(["a"])
    other = jobs.writes.send(["b"])

    drain()

    assert handle.status() is None
    assert list(TaskOutput.objects.values_list("task", flat=True)) == [other.id]


def test_a_task_that_was_claimed_again_gets_nothing_more(run_script):
    def body(context):
        context.write("mine")
        Task.objects.filter(pk=context.run.task_id).update(claim=context.run.claimed.claim + 1)

    handle = run_script(body)

    assert data(handle) == []


def test_a_chunk_is_stored_once_however_often_it_is_saved():
    handle = jobs.writes.send(["a"])
    drain()

    row = ClaimedTask._make(Task.objects.filter(pk=handle.id).values_list(*CLAIMED_COLUMNS).get())
    claimed = row._replace(claim=row.claim - 1, attempt=row.attempt - 1)
    output = OutputBuffer({OutputKind.OUTPUT: 9_999})
    for chunk in ("a", "b"):
        output.add(OutputKind.OUTPUT, chunk)

    for _ in range(2):
        TaskOutput.objects.save_unsaved([(claimed, output)])

    assert data(handle) == ["a", "b"]


# Steps.


@pytest.mark.slow
def test_what_follows_a_new_step_is_kept_although_kept_steps_are_not_met(run_script):
    """In a coroutine there is no order of steps."""
    order = [["a"], ["b", "a"]]

    async def say(context, name):
        await context.astep(name, int)
        context.write(f"{context.attempt} after {name}")

    async def body(context):
        for name in order[context.attempt - 1]:
            await say(context, name)
        if not context.is_last_attempt:
            raise ValueError("again")

    handle = run_script(body, attempts=2)

    assert data(handle) == ["1 after a", "2 after b", "2 after a"]


@pytest.mark.slow
def test_a_fork_keeps_what_it_writes_from_the_beginning(run_script, send_script):
    def body(context):
        context.write("begins")
        for name in ("a", "b"):
            context.step(name, int)
            context.write(f"after {name}")

    handle = run_script(body)
    fork = handle.fork(from_step="b")
    drain()

    assert data(handle) == data(fork) == ["begins", "after a", "after b"]


# The cost.


def _queries_of_drain():
    with CaptureQueriesContext(
        connection,
    ) as queries:
        drain()
    return [query["sql"] for query in queries]


def test_many_tasks_store_their_output_in_one_statement():
    handles = [jobs.writes.send(["x"]) for _ in range(5)]
    outputs = []
    for row in Task.objects.values_list(*CLAIMED_COLUMNS):
        claimed = ClaimedTask._make(row)
        outputs.append((claimed._replace(claim=claimed.claim - 1), OutputBuffer({OutputKind.OUTPUT: 9_999})))
        for number in range(5):
            outputs[-1][1].add(OutputKind.OUTPUT, number)
    for _, output in outputs:
        output.last_before = 0

    with CaptureQueriesContext(connection) as queries:
        TaskOutput.objects.save_unsaved(outputs)

    assert len(queries) == 1
    assert [data(handle) for handle in handles] == [[0, 1, 2, 3, 4]] * 5


def test_a_body_that_writes_nothing_costs_no_statement():
    jobs.writes.send([])

    assert not [text for text in _queries_of_drain() if "horsies_task_output" in text]


def test_a_context_in_memory_records_what_is_written():
    context = task_context(jobs.writes)

    jobs.writes.func(context, ["a", {"b": (1, 2)}])

    assert context.written == ["a", {"b": [1, 2]}]


def test_a_task_that_runs_at_once_may_write():
    with immediate():
        handle = jobs.writes.send(["a"])

    assert handle.value() == 1
