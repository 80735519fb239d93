"""Middleware around a body: its order, its threads, its results and its exceptions."""

import pytest

from horsies_django import ContractCode, OperationalCode, OutcomeCode, RetryPolicy, TaskStatus
from horsies_django.models import Task, Worker
from horsies_django.worker import middleware_stack
from tests.core.middleware import jobs, samples
from tests.jobs import tasks
from tests.jobs.models import Entry

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

KINDS = pytest.mark.parametrize("job", [jobs.look, jobs.alook], ids=["function", "coroutine"])


@KINDS
@pytest.mark.parametrize(
    "names",
    [("outer", "both"), ("both", "outer"), ("only_async", "both"), ("outer", "only_async"), ("only_async", "outer")],
    ids=" ".join,
)
def test_the_first_middleware_is_the_outermost_whether_sync_or_async(drain, middleware, job, names):
    middleware(*names)
    handle = job.send()

    drain()

    first, second = names
    assert handle.get(0).is_ok()
    assert samples.seen == [f"{first} in", f"{second} in", "body", f"{second} out", f"{first} out"]


@KINDS
def test_middleware_that_is_sync_and_async_runs_in_the_bodys_thread(drain, middleware, job):
    middleware("both", "both")
    job.send()

    drain()

    assert len(samples.threads) == 3
    assert len(set(samples.threads)) == 1


@pytest.mark.slow
@KINDS
def test_middleware_is_built_once_for_all_bodies_of_a_kind(drain, middleware, job):
    middleware_stack._stacks.clear()
    middleware("both", "outer")
    job.send_many({} for _ in range(50))

    drain()

    assert sorted(samples.made) == ["both", "outer"]


def test_a_coroutine_inside_sync_middleware_can_use_the_orm(drain, middleware):
    middleware("outer", "both", "outer")
    handle = jobs.alook_into_the_database.send()

    drain()

    assert handle.get(0).is_ok()
    assert Entry.objects.filter(key="from a coroutine").exists()


@KINDS
def test_middleware_gets_a_read_only_call(drain, middleware, job):
    middleware("outer")
    handle = job.with_options(priority=7, metadata={"x": [1]}).send(1, two=2)

    drain()

    (call,) = samples.calls
    assert (call.id, call.task, call.task_name) == (handle.id, job, job.module_path)
    assert (call.queue_name, call.priority, call.attempt, call.workflow_id) == ("default", 7, 1, None)
    assert (call.args, dict(call.kwargs), dict(call.metadata)) == ((1,), {"two": 2}, {"x": [1]})
    for name in ("kwargs", "metadata"):
        with pytest.raises(TypeError):
            getattr(call, name)["new"] = 1
    with pytest.raises(AttributeError):
        call.attempt = 2


@pytest.mark.parametrize("job", [jobs.fail, jobs.afail], ids=["function", "coroutine"])
def test_an_exception_of_a_body_passes_through_middleware_and_fails_the_task(drain, middleware, job):
    middleware("outer", "both")
    handle = job.send()

    drain()

    assert samples.seen == ["outer in", "both in", "both ValueError", "outer ValueError"]
    error = handle.get(0).err
    assert (error.error_code, error.message) == (OperationalCode.UNHANDLED_EXCEPTION, "no luck")
    assert error.exception["type"] == "builtins.ValueError"


@KINDS
@pytest.mark.parametrize(
    ("name", "message"), [("failing_before", "before the body"), ("failing_after", "after the body")]
)
def test_an_exception_of_a_middleware_counts_as_one_of_the_body(drain, middleware, job, name, message):
    middleware("both", name)
    handle = job.send()

    drain()

    error = handle.get(0).err
    assert (error.message, error.exception["type"]) == (message, "builtins.LookupError")
    assert samples.seen == ["both in", *["body"] * (name == "failing_after"), "both LookupError"]


