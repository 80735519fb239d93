"""What goes round a body: in which order, in which thread, and what becomes of what it returns or raises."""

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
def test_the_first_is_the_outermost_whatever_it_can_go_round(drain, middleware, job, names):
    middleware(*names)
    handle = job.send()

    drain()

    first, second = names
    assert handle.get(0).is_ok()
    assert samples.seen == [f"{first} in", f"{second} in", "body", f"{second} out", f"{first} out"]


@KINDS
def test_what_goes_round_both_needs_no_change_of_threads(drain, middleware, job):
    middleware("both", "both")
    job.send()

    drain()

    assert len(samples.threads) == 3
    assert len(set(samples.threads)) == 1


@KINDS
def test_it_is_made_once_for_all_bodies_of_a_kind(drain, middleware, job):
    middleware_stack._stacks.clear()
    middleware("both", "outer")
    job.send_many({} for _ in range(50))

    drain()

    assert sorted(samples.made) == ["both", "outer"]


def test_a_coroutine_under_a_middleware_for_functions_uses_the_orm(drain, middleware):
    middleware("outer", "both", "outer")
    handle = jobs.alook_into_the_database.send()

    drain()

    assert handle.get(0).is_ok()
    assert Entry.objects.filter(key="from a coroutine").exists()


@KINDS
def test_it_is_told_of_the_call_and_can_change_nothing_of_it(drain, middleware, job):
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
def test_what_a_body_raises_passes_by_and_fails_the_task(drain, middleware, job):
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
def test_what_a_middleware_raises_the_body_raised(drain, middleware, job, name, message):
    middleware("both", name)
    handle = job.send()

    drain()

    error = handle.get(0).err
    assert (error.message, error.exception["type"]) == (message, "builtins.LookupError")
    assert samples.seen == ["both in", *["body"] * (name == "failing_after"), "both LookupError"]


@pytest.mark.once
def test_what_a_middleware_raises_goes_by_the_policy_of_the_task(drain, middleware):
    middleware("failing_before")
    policy = RetryPolicy.fixed([3_600], auto_retry_for=["*"], jitter=False)
    handle = jobs.look_at_the_second.with_options(retry_policy=policy).send()

    drain()

    info = handle.info()
    assert (info.status, info.retry_count) == (TaskStatus.PENDING, 1)


@pytest.mark.once
def test_a_middleware_may_ask_for_what_a_body_may_ask_for(drain, middleware):
    middleware("putting_off")
    handle = jobs.look.send()

    drain()

    assert (handle.get(0).is_ok(), handle.info().attempt) == (True, 1)
    assert samples.seen == ["put off", "body"]


@KINDS
def test_what_it_returns_is_the_result(drain, middleware, job):
    middleware("instead")
    handle = job.send()

    drain()

    assert (handle.value(0), samples.seen) == ("instead", [])


@pytest.mark.parametrize("job", [jobs.fail, jobs.afail], ids=["function", "coroutine"])
def test_it_may_make_an_answer_of_an_error(drain, middleware, job):
    middleware("forgiving", "both")
    handle = job.send()

    drain()

    assert handle.value(0) == "forgiven: no luck"


@pytest.mark.parametrize("job", [jobs.takes_one, jobs.atakes_one], ids=["function", "coroutine"])
@pytest.mark.parametrize("name", ["outer", "both"])
def test_arguments_that_do_not_fit_are_told_as_such(drain, middleware, job, name):
    middleware(name)
    is_async = job is jobs.atakes_one
    row = Task.objects.create(task_name=job.module_path, kwargs={"other": 1}, is_async=is_async)

    drain()

    row.refresh_from_db()
    assert row.error_code == ContractCode.ARGUMENT_TYPE_MISMATCH


def test_round_an_atomic_task_it_is_inside_of_the_transaction(drain, middleware):
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
def test_a_time_limit_meets_a_body_through_all_that_is_round_it(drain, middleware, job, names):
    middleware(*names)

    def all_were_round_it():
        samples.seen.clear()
        handle = job.send()
        drain()
        assert handle.get(0).err.error_code == OutcomeCode.TASK_TIMEOUT
        assert not [entry for entry in samples.seen if entry.endswith("out")]
        return [entry for entry in samples.seen if entry.endswith("in")] == [f"{name} in" for name in names]

    assert any(all_were_round_it() for _ in range(3))  # on a busy machine the time may be up before the body begins


@pytest.mark.once
def test_one_that_makes_nothing_fails_the_task_and_says_which_it_is(drain, middleware):
    middleware("broken_factory")
    handle = jobs.look.send()

    drain()

    message = handle.get(0).err.message
    assert "tests.core.middleware.samples.broken_factory" in message
    assert "None; allowed: a callable" in message


@pytest.mark.parametrize("task", [tasks.add, tasks.awrite], ids=["function", "coroutine"])
def test_an_argument_that_another_version_may_know_goes_back_through_middleware(drain, middleware, task):
    middleware("horsies_django.middleware.LocaleMiddleware")
    Worker.objects.create(pk="another", hostname="h", pid=1, code_version="newer")
    row = Task.objects.create(task_name=task.module_path, kwargs={"a": 1, "nope": 2}, is_async=task is tasks.awrite)

    drain()

    row.refresh_from_db()
    assert (row.status, row.attempt) == (TaskStatus.PENDING, 0)
