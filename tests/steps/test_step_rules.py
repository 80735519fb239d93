"""What a step promises, where it is refused, and what becomes of its failures."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial

import pytest
from django.db import OperationalError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from horsies_django import Batch, Discard, Retry, RetryPolicy, Snooze, TaskHandle, TaskStatus
from horsies_django.db.expressions import NowPlus
from horsies_django.db.now import Now
from horsies_django.exceptions import StepFailed, TaskSuspended, WaitTimeout
from horsies_django.models import Task, TaskAttempt, TaskStep
from horsies_django.reaper.crashed import recover_all
from horsies_django.steps import replay
from horsies_django.testing import drain
from horsies_django.worker import execution
from tests.steps import event_jobs, scripts
from tests.steps.jobs import Refused, note, refuse

pytestmark = pytest.mark.django_db


async def anote(key):
    await asyncio.sleep(0)
    return key


def error_of(handle):
    return handle.get(0).err_value


# Where steps are refused.


@pytest.mark.parametrize(
    "call",
    [
        lambda context: context.step("inner", note, "inner"),
        lambda context: context.sleep(10),
        lambda context: context.wait_event("approved"),
        lambda context: context.patched("change"),
        lambda context: context.restart(),
    ],
)
@pytest.mark.once
def test_a_step_s_function_must_not_call_steps_or_waits(run_script, entries, call):
    handle = run_script(lambda context: context.step("outer", call, context))

    error = error_of(handle)
    assert error.error_code == "STEP_FAILED"
    assert "was called inside the step 'outer'" in error.message
    assert entries() == []


def test_a_coroutine_of_a_step_must_not_call_steps(run_script, entries):
    async def body(context):
        async def inner():
            await context.astep("inner", note, "inner")

        await context.astep("outer", inner)

    assert "was called inside the step 'outer'" in error_of(run_script(body)).message
    assert entries() == []


def test_a_step_inside_a_transaction_is_refused(run_script, entries):
    def body(context):
        with transaction.atomic():
            context.step("inner", note, "inner")

    assert "was called inside a transaction" in error_of(run_script(body)).message
    assert entries() == []


@pytest.mark.parametrize("name", ["", "x" * 256, "a\0b", 7, "event:x", "patch:x", "workflow:x", "sleep"])
@pytest.mark.once
def test_a_bad_name_is_refused(run_script, entries, name):
    error = error_of(run_script(lambda context: context.step(name, note, "x")))

    assert error.exception["type"] == "builtins.ValueError"
    assert f"{name!r}; allowed" in error.message
    assert entries() == []


@pytest.mark.slow
@pytest.mark.sqlite
def test_an_atomic_coroutine_and_a_timeout_of_a_function_are_refused(run_script):
    async def atomic(context):
        await context.astep("a", anote, "a", atomic=True)

    async def timed(context):
        await context.astep("a", note, "a", timeout=1)

    assert "'a' is atomic" in error_of(run_script(atomic)).message
    assert "'a' has a timeout" in error_of(run_script(timed)).message


# Names and numbers.


def test_steps_of_one_name_are_numbered_at_the_call_and_not_at_the_first_await(run_script):
    async def body(context):
        first, second = context.astep("a", anote, "first"), context.astep("a", anote, "second")
        return [await second, await first]

    assert run_script(body).value(0) == ["second", "first"]
    assert list(TaskStep.objects.order_by("number").values_list("result", flat=True)) == [
        {"ok": "first"},
        {"ok": "second"},
    ]


@pytest.mark.slow
@pytest.mark.sqlite
def test_outside_the_body_s_own_asyncio_task_a_name_is_used_once(run_script):
    async def body(context):
        async def child(name):
            return await context.astep(name, anote, name)

        values = await asyncio.gather(child("a"), child("b"))
        await context.astep("c", anote, "c")
        for refused in await asyncio.gather(child("a"), child("c"), return_exceptions=True):
            values.append(str(refused))
        return values

    a, b, *refused = run_script(body).value(0)

    assert (a, b) == ("a", "b")
    assert ["was used before" in text for text in refused] == [True, True]


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.django_db(transaction=True)
def test_steps_in_other_threads_of_a_function_have_no_order(run_script, entries):
    def body(context):
        def call(name):
            with ThreadPoolExecutor(1) as threads:
                value = threads.submit(context.step, name, note, name).result()
                threads.submit(connections.close_all).result()
            return value

        values = [call(name) for name in ("b" if context.attempt == 1 else "ab")]
        if context.attempt == 1:
            raise Refused
        return values

    handle = run_script(body, attempts=2)

    assert handle.value(0) == ["a", "b"]
    assert entries() == ["b", "a"]


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_wait_in_another_thread_or_asyncio_task_is_refused(run_script):
    async def body(context):
        (refused,) = await asyncio.gather(asyncio.create_task(context.asleep(60)), return_exceptions=True)
        return str(refused)

    def threaded(context):
        refused = []

        def wait():
            try:
                context.wait_event("approved")
            except RuntimeError as error:
                refused.append(str(error))

        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()
        return refused[0]

    for handle in (run_script(body), run_script(threaded)):
        assert "in another thread or asyncio task" in handle.value(0)


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_key_is_that_of_the_next_step_of_its_name_in_each_run(run_script):
    seen = []

    def body(context):
        keys = []
        for _ in range(2):
            keys.append(context.key("charge"))
            context.step("charge", note, "charge")
        seen.append(keys)
        if context.attempt == 1:
            raise Refused
        return keys

    handle = run_script(body, attempts=2)

    assert seen[0] == seen[1] == [f"{handle.id}:charge:1", f"{handle.id}:charge:2"]


# Values.


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_value_is_what_later_runs_get_from_the_first_run_on(run_script):
    seen = []

    def body(context):
        seen.append(context.step("pair", lambda: {"pair": (1, 2), 3: None}))
        if context.attempt == 1:
            raise Refused

    run_script(body, attempts=2)

    assert seen == [{"pair": [1, 2], "3": None}] * 2


@pytest.mark.slow
@pytest.mark.sqlite
def test_typed_values_are_equal_live_and_on_replay(run_script, settings):
    options = settings.TASKS["default"]["OPTIONS"] | {"serializer": "rich"}
    settings.TASKS = {"default": settings.TASKS["default"] | {"OPTIONS": options}}
    value = {"price": Decimal("1.10"), "day": date(2030, 1, 2), "at": datetime(2030, 1, 2, tzinfo=UTC)}
    seen = []

    def body(context):
        seen.append(context.step("typed", lambda: value))
        if context.attempt == 1:
            raise Refused

    run_script(body, attempts=2)

    assert seen == [value, value]


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.parametrize("value", [object(), {"a": {1, 2}}, float("nan")])
def test_a_value_that_cannot_be_stored_fails_the_step(run_script, value):
    error = error_of(run_script(lambda context: context.step("odd", lambda: value)))

    assert error.error_code == "STEP_FAILED"
    assert "the value of the step 'odd'" in error.message


def test_a_value_above_max_payload_bytes_fails_the_step_and_undoes_an_atomic_one(run_script, entries, settings):
    options = settings.TASKS["default"]["OPTIONS"] | {"max_payload_bytes": 10_000}
    settings.TASKS = {"default": settings.TASKS["default"] | {"OPTIONS": options}}

    def large():
        note("effect")
        return "x" * 10_000

    error = error_of(run_script(lambda context: context.step("large", large, atomic=True)))

    assert "the value of the step 'large'" in error.message
    assert entries() == []


def test_the_error_of_a_value_that_cannot_be_stored_does_not_quote_the_value(run_script, caplog):
    secret = "".join(["41", "11"])  # a traceback quotes the source

    error = error_of(run_script(lambda context: context.step("card", lambda: {"number": secret, "card": object()})))

    assert "the value of the step 'card'" in error.message
    assert secret not in error.message + caplog.text


# Failures.


@pytest.mark.slow
@pytest.mark.sqlite
def test_step_failed_has_its_cause_live_and_class_message_and_code_on_replay(run_script, entries):
    causes, errors = [], []

    def body(context):
        try:
            context.step("refused", refuse, "charge")
        except StepFailed as failed:
            causes.append(failed.__cause__)
            errors.append((str(failed), failed.error.as_json()))
        context.step("after", note, "after")
        if context.attempt == 1:
            raise Refused

    run_script(body, attempts=2)

    assert [type(cause) for cause in causes] == [Refused, type(None)]
    assert errors[0] == errors[1]
    message, error = errors[0]
    assert message == "The step 'refused' failed: UNHANDLED_EXCEPTION: charge"
    assert error["exception"]["type"] == "tests.steps.jobs.Refused"
    assert entries() == ["charge", "after"]


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_step_that_failed_last_is_run_again_by_a_retry(run_script, entries):
    handle = run_script(lambda context: context.step("refused", refuse, "try"), attempts=3)

    assert error_of(handle).error_code == "STEP_FAILED"
    assert entries() == ["try"] * 3


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_step_that_failed_last_is_run_again_by_an_operator_s_retry(run_script, entries):
    def body(context):
        context.step("kept", note, "kept")
        if len(entries()) < 3:
            context.step("last", refuse, "last")
        return context.step("last", note, "now")

    handle = run_script(body)
    assert error_of(handle).error_code == "STEP_FAILED"

    handle.retry()
    drain()
    handle.retry()
    drain()

    assert handle.value(0) == "now"
    assert entries() == ["kept", "last", "last", "now"]


@pytest.mark.slow
@pytest.mark.sqlite
def test_of_gathered_steps_those_that_failed_are_run_again_by_a_retry(run_script, entries):
    async def body(context):
        async def refuse_once():
            if context.attempt == 1:
                raise Refused
            return "a"

        steps = context.astep("a", refuse_once), context.astep("b", note, "b")
        values = await asyncio.gather(*steps, return_exceptions=True)
        if context.attempt == 1:
            raise values[0]
        return values

    handle = run_script(body, attempts=2)

    assert handle.value(0) == ["a", "b"]
    assert entries() == ["b"]


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.parametrize("raised", [Retry("later", after=0), Snooze(0)])
def test_a_step_may_end_the_run_as_the_body_may_and_nothing_is_kept_of_that(run_script, entries, raised):
    tries = []

    def once():
        note("effect")
        tries.append(1)
        if len(tries) == 1:
            raise raised
        return "done"

    handle = run_script(lambda context: context.step("asks", once, atomic=True), attempts=2)
    drain(scheduled=True, retries=True)

    assert handle.value(0) == "done"
    assert entries() == ["effect"]
    assert TaskStep.objects.get().attempts == 1


def test_a_step_may_discard_its_task(run_script):
    def body(context):
        def give_up():
            raise Discard("useless")

        context.step("gives up", give_up)

    handle = run_script(body, attempts=3)

    assert error_of(handle).error_code == "TASK_DISCARDED"
    assert not TaskStep.objects.exists()


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_coroutine_step_that_exceeds_its_timeout_fails(run_script):
    async def body(context):
        try:
            await context.astep("slow", asyncio.sleep, 3600, timeout=0.01)
        except StepFailed as error:
            return type(error.__cause__).__name__

    assert run_script(body).value(0) == "TimeoutError"
    assert TaskStep.objects.get().status == "FAILED"


@pytest.mark.slow
@pytest.mark.sqlite
def test_an_outage_while_a_step_is_recorded_is_not_its_failure(run_script, entries):
    """The task runs again, and no attempt of its policy is used up."""

    def fail_once(execute, sql, params, many, context):
        if "horsies_task_steps" in sql and sql.startswith("INSERT") and not outages:
            outages.append(sql)
            raise OperationalError("the server closed the connection")
        return execute(sql, params, many, context)

    outages = []

    def body(context):
        context.step("kept", note, "effect", atomic=True)
        return "done"

    with connection.execute_wrapper(fail_once):
        handle = run_script(body)

    assert outages
    assert handle.value(0) == "done"
    assert entries() == ["effect"]
    assert Task.objects.get().retry_count == 0
    assert TaskAttempt.objects.count() == 2


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.django_db(transaction=True)
def test_a_connection_that_was_lost_during_a_long_step_is_replaced_before_the_record(run_script, entries, monkeypatch):
    if connection.vendor == "sqlite":
        return  # its connections are not lost
    monkeypatch.setattr(execution, "IDLE_CONNECTION", -1.0)

    def lose_connection():
        note("effect")
        connection.connection.close()
        return "called"

    handle = run_script(lambda context: context.step("call", lose_connection))

    assert handle.value(0) == "called"
    assert entries() == ["effect"]
    assert not TaskAttempt.objects.exclude(outcome="COMPLETED").exists()


def test_a_task_has_at_most_max_records(run_script, entries, monkeypatch):
    monkeypatch.setattr(replay, "MAX_RECORDS", 3)

    def body(context):
        for number in range(4):
            context.step("note", note, str(number))

    assert "has 3 records; allowed: no more" in error_of(run_script(body)).message
    assert entries() == ["0", "1", "2"]


@pytest.mark.django_db(transaction=True)
def test_a_connection_that_was_lost_during_a_long_step_that_fails_is_replaced(run_script, monkeypatch):
    if connection.vendor == "sqlite":
        return  # its connections are not lost
    monkeypatch.setattr(execution, "IDLE_CONNECTION", -1.0)

    def lose_connection():
        connection.connection.close()
        raise Refused("late")

    def body(context):
        try:
            context.step("call", lose_connection)
        except StepFailed as failed:
            return str(failed.error.message)

    assert run_script(body).value(0) == "late"
    assert not TaskAttempt.objects.exclude(outcome="COMPLETED").exists()


@pytest.mark.slow
@pytest.mark.sqlite
def test_more_outages_than_five_are_not_charged_if_the_task_makes_progress_between_them(run_script, entries):
    def body(context):
        for number in range(7):
            context.step(f"step {number}", note, str(number), atomic=True)
            lost.add(number)
        return "done"

    def fail_once(execute, sql, params, many, context):
        if "horsies_task_steps" in sql and sql.startswith("INSERT") and lost - seen:
            seen.update(lost)
            raise OperationalError("the server closed the connection")
        return execute(sql, params, many, context)

    lost, seen = set(), set()
    with connection.execute_wrapper(fail_once):
        handle = run_script(body)

    assert handle.value(0) == "done"
    assert entries() == [str(number) for number in range(7)]
    assert TaskAttempt.objects.count() == 7
    assert Task.objects.get().retry_count == 0


def test_an_error_that_cannot_be_printed_fails_its_step(run_script):
    class Unprintable(Exception):
        def __str__(self):
            raise ValueError

    def fail():
        raise Unprintable

    error = error_of(run_script(lambda context: context.step("odd", fail)))

    assert error.error_code == "STEP_FAILED"
    assert "can't be printed" in error.message


def test_a_subclass_of_discard_ends_its_task_as_discarded(run_script):
    class Useless(Discard):
        pass

    def body(context):
        raise Useless("useless")

    assert error_of(run_script(body, attempts=3)).error_code == "TASK_DISCARDED"


# Waits that timed out.


def end_waits(handle):
    TaskStep.objects.filter(task=handle.id, status="WAITING").update(due_at=Now())
    Task.objects.filter(pk=handle.id).update(enqueued_at=Now())
    drain(retries=True)


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.parametrize("attempts", [1, 2])
def test_a_wait_that_timed_out_last_is_repeated_by_a_retry_and_reads_the_event_that_came(send_script, attempts):
    def body(context):
        try:
            return context.wait_event("approved", timeout=60)
        except WaitTimeout:
            handle.send_event("approved", "late")
            raise

    handle = send_script(body, attempts=attempts)
    drain()
    end_waits(handle)
    if attempts == 1:
        assert error_of(handle).exception["type"].endswith("WaitTimeout")
        assert handle.retry()
        drain()

    assert handle.value(0) == "late"


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_wait_for_a_workflow_that_timed_out_last_is_repeated_by_a_retry(send_script):
    with Batch("waits") as batch:
        batch.add(event_jobs.waits)

    def body(context):
        result = context.wait(batch.handle, timeout=60)
        return result.unwrap()

    handle = send_script(body)
    drain()
    end_waits(handle)
    assert "WAIT_TIMEOUT" in error_of(handle).message

    call = Task.objects.exclude(pk=handle.id).get(task_name__endswith="waits")
    TaskHandle(call.pk).send_event("approved", 7)
    assert handle.retry()
    drain()

    assert handle.value(0) == [[7]]


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_time_out_that_the_body_went_on_from_stays_one(run_script, entries):
    def body(context):
        try:
            context.wait_event("approved", timeout=60)
        except WaitTimeout:
            context.step("nobody", note, "nobody")
        if context.attempt == 1:
            raise Refused
        return context.wait_event("approved")

    handle = run_script(body, attempts=2)
    end_waits(handle)
    handle.send_event("approved", "late")
    drain(retries=True)

    assert handle.value(0) == "late"
    assert entries() == ["nobody"]


@pytest.mark.slow
@pytest.mark.sqlite
def test_an_event_that_came_early_does_not_let_a_changed_body_go_on(run_script, entries):
    is_changed = []

    def body(context):
        if not is_changed:
            context.step("first", note, "first")
            raise Refused
        return context.wait_event("approved")

    handle = run_script(body)
    handle.send_event("approved", 1)
    is_changed.append(True)
    handle.retry()
    handle.send_event("approved", 1)
    drain()

    assert error_of(handle).error_code == "STEP_MISMATCH"


# Deadlines, and crashes without progress.


@pytest.mark.parametrize("end", [Refused("later"), Snooze(0)])
def test_a_deadline_does_not_apply_to_a_task_that_has_recorded_something(send_script, end):
    def body(context):
        context.step("first", note, "first")
        if len(runs) == 0:
            runs.append(1)
            Task.objects.update(good_until=NowPlus(-60))
            raise end
        return "done"

    runs = []
    handle = send_script(body, attempts=2, good_until=datetime(2100, 1, 1, tzinfo=UTC))
    drain(scheduled=True, retries=True)

    assert handle.value(0) == "done"


def test_a_deadline_applies_to_a_task_that_has_recorded_nothing(run_script):
    def body(context):
        Task.objects.update(good_until=NowPlus(-60))
        raise Refused

    handle = run_script(body, attempts=2, good_until=datetime(2100, 1, 1, tzinfo=UTC))

    assert error_of(handle).error_code == "UNHANDLED_EXCEPTION"


def test_a_crash_after_nothing_but_a_failure_is_judged_by_the_policy(run_script):
    def body(context):
        try:
            context.step("refused", refuse, "refused")
        except StepFailed:
            recover_all(Task.objects.all())

    assert error_of(run_script(body)).error_code == "WORKER_CRASHED"


# The end of a run.


def test_calls_after_a_suspension_raise_it_again_and_a_late_return_is_dropped(run_script, entries, caplog):
    raised = []

    def body(context):
        for call in (partial(context.sleep, 3600), partial(context.step, "after", note, "after"), context.restart):
            try:
                call()
            except TaskSuspended as suspended:
                raised.append(suspended)
        return "too early"

    handle = run_script(body)

    assert handle.status() == TaskStatus.PENDING
    assert Task.objects.get().waits_for == "sleep"
    assert len(raised) == 3
    assert len(set(map(id, raised))) == 1
    assert entries() == []
    assert "what it returned is dropped" in caplog.text


def test_an_error_after_a_suspension_is_dropped(run_script, caplog):
    def body(context):
        try:
            context.wait_event("approved")
        finally:
            raise Refused("late")

    run_script(body)

    assert Task.objects.get().waits_for == "event:approved"
    assert "Refused('late') is dropped" in caplog.text


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_time_limit_is_for_each_run_of_the_body_and_waits_do_not_count(run_script):
    handle = run_script(lambda context: [context.sleep(3600), context.sleep(3600)], timeout=60)
    drain(scheduled=True)

    assert handle.value(0) == [None, None]


def test_middleware_sees_a_suspension_as_a_snooze(run_script, settings):
    options = settings.TASKS["default"]["OPTIONS"] | {"middleware": ["tests.steps.scripts.recording"]}
    settings.TASKS = {"default": settings.TASKS["default"] | {"OPTIONS": options}}
    scripts.outcomes.clear()

    run_script(lambda context: context.sleep(3600))

    assert scripts.outcomes == ["snoozed"]


@pytest.mark.slow
@pytest.mark.sqlite
def test_asyncio_tasks_with_steps_are_cancelled_and_awaited_before_the_task_waits(run_script):
    log = []

    async def body(context):
        begun = asyncio.Event()

        async def slow():
            begun.set()
            try:
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(0)
                log.append((await Task.objects.aget()).status)

        child = asyncio.create_task(context.astep("slow", slow))
        await begun.wait()
        await context.asleep(3600)
        await child

    run_script(body)

    assert log == [TaskStatus.RUNNING]
    assert Task.objects.get().waits_for == "sleep"
    assert list(TaskStep.objects.values_list("name", flat=True)) == ["sleep"]


@pytest.mark.slow
@pytest.mark.sqlite
def test_step_mismatch_is_never_retried_by_a_policy_for_every_error(run_script, entries):
    names = iter(["first", "second", "third"])

    def body(context):
        context.step(next(names), note, "effect")
        raise Refused

    policy = RetryPolicy.constant(0, max_retries=5, auto_retry_for=["*"])
    handle = run_script(body, retry_policy=policy)

    error = error_of(handle)
    assert error.error_code == "STEP_MISMATCH"
    assert "'second'" in error.message
    assert "'first'" in error.message
    assert entries() == ["effect"]
    assert TaskAttempt.objects.count() == 2


def test_a_body_that_catches_step_mismatch_ends_with_it(run_script, entries):
    names = iter(["first", "second"])

    def body(context):
        try:
            context.step(next(names), note, "effect")
        except BaseException:
            return "caught"
        raise Refused

    handle = run_script(body, attempts=2)

    assert error_of(handle).error_code == "STEP_MISMATCH"


def test_kept_steps_that_the_body_does_not_meet_are_a_warning_at_its_end(run_script, caplog):
    def body(context):
        context.step("kept", note, "kept")
        if context.attempt == 1:
            context.step("gone", note, "gone")
            raise Refused
        return "done"

    handle = run_script(body, attempts=2)

    assert handle.value(0) == "done"
    assert "step kept but not asked for" in caplog.text
    assert "step=gone" in caplog.text


@pytest.mark.slow
@pytest.mark.sqlite
def test_patched_is_true_in_runs_that_begin_after_the_change_and_stays_false_in_older_ones(run_script):
    is_new_code, seen = [], []

    def body(context):
        if is_new_code:
            seen.append(context.patched("change"))
        context.step("first", note, "first")
        context.sleep(3600)
        if is_new_code:
            seen.append(context.patched("change"))
        context.step("second", note, "second")

    old = run_script(body)
    is_new_code.append(True)
    drain(scheduled=True)
    assert old.get(0).is_ok()
    assert seen == [False, False]

    new = run_script(body)
    drain(scheduled=True)
    assert new.get(0).is_ok()
    assert seen[2:] == [True, True, True]


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_patch_that_the_code_no_longer_asks_for_stops_no_run(run_script):
    is_cleaned = []

    def body(context):
        if not is_cleaned:
            context.patched("change")
        context.step("first", note, "first")
        context.sleep(3600)
        context.step("second", note, "second")

    handle = run_script(body)
    is_cleaned.append(True)
    drain(scheduled=True)

    assert handle.get(0).is_ok()


# Costs.


def test_an_atomic_step_adds_no_statement_but_those_of_its_transaction(run_script):
    def body(context):
        context.step("number", int, 1, atomic=True)

    with CaptureQueriesContext(connection) as captured:
        run_script(body)

    sent = [query["sql"] for query in captured]
    (record,) = [index for index, sql in enumerate(sent) if sql.startswith("INSERT") and "horsies_task_steps" in sql]
    assert sent[record + 1].startswith("RELEASE SAVEPOINT")  # the record is last before the commit
    expected = 1 if connection.vendor == "postgresql" else 2  # SQLite has to write first
    assert sent[record - expected].startswith("SAVEPOINT")
