"""``WorkflowHandle``: waiting, results and control, with the async twins; unique keys and levels of subworkflows."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from datetime import timedelta
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync
from django.core.management import call_command
from django.db import Error, connection, transaction
from django.utils import timezone

from horsies_django import OnError, RetryPolicy, TaskHandle, Workflow, WorkflowHandle, sleep
from horsies_django.core.compat import BaseTaskBackend, InvalidTask
from horsies_django.db import completions, postgres
from horsies_django.enqueue.node_factories import wait_for_event
from horsies_django.exceptions import PayloadMismatch, TaskFailed
from horsies_django.models import Task, WorkflowTask
from horsies_django.models import Workflow as WorkflowRow
from horsies_django.reaper.recovery import recover_stuck_workflows
from tests.conftest import wait_until
from tests.database import querying_threads
from tests.enqueue.completions.listening import all_runners_notify, listener_pids
from tests.notify_connection import NotifyConnection
from tests.workflows import bodies, jobs
from tests.workflows.runs import children, codes, end_without_notifying, start_and_drain, states

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

GETS = {"get": WorkflowHandle.get, "aget": async_to_sync(WorkflowHandle.aget)}
WORKER_ENVS = {"notifications": {}, "polling": {"DJANGO_SETTINGS_MODULE": "tests.workflows.polling_settings"}}


@pytest.fixture(params=GETS)
def get(request, transactional_db):
    """``get()`` and its async twin."""
    return GETS[request.param]


@pytest.fixture(params=WORKER_ENVS)
def worker_env(request, transactional_db):
    """Return the environment of a worker with or without notifications; SQLite never has them."""
    if request.param == "polling" and connection.vendor != "postgresql":
        pytest.skip("SQLite has no notifications")
    return WORKER_ENVS[request.param]


@pytest.fixture
def listener(transactional_db):
    """A connection that receives the notifications of ended workflows."""
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no notifications")
    with NotifyConnection.open(postgres.COMPLETIONS) as listener:
        yield listener


@pytest.fixture
def queries(transactional_db):
    """The name of the thread of each query for workflows, on any connection."""
    # The thread that polls for other tests has its own connection already.
    wait_until(lambda: "horsies-waiter" not in {thread.name for thread in threading.enumerate()})
    with querying_threads("horsies_workflows") as names:
        yield names


def one(value=1, **options):
    return Workflow("one", {"one": bodies.echo.node()(value=value)}, output="one", **options)


def failing(**options):
    return Workflow("failing", {"no": bodies.fail.node()()}, **options)


def held(**options):
    """Return a workflow that runs until it gets an event."""
    return Workflow("held", {"approval": wait_for_event("approval")}, output="approval", **options)


def later(seconds):
    return Workflow("later", sleep(seconds) >> bodies.echo.node()(value=1))


def ok_or_code(result):
    return result.ok if result.is_ok() else result.err.error_code


def is_notified(listener, handle):
    """Return whether a notification names this workflow."""
    return completions.short_key(handle.id) in set().union(*map(completions.loads, listener.receive(0.05)))


class Waiter(threading.Thread):
    """A thread that waits for a workflow, and keeps the outcome."""

    def __init__(self, handle, timeout=60):
        super().__init__(daemon=True)
        self.handle, self.timeout, self.outcome, self.ended_at = WorkflowHandle(handle.id), timeout, None, None
        self.start()

    def run(self):
        try:
            self.outcome = ok_or_code(self.handle.get(self.timeout))
            self.ended_at = time.time()
        finally:
            connection.close()


def outcomes(waiters):
    for waiter in waiters:
        waiter.join(60)
    return [waiter.outcome for waiter in waiters]


# Waiting.


@pytest.mark.slow
@pytest.mark.parametrize(("worker_env", "get"), [("notifications", "get"), ("polling", "aget")], indirect=True)
def test_get_returns_the_outcome_of_the_workflow(worker, worker_env, get):
    worker("-v0", **worker_env)
    good, bad, pausing = one(), failing(), Workflow("pausing", {"no": bodies.fail.node()()}, on_error=OnError.PAUSE)

    results = [get(workflow.start(), 30) for workflow in (good, bad, pausing)]

    assert [ok_or_code(result) for result in results] == [1, "NO", "WORKFLOW_PAUSED"]
    assert results[1].err.message == "no"


@pytest.mark.slow
def test_each_of_two_runners_notifies_waiting_callers(worker, listener, get):
    worker("--processes", "2", "-v0", "--name", "w", runners=2)
    wait_until(lambda: all_runners_notify(listener, 2))

    for number in range(5):
        handle = later(0.1 + number / 20).start()
        assert get(handle, 20).is_ok()
        wait_until(lambda handle=handle: is_notified(listener, handle))


@pytest.mark.slow
def test_waiting_callers_are_notified_if_a_body_stops_its_workflow(worker, listener):
    worker("-v0", "--name", "w")
    paused = Workflow("paused", bodies.stop.node()(action="pause") >> bodies.echo.node()())
    cancelled = Workflow("cancelled", bodies.stop.node()(action="cancel") >> bodies.echo.node()())

    for workflow in (paused, cancelled):
        wait_until(lambda: all_runners_notify(listener, 1))  # a worker sends notifications for ten seconds
        handle = workflow.start()
        wait_until(lambda handle=handle: is_notified(listener, handle))


@pytest.mark.slow
@pytest.mark.parametrize("action", ["pause", "cancel"])
def test_get_returns_if_another_process_stops_the_workflow(manage, get, action):
    handle = held().start()
    script = f"from horsies_django import WorkflowHandle; WorkflowHandle('{handle.id}').{action}()"
    process = manage("shell", "-v0", "-c", script)

    result = get(handle, 60)

    assert process.wait() == 0, process.output
    assert ok_or_code(result) == {"pause": "WORKFLOW_PAUSED", "cancel": "WORKFLOW_CANCELLED"}[action]


@pytest.mark.slow
def test_the_end_of_a_workflow_is_notified_after_its_commit(listener):
    paused, cancelled = held().start(), held().start()
    expired = held(good_until=timezone.now() - timedelta(seconds=1)).start()

    with transaction.atomic():
        assert paused.pause()
        before = is_notified(listener, paused)
    after = wait_until(lambda: is_notified(listener, paused))
    with transaction.atomic():
        assert cancelled.cancel()
        transaction.set_rollback(True)
    undone = is_notified(listener, cancelled)
    cancelled.cancel()
    again = wait_until(lambda: is_notified(listener, cancelled))
    call_command("horsies_reaper", once=True, verbosity=0)

    assert (before, after, undone, again) == (False, True, False, True)
    wait_until(lambda: is_notified(listener, expired))


def test_callers_are_notified_if_repair_fails_a_damaged_workflow(listener):
    handle = one().start()
    end_without_notifying("one", status="COMPLETED", result={"ok": 1})
    WorkflowTask.objects.filter(workflow=handle.id).update(dependents=5)

    (report,) = recover_stuck_workflows()

    assert (report.ended_workflows, str(handle.status())) == (1, "FAILED")
    wait_until(lambda: is_notified(listener, handle))


@pytest.mark.slow
def test_one_notification_covers_a_tree_of_workflows(listener, drain):
    handle = start_and_drain(Workflow("tree", {"sub": bodies.Waiting.node()(), "held": bodies.Held.node()()}), drain)
    listener.receive(0)

    assert handle.cancel()

    (payload,) = wait_until(lambda: listener.receive(1))
    assert completions.loads(payload) == {completions.short_key(run.id) for run in (handle, *children(handle))}


@pytest.mark.slow
def test_workers_send_no_notifications_if_no_caller_waits(worker, listener):
    wait_until(lambda: not listener_pids())  # a listener of another test may ask for notifications once more
    worker("-v0")
    handles = [one().start() for _ in range(5)]
    wait_until(lambda: all(handle.status() == "COMPLETED" for handle in handles))

    assert listener.receive(0) == []


def test_get_returns_after_the_row_was_changed_by_hand(get):
    handle = held().start()
    timer = threading.Timer(0.3, _end_by_hand, (handle,))
    timer.start()

    result = get(handle, 30)

    timer.join()
    assert result.ok == 7


def _end_by_hand(handle):
    WorkflowRow.objects.filter(pk=handle.id).update(status="COMPLETED", result={"ok": 7})
    connection.close()


@pytest.mark.slow
@pytest.mark.nightly
def test_a_thousand_waiting_threads_query_as_often_as_two(queries):
    handles = [held().start() for _ in range(50)]
    queries.clear()
    start = time.monotonic()
    waiters = [Waiter(handle) for handle in handles for _ in range(20)]
    wait_until(lambda: len(queries) > 4, what="queries for many")

    connections = _connections()
    for handle in handles:
        handle.cancel()

    assert set(outcomes(waiters)) == {"WORKFLOW_CANCELLED"}
    seconds = time.monotonic() - start
    by_waiters = [name for name in queries if name != threading.main_thread().name]  # the main thread cancels
    print(f"{len(by_waiters)} queries, {connections} connections in {seconds:.1f} s")
    assert len(by_waiters) < 2 * (seconds / 0.01) + 20
    assert connections <= 3  # of this thread, of the leader and of a former leader


def _connections():
    if connection.vendor != "postgresql":
        return 0
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name NOT LIKE 'horsies%'"
        )
        return cursor.fetchone()[0]


@pytest.mark.slow
@pytest.mark.nightly
def test_a_thousand_waiting_coroutines_hold_no_threads(queries):
    handles = [held().start() for _ in range(50)]
    queries.clear()
    start = time.monotonic()

    async def wait():
        waits = [asyncio.ensure_future(WorkflowHandle(handle.id).aget(60)) for handle in handles for _ in range(20)]
        await handles[-1].acancel()
        await asyncio.gather(*waits[-20:])  # they began to wait last, so by now all wait
        threads = threading.active_count()
        for handle in handles:
            await handle.acancel()
        results = await asyncio.gather(*waits)
        return threads, results, asyncio.all_tasks() - {asyncio.current_task()}

    threads, results, left_behind = async_to_sync(wait)()

    assert {ok_or_code(result) for result in results} == {"WORKFLOW_CANCELLED"}
    assert threads < 12
    assert len(queries) < 50 * 10 + 2 * (time.monotonic() - start) / 0.01
    assert not left_behind


@pytest.mark.slow
def test_one_event_loop_can_await_tasks_and_workflows(worker):
    worker("-v0")
    workflow, plain = later(0.3).start(), jobs.nothing.with_options(run_after=timedelta(seconds=0.3)).send()

    async def both():
        return await asyncio.gather(workflow.aget(30), plain.aget(30))

    assert [result.is_ok() for result in async_to_sync(both)()] == [True, True]


@pytest.mark.slow
def test_a_body_can_wait_for_another_workflow(worker):
    worker("-v0", "--threads", "4")
    handle = later(0.3).with_options(output="later:1").start()

    first = bodies.wait_for_workflow.send(workflow_id=str(handle.id))
    second = bodies.await_workflow.send(workflow_id=str(handle.id))

    assert first.value(30) == 1
    assert second.value(30) == [1, "SynchronousOnlyOperation"]


# The result of get().


def test_get_returns_at_once_for_a_paused_workflow(get):
    handle = held().start()
    handle.pause()

    result = get(handle, None)

    assert ok_or_code(result) == "WORKFLOW_PAUSED"
    handle.resume()
    assert ok_or_code(get(handle, 0)) == "WAIT_TIMEOUT"


@pytest.mark.parametrize("timeout", [0, 0.05])
def test_get_returns_wait_timeout_and_the_workflow_keeps_running(get, timeout):
    handle = held().start()

    result = get(handle, timeout)

    assert ok_or_code(result) == "WAIT_TIMEOUT"
    assert f"{timeout:g} seconds" in result.err.message
    assert handle.status() == "RUNNING"


def test_get_with_timeout_0_makes_one_query(django_assert_num_queries):
    handle = held().start()

    with django_assert_num_queries(1):
        handle.get(0)


@pytest.mark.parametrize("timeout", [None, 0, 5])
def test_get_returns_at_once_for_an_unknown_id(get, timeout):
    key = uuid4()

    result = get(WorkflowHandle(key), timeout)

    assert ok_or_code(result) == "TASK_NOT_FOUND"
    assert result.err.message == f"There is no workflow {key}."


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_an_invalid_timeout_is_refused_as_for_a_task(get, timeout):
    with pytest.raises(ValueError, match=r"timeout is .*; allowed: seconds from 0 on") as refused:
        get(WorkflowHandle(uuid4()), timeout)
    with pytest.raises(ValueError, match="timeout is") as of_task:
        TaskHandle(uuid4()).get(timeout)

    assert str(refused.value) == str(of_task.value)


def test_get_in_a_transaction_sees_the_changes_of_that_transaction():
    with transaction.atomic():
        handle = held().start()
        before = ok_or_code(handle.get(0.05))
        handle.cancel()
        after = ok_or_code(handle.get(5))
        transaction.set_rollback(True)

    assert (before, after, ok_or_code(handle.get(0))) == ("WAIT_TIMEOUT", "WORKFLOW_CANCELLED", "TASK_NOT_FOUND")


def test_get_in_a_broken_transaction_returns_a_broker_error():
    handle = held().start()

    with transaction.atomic():
        with pytest.raises(Error), connection.cursor() as cursor:
            cursor.execute("SELECT nonsense FROM nowhere")
        result = handle.get(0)
        transaction.set_rollback(True)

    assert ok_or_code(result) == ("BROKER_ERROR" if connection.vendor == "postgresql" else "WAIT_TIMEOUT")


def test_value_returns_the_ok_value_or_raises(drain):
    good, bad = one().start(), failing().start()
    drain()

    assert (good.value(0), async_to_sync(WorkflowHandle(good.id).avalue)(0)) == (1, 1)
    for value in (bad.value, async_to_sync(bad.avalue)):
        with pytest.raises(TaskFailed, match="NO: no") as caught:
            value(0)
        assert caught.value.error.error_code == "NO"


@pytest.mark.slow
def test_a_handle_caches_only_the_result_of_a_completed_workflow(drain, django_assert_num_queries):
    good = start_and_drain(one(), drain)
    bad = start_and_drain(Workflow("again", {"one": bodies.flaky.node()(key="again", fails=1)}, output="one"), drain)
    first = [ok_or_code(good.get(0)), ok_or_code(bad.get(0))]
    WorkflowHandle(bad.id).retry()  # another handle than the one that caches
    drain()

    second = ok_or_code(bad.get(0))
    with django_assert_num_queries(0):
        kept = [ok_or_code(good.get(0)), ok_or_code(bad.get(0))]

    assert (first, second, kept) == ([1, "NOT_YET"], 2, [1, 2])


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"result": None}, "RESULT_NOT_AVAILABLE"),
        ({"result": 5}, "RESULT_DESERIALIZATION_ERROR"),
        ({"result": {"okay": 1}}, "RESULT_DESERIALIZATION_ERROR"),
        ({"status": "FAILED", "result": None, "error": None}, "RESULT_NOT_AVAILABLE"),
        ({"status": "FAILED", "result": None, "error": "no"}, "RESULT_DESERIALIZATION_ERROR"),
        ({"status": "FAILED", "result": None, "error": {"node_id": 5}}, "RESULT_DESERIALIZATION_ERROR"),
    ],
    ids=str,
)
@pytest.mark.once
@pytest.mark.parametrize("workflow", [one(), one().with_options(output=None)], ids=["output", "results"])
def test_a_damaged_result_is_an_error_result(drain, get, workflow, values, code):
    handle = start_and_drain(workflow, drain)
    WorkflowRow.objects.filter(pk=handle.id).update(**values)

    assert ok_or_code(get(handle, 0)) == code


def test_a_damaged_result_of_a_node_is_an_error_result(drain, settings):
    settings.TASKS = {
        "default": {"BACKEND": "horsies_django.backend.HorsiesBackend", "QUEUES": [], "OPTIONS": {"serializer": "rich"}}
    }
    handle = start_and_drain(one(), drain)
    WorkflowTask.objects.filter(workflow=handle.id).update(result={"ok": {"$type": "nonsense"}}, typed_payload=True)

    assert ok_or_code(handle.result_for("one")) == "RESULT_DESERIALIZATION_ERROR"
    assert [ok_or_code(result) for result in handle.results().values()] == ["RESULT_DESERIALIZATION_ERROR"]


# The rest of the handle.


@pytest.mark.slow
def test_every_method_has_an_async_twin_that_does_the_same(drain):
    async def use_async():
        handle = await held().astart()
        outcomes = [await handle.astatus(), await handle.atasks(), await handle.aresults(), await handle.apause()]
        outcomes += [ok_or_code(await handle.aget()), await handle.aresume(), await handle.asend_event("approval", [1])]
        outcomes += [
            ok_or_code(await handle.aget(30)),
            ok_or_code(await handle.aresult_for("approval")),
            await handle.acancel(),
        ]
        other = await held().astart()
        return [*outcomes, await other.acancel(), await other.aretry("approval"), await other.astatus()]

    def use_sync():
        handle = held().start()
        outcomes = [handle.status(), handle.tasks(), handle.results(), handle.pause()]
        outcomes += [ok_or_code(handle.get()), handle.resume(), handle.send_event("approval", [1])]
        outcomes += [ok_or_code(handle.get(30)), ok_or_code(handle.result_for("approval")), handle.cancel()]
        other = held().start()
        return [*outcomes, other.cancel(), other.retry("approval"), other.status()]

    expected = [
        "RUNNING",
        {"approval": "RUNNING"},
        {},
        True,
        "WORKFLOW_PAUSED",
        True,
        True,
        [1],
        [1],
        False,
        True,
        True,
    ]
    assert use_sync() == [*expected, "RUNNING"]
    assert async_to_sync(use_async)() == use_sync()
    public = [name for name in vars(WorkflowHandle) if not name.startswith("_")]
    assert {f"a{name}" for name in public if not name.startswith("a")} == {name for name in public if name[0] == "a"}


def test_handles_of_one_run_are_equal():
    key = uuid4()

    assert len({WorkflowHandle(key), WorkflowHandle(str(key)), WorkflowHandle(key.hex)}) == 1
    assert WorkflowHandle(key) != WorkflowHandle(uuid4())
    assert WorkflowHandle(key) != TaskHandle(key)


@pytest.mark.parametrize("given", ["", "no-uuid", 7, None])
def test_a_bad_id_is_refused_and_named(given):
    for handle in (WorkflowHandle, TaskHandle):
        with pytest.raises(ValueError, match=f"id is {given!r}; allowed: a UUID, or its text"):
            handle(given)


def test_an_unknown_backend_is_refused_and_named():
    with pytest.raises(InvalidTask, match="backend is 'nope'; allowed: 'default'"):
        WorkflowHandle(uuid4(), backend="nope")


def test_a_backend_of_another_package_is_refused_and_named(settings):
    package = BaseTaskBackend.__module__.removesuffix(".base")
    settings.TASKS = {**settings.TASKS, "other": {"BACKEND": f"{package}.dummy.DummyBackend"}}

    with pytest.raises(InvalidTask, match=r"TASKS\['other'\] is DummyBackend; allowed: a HorsiesBackend"):
        WorkflowHandle(uuid4(), backend="other")


def test_an_unknown_node_is_refused_and_named(drain):
    handle, unknown = start_and_drain(failing(), drain), WorkflowHandle(uuid4())

    for method in (handle.result_for, handle.retry, async_to_sync(handle.aresult_for), async_to_sync(handle.aretry)):
        with pytest.raises(KeyError, match=f"There is no node 'nope' in workflow {handle.id}; there are: '"):
            method("nope")
    for method in (unknown.result_for, unknown.retry):
        with pytest.raises(KeyError, match=f"There is no workflow {unknown.id}"):
            method("nope")
    for method in (handle.result_for, handle.retry):
        with pytest.raises(TypeError, match="node is 7; allowed: a node, its NodeKey, or its id"):
            method(7)
    assert handle.status() == "FAILED"
    assert not unknown.retry()


def test_a_handle_accepts_the_node_objects_of_its_workflow(drain):
    plain, named = bodies.echo.node()(value=1), bodies.echo.node(node_id="named")(value=2)
    workflow = Workflow("objects", [plain, named])
    handle = start_and_drain(workflow, drain)

    assert [handle.result_for(node).ok for node in (plain, named)] == [1, 2]
    assert async_to_sync(handle.aresult_for)(plain).ok == 1
    assert {key: result.ok for key, result in handle.results([plain]).items()} == {"objects:0": 1}
    assert handle.tasks([named, plain]) == {"named": "COMPLETED", "objects:0": "COMPLETED"}
    assert not handle.retry(plain)
    for rebuilt in (WorkflowHandle(handle.id), pickle.loads(pickle.dumps(handle))):
        assert rebuilt.result_for(workflow.key(plain)).ok == rebuilt.result_for("objects:0").ok == 1
        assert rebuilt.result_for(named).ok == 2
        with pytest.raises(ValueError, match="has no node_id of its own"):
            rebuilt.result_for(plain)
    with pytest.raises(ValueError, match="has no node_id of its own"):
        handle.result_for(bodies.echo.node()())
    for method in (handle.results, handle.tasks):
        with pytest.raises(KeyError, match="There is no node 'nope'"):
            method([plain, "nope"])


def test_send_event_checks_the_name():
    handle = held().start()

    for name in ("", "x" * 101, "\0", 7, None):
        with pytest.raises(ValueError, match=r"the name of an event is .*; allowed: a text of 1 to 100 characters"):
            handle.send_event(name)
    assert handle.send_event("x" * 100)


def test_send_event_checks_the_payload():
    handle = held().start()

    with pytest.raises(TypeError, match="<class 'object'> in the payload of event 'approval'"):
        handle.send_event("approval", object())
    with pytest.raises(ValueError, match=r"nan in the payload of event 'approval'\['a'\]\[0\]"):
        handle.send_event("approval", {"a": [float("nan")]})
    with pytest.raises(ValueError, match="the payload of event 'approval' is too large"):
        handle.send_event("approval", "x" * 17_000_000)
    assert states(handle) == {"approval": "RUNNING"}


# Unique keys.


def test_concurrent_starts_with_one_unique_key_make_one_run():
    barrier, ids = threading.Barrier(8), []

    def start():
        barrier.wait()
        try:
            ids.append(held(unique_key="key").start().id)
        finally:
            connection.close()

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert (len(ids), len(set(ids)), WorkflowRow.objects.count()) == (8, 1, 1)


def test_a_start_with_the_unique_key_of_a_subworkflow_returns_that_run(drain):
    handle = start_and_drain(Workflow("outer", {"sub": bodies.Held.node()()}), drain)
    (child,) = children(handle)

    assert bodies.Held.build().start().id == child.id
    with pytest.raises(PayloadMismatch, match=f"a workflow 'Held' with unique_key 'held', which is {child.id}"):
        held(unique_key="held").start()


@pytest.mark.slow
def test_a_subworkflow_whose_unique_key_is_taken_names_the_holder(drain):
    holder = bodies.Held.build().start()
    handle = start_and_drain(Workflow("outer", {"sub": bodies.Held.node()()}, output="sub"), drain)

    error = handle.get(0).err
    assert (error.error_code, codes(handle)) == ("WORKFLOW_KEY_TAKEN", {"sub": "WORKFLOW_KEY_TAKEN"})
    assert error.message == f"unique_key 'held' belongs to 'Held' ({holder.id}), which is RUNNING."
    assert children(handle) == []

    holder.send_event("approval", "now")
    assert handle.retry()
    drain()
    (child,) = children(handle)
    child.send_event("approval", "then")
    assert handle.get(0).ok == "then"


@pytest.mark.slow
def test_one_of_two_subworkflows_with_the_same_unique_key_fails(drain):
    handle = start_and_drain(Workflow("outer", {"a": bodies.Held.node()(), "b": bodies.Held.node()()}), drain)

    (child,) = children(handle)
    assert sorted(states(handle).values()) == ["FAILED", "RUNNING"]
    child.send_event("approval")
    assert handle.status() == "FAILED"
    assert sorted(map(str, codes(handle).values())) == ["None", "WORKFLOW_KEY_TAKEN"]


def test_a_subworkflow_with_the_unique_key_of_its_parent_fails(drain):
    handle = start_and_drain(Workflow("outer", {"sub": bodies.Held.node()()}, unique_key="held"), drain)

    assert handle.get(0).err.error_code == "WORKFLOW_KEY_TAKEN"
    assert str(handle.id) in handle.get(0).err.message


@pytest.mark.slow
def test_a_retry_policy_lets_a_subworkflow_wait_for_its_unique_key(worker):
    worker("-v0")
    holder = bodies.Held.build().start()
    policy = RetryPolicy.fixed([1] * 60, auto_retry_for=["WORKFLOW_KEY_TAKEN"])
    first = bodies.echo.node()()  # its run makes the worker import the module of the definitions
    sub = bodies.Held.node(retry_policy=policy)()
    handle = Workflow("outer", {"first": first, "sub": sub, "order": first >> sub}, output="sub").start()
    wait_until(lambda: Task.objects.filter(workflow_id=handle.id, retry_count__gt=0).exists())

    holder.send_event("approval")
    (child,) = wait_until(lambda: children(handle))
    child.send_event("approval", "after all")

    assert handle.get(30).ok == "after all"


# Levels of subworkflows.


@pytest.mark.slow
def test_workflows_can_be_nested_up_to_the_limit(drain):
    handle = start_and_drain(bodies.Deep.build_with(left=31), drain)

    assert handle.get(0).ok == 0
    assert max(WorkflowRow.objects.values_list("depth", flat=True)) == 31


@pytest.mark.slow
def test_one_level_beyond_the_limit_fails_and_names_the_definition(drain):
    handle = start_and_drain(bodies.Deep.build_with(left=32), drain)

    error = handle.get(0).err
    allowed = "'tests.running.deep' would be at level 33; allowed: 32. In its tree: tests.running.deep."
    assert (error.error_code, error.message) == ("SUBWORKFLOW_FAILED", allowed)
    (lowest,) = WorkflowRow.objects.filter(depth=31).values_list("pk", flat=True)
    assert WorkflowHandle(lowest).get(0).err.error_code == "WORKFLOW_TOO_DEEP"
    assert set(WorkflowRow.objects.values_list("status", flat=True)) == {"FAILED"}