@pytest.mark.once
def test_the_retry_policy_of_a_task_applies_to_an_exception_of_a_middleware(drain, middleware):
    middleware("failing_before")
    policy = RetryPolicy.fixed([3_600], auto_retry_for=["*"], jitter=False)
    handle = jobs.look_at_the_second.with_options(retry_policy=policy).send()

    drain()

    info = handle.info()
    assert (info.status, info.retry_count) == (TaskStatus.PENDING, 1)


@pytest.mark.once
def test_a_middleware_can_snooze_the_task(drain, middleware):
    middleware("putting_off")
    handle = jobs.look.send()

    drain()

    assert (handle.get(0).is_ok(), handle.info().attempt) == (True, 1)
    assert samples.seen == ["put off", "body"]


@KINDS
def test_the_return_value_of_a_middleware_is_the_tasks_result(drain, middleware, job):
    middleware("instead")
    handle = job.send()

    drain()

    assert (handle.value(0), samples.seen) == ("instead", [])


@pytest.mark.parametrize("job", [jobs.fail, jobs.afail], ids=["function", "coroutine"])
def test_a_middleware_can_turn_an_exception_into_a_result(drain, middleware, job):
    middleware("forgiving", "both")
    handle = job.send()

    drain()

    assert handle.value(0) == "forgiven: no luck"


@pytest.mark.parametrize("job", [jobs.takes_one, jobs.atakes_one], ids=["function", "coroutine"])
@pytest.mark.parametrize("name", ["outer", "both"])
def test_mismatched_arguments_keep_their_error_code_through_middleware(drain, middleware, job, name):
    middleware(name)
    is_async = job is jobs.atakes_one
    row = Task.objects.create(task_name=job.module_path, kwargs={"other": 1}, is_async=is_async)

    drain()

    row.refresh_from_db()
    assert row.error_code == ContractCode.ARGUMENT_TYPE_MISMATCH


def test_middleware_of_an_atomic_task_runs_inside_its_transaction(drain, middleware):
    middleware("looking_for_a_transaction", "failing_after")
    handle = jobs.write_atomically.send("gone")

    drain()

    assert handle.get(0).err.message == "after the body"
    assert samples.seen == ["in a transaction: True"]
    assert not Entry.objects.exists()


@pytest.mark.parametrize(
    ("job", "names"),
    [
        (jobs.sleep_too_long, ["both", "outer"]),
        (jobs.sleep_too_long, ["only_async"]),
        (jobs.asleep_too_long, ["both"]),
        (jobs.asleep_too_long, ["outer"]),
    ],
    ids=["function", "function in a coroutine", "coroutine", "coroutine in a function"],
)
def test_a_timeout_stops_a_body_inside_middleware(drain, middleware, job, names):
    middleware(*names)

    def all_were_entered():
        samples.seen.clear()
        handle = job.send()
        drain()
        assert handle.get(0).err.error_code == OutcomeCode.TASK_TIMEOUT
        assert not [entry for entry in samples.seen if entry.endswith("out")]
        return [entry for entry in samples.seen if entry.endswith("in")] == [f"{name} in" for name in names]

    assert any(all_were_entered() for _ in range(3))  # on a busy machine the timeout may pass before the body starts


@pytest.mark.once
def test_a_middleware_that_returns_no_callable_is_named_in_the_tasks_error(drain, middleware):
    middleware("broken_factory")
    handle = jobs.look.send()

    drain()

    message = handle.get(0).err.message
    assert "tests.core.middleware.samples.broken_factory" in message
    assert "None; allowed: a callable" in message


@pytest.mark.parametrize("task", [tasks.add, tasks.awrite], ids=["function", "coroutine"])
def test_middleware_lets_a_task_with_an_argument_of_another_version_be_released(drain, middleware, task):
    middleware("horsies_django.middleware.LocaleMiddleware")
    Worker.objects.create(pk="another", hostname="h", pid=1, code_version="newer")
    row = Task.objects.create(task_name=task.module_path, kwargs={"a": 1, "nope": 2}, is_async=task is tasks.awrite)

    drain()

    row.refresh_from_db()
    assert (row.status, row.attempt) == (TaskStatus.PENDING, 0)
