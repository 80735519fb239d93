"""Retry policies: their bounds, delays and stored form; and the options that ``@task`` accepts."""

import json
import math
from datetime import timedelta

import pytest
from django.utils import timezone
from hypothesis import given, settings
from hypothesis import strategies as st

from horsies_django import OperationalCode, OutcomeCode, RetryPolicy, task
from horsies_django.core.compat import InvalidTask
from horsies_django.models import Task, TaskAttempt
from tests.enqueue import jobs
from tests.jobs import tasks
from tests.naming import stable
from tests.worker.execution.jobs import succeeds_at_last

GOOD = {"max_retries": 2, "intervals": (1, 2), "auto_retry_for": ("X",)}
NAN, INFINITY = float("nan"), float("inf")


def problems(**changes):
    with pytest.raises(ValueError, match=r"RetryPolicy: .*allowed") as caught:
        RetryPolicy(**{**GOOD, **changes})
    return str(caught.value)


# Bounds.


def test_the_default_policy_retries_after_one_five_and_fifteen_minutes():
    policy = RetryPolicy(auto_retry_for=["X"])

    assert (policy.max_retries, policy.intervals, policy.backoff_strategy) == (3, (60, 300, 900), "fixed")
    assert (policy.jitter, policy.max_delay_seconds) == (True, None)
    assert RetryPolicy.fixed(auto_retry_for=["X"]) == policy


def test_a_policy_requires_auto_retry_for():
    with pytest.raises(TypeError, match="auto_retry_for"):
        RetryPolicy()


@pytest.mark.parametrize("count", [1, 999])
def test_a_policy_allows_1_to_999_retries(count):
    fixed = RetryPolicy.fixed([5] * count, auto_retry_for=["X"])
    exponential = RetryPolicy.exponential(max_retries=count, auto_retry_for=["X"])

    assert fixed.max_retries == exponential.max_retries == count


@pytest.mark.parametrize("count", [0, 1000, -1, 1.5, 2.0, "3", None, True], ids=repr)
def test_a_number_of_retries_outside_1_to_999_is_rejected(count):
    message = problems(max_retries=count, intervals=(5,), backoff_strategy="exponential")

    assert f"max_retries is {count!r}; allowed: a whole number from 1 to 999." in message


@pytest.mark.parametrize("seconds", [1, 1.0, 86_400])
def test_an_interval_of_a_second_to_a_day_is_allowed(seconds):
    policy = RetryPolicy.fixed([seconds], auto_retry_for=["X"], jitter=False)

    assert policy.delay(1) == seconds


@pytest.mark.parametrize("seconds", [0, 0.99, 86_400.5, -1, NAN, INFINITY])
def test_an_interval_below_a_second_or_above_a_day_is_rejected(seconds):
    message = problems(intervals=(1, seconds))

    assert f"intervals has {seconds:g}; allowed: 1 to 86400 seconds." in message


@pytest.mark.parametrize("intervals", [("soon", 2), (None, 2), 60, None, ([1], 2), (timedelta(1), 2)], ids=repr)
def test_intervals_that_are_not_a_list_of_numbers_are_rejected(intervals):
    message = problems(intervals=intervals)

    assert "intervals" in message


@pytest.mark.parametrize("seconds", [0, 0.99, 86_401, -1, NAN, INFINITY, "long", timedelta(1)], ids=repr)
def test_an_invalid_max_delay_is_rejected(seconds):
    message = problems(max_delay_seconds=seconds)

    assert f"max_delay_seconds is {seconds!r}; allowed: 1 to 86400, or None." in message


@pytest.mark.parametrize("seconds", [1, 86_400, None])
def test_a_max_delay_is_a_second_to_a_day_or_none(seconds):
    policy = RetryPolicy(**GOOD, max_delay_seconds=seconds)

    assert policy.max_delay_seconds == seconds


@pytest.mark.parametrize("codes", [(), [], "", [""], ["X", ""]], ids=repr)
def test_missing_and_empty_retry_codes_are_rejected(codes):
    message = problems(auto_retry_for=codes)

    assert "auto_retry_for is " in message
    assert "allowed: at least one" in message


@pytest.mark.parametrize("codes", [None, 5, [None], [5], ["a\0b"], ["\ud800"]], ids=ascii)
def test_retry_codes_that_cannot_be_stored_as_text_are_rejected(codes):
    message = problems(auto_retry_for=codes)

    assert "auto_retry_for" in message


@pytest.mark.parametrize("strategy", ["linear", "", None, "FIXED", "constant", "function"], ids=repr)
def test_an_unknown_backoff_strategy_is_rejected(strategy):
    message = problems(backoff_strategy=strategy, intervals=(5,))

    assert f"backoff_strategy is {strategy!r}; allowed: 'fixed' or 'exponential'." in message


@pytest.mark.parametrize("jitter", ["no", 1, None], ids=repr)
def test_a_jitter_that_is_not_a_bool_is_rejected(jitter):
    message = problems(jitter=jitter)

    assert f"jitter is {jitter!r}; allowed: True or False." in message


@pytest.mark.parametrize("intervals", [(), (1,), (1, 2, 3)])
def test_a_fixed_policy_needs_one_interval_for_each_retry(intervals):
    message = problems(max_retries=2, intervals=intervals)

    assert f"intervals has {len(intervals)} entries; allowed: one for each of 2 retries." in message


@pytest.mark.parametrize("intervals", [(), (1, 2)])
def test_an_exponential_policy_needs_exactly_one_base_interval(intervals):
    message = problems(backoff_strategy="exponential", intervals=intervals)

    assert f"intervals has {len(intervals)} entries; allowed: exactly one base interval." in message


def test_one_error_names_every_invalid_field_of_a_policy():
    message = problems(
        max_retries=0, intervals=(0.5, 90_000), backoff_strategy="slow", max_delay_seconds=0, auto_retry_for=()
    )

    for problem in (
        "max_retries is 0",
        "has 0.5",
        "has 90000",
        "is 'slow'",
        "max_delay_seconds is 0",
        "auto_retry_for is",
    ):
        assert message.count(problem) == 1, problem


@pytest.mark.parametrize("make", [RetryPolicy.fixed, RetryPolicy.exponential])
def test_auto_retry_for_accepts_a_single_code_as_a_string(make):
    policy = make(auto_retry_for="DOWN")

    assert policy.auto_retry_for == ("DOWN",)


# Delays.


def test_a_fixed_policy_waits_its_intervals_in_order():
    policy = RetryPolicy.fixed([5, 1, 9], auto_retry_for=["X"], jitter=False)

    delays = [policy.delay(retry) for retry in (1, 2, 3)]

    assert delays == [5, 1, 9]


def test_an_exponential_policy_waits_2_4_8_seconds_and_5_minutes_at_most():
    policy = RetryPolicy.exponential(max_retries=20, auto_retry_for=["X"], jitter=False)

    delays = [policy.delay(retry) for retry in range(1, 21)]

    assert delays == [min(2 * 2 ** (attempts - 1), 300) for attempts in range(1, 21)]


@pytest.mark.parametrize(("base", "limit"), [(1, 10), (3, 1), (7.5, 86_400), (86_400, None), (2, None)])
def test_exponential_delays_follow_the_formula_for_any_base_and_limit(base, limit):
    policy = RetryPolicy.exponential(
        base_seconds=base, max_retries=20, max_delay_seconds=limit, auto_retry_for=["X"], jitter=False
    )

    delays = [policy.delay(retry) for retry in range(1, 21)]

    assert delays == [min(base * 2 ** (attempts - 1), limit or 86_400) for attempts in range(1, 21)]


def test_a_max_delay_caps_a_fixed_policy():
    policy = RetryPolicy(**{**GOOD, "intervals": (5, 500)}, max_delay_seconds=60, jitter=False)

    delays = [policy.delay(1), policy.delay(2)]

    assert delays == [5, 60]


@pytest.mark.parametrize(
    "policy",
    [
        RetryPolicy.fixed([100], auto_retry_for=["X"]),
        RetryPolicy.exponential(base_seconds=100, max_retries=1, auto_retry_for=["X"]),
    ],
    ids=["fixed", "exponential"],
)
def test_jitter_changes_a_delay_by_up_to_a_quarter_either_way(policy):
    delays = [policy.delay(1) for _ in range(2_000)]

    assert 75 <= min(delays) < 80
    assert 120 < max(delays) <= 125
    assert 97 < math.fsum(delays) / len(delays) < 103
    assert len(set(delays)) > 1_900


def test_jitter_never_exceeds_the_max_delay():
    policy = RetryPolicy.exponential(base_seconds=300, max_retries=5, auto_retry_for=["X"])

    delays = [policy.delay(retry) for retry in (1, 2, 3, 4, 5) for _ in range(200)]

    assert max(delays) == 300
    assert 225 <= min(delays) < 250


# Which codes.


def test_a_policy_covers_only_the_codes_it_lists():
    policy = RetryPolicy.fixed([1], auto_retry_for=["DOWN", OperationalCode.WORKER_CRASHED])

    covered = {code for code in ("DOWN", "WORKER_CRASHED", "down", "OTHER", "TASK_TIMEOUT") if policy.covers(code)}

    assert covered == {"DOWN", "WORKER_CRASHED"}


def test_the_wildcard_covers_every_code_that_a_retry_may_fix():
    policy = jobs.with_attempts.stored_policy()

    assert all(
        policy.covers(code) for code in ("MINE", "UNHANDLED_EXCEPTION", "WORKER_CRASHED", OutcomeCode.TASK_TIMEOUT)
    )
    assert not any(policy.covers(code) for code in ("WORKER_RESOLUTION_ERROR", "WORKER_SERIALIZATION_ERROR"))


def test_a_code_that_no_retry_can_fix_is_covered_only_if_listed_by_name():
    policy = RetryPolicy.fixed([1], auto_retry_for=["*", "WORKER_RESOLUTION_ERROR"])

    assert policy.covers("WORKER_RESOLUTION_ERROR")
    assert not policy.covers("WORKER_SERIALIZATION_ERROR")


# The stored form.

SECONDS = st.floats(1, 86_400)
CODES = st.lists(st.text("ABC_", min_size=1), min_size=1, max_size=3)
POLICIES = st.builds(
    RetryPolicy.fixed,
    st.lists(SECONDS, min_size=1, max_size=20),
    auto_retry_for=CODES,
    jitter=st.booleans(),
) | st.builds(
    RetryPolicy.exponential,
    SECONDS,
    max_retries=st.integers(1, 20),
    max_delay_seconds=st.none() | SECONDS,
    auto_retry_for=CODES,
    jitter=st.booleans(),
)


@pytest.mark.slow
@given(POLICIES)
@settings(max_examples=80, deadline=None)
def test_any_policy_survives_a_round_trip_through_json(policy):
    stored = json.dumps(policy.as_json())

    assert RetryPolicy.from_json(json.loads(stored)) == policy
    assert RetryPolicy.read(stored, "id") == policy
    assert RetryPolicy.read(json.loads(stored), "id") == policy


@pytest.mark.slow
@pytest.mark.django_db
def test_a_policy_survives_a_round_trip_through_its_row():
    policy = RetryPolicy.exponential(
        3.5, max_retries=4, max_delay_seconds=None, auto_retry_for=["A", "B"], jitter=False
    )

    jobs.triple.with_options(retry_policy=policy).send(1)

    row = Task.objects.get()
    assert RetryPolicy.read(row.retry_policy, row.pk) == policy
    assert row.max_retries == 4


@pytest.mark.parametrize(
    "stored", [[], 5, "text", "[", {"max_retries": 0}, {"colour": 1}, {"auto_retry_for": None}, True], ids=repr
)
def test_a_damaged_stored_policy_is_logged_and_ignored(stored, caplog):
    policy = RetryPolicy.read(stored, "the-id")

    assert policy is None
    assert "the-id" in caplog.text


@pytest.mark.parametrize("stored", [None, {}, "{}"], ids=repr)
def test_an_empty_stored_policy_is_ignored_without_a_log_line(stored, caplog):
    policy = RetryPolicy.read(stored, "id")

    assert policy is None
    assert not caplog.records


# Retries by a worker.


@pytest.mark.slow
def test_a_listed_code_is_retried_after_the_policys_delay(drain):
    policy = RetryPolicy.fixed([60], auto_retry_for=["UNHANDLED_EXCEPTION"], jitter=False)
    handle = tasks.fail.with_options(retry_policy=policy).send()

    drain()

    row, attempt = Task.objects.get(), TaskAttempt.objects.get()
    assert (handle.status(), row.retry_count, attempt.will_retry) == ("PENDING", 1, True)
    assert abs((row.next_retry_at - attempt.finished_at).total_seconds() - 60) < 5
    assert row.enqueued_at == row.next_retry_at
    assert list(Task.objects.retrying()) == [row]


@pytest.mark.parametrize(
    ("codes", "good_until"),
    [(["OTHER"], None), (["UNHANDLED_EXCEPTION"], timedelta(seconds=30))],
    ids=["unlisted code", "deadline before the next attempt"],
)
def test_an_unlisted_code_or_a_near_deadline_fails_the_task_without_a_retry(drain, codes, good_until):
    policy = RetryPolicy.fixed([60], auto_retry_for=codes, jitter=False)
    deadline = good_until and timezone.now() + good_until
    handle = tasks.fail.with_options(retry_policy=policy, good_until=deadline).send()

    drain()

    assert handle.get(0).err.error_code == "UNHANDLED_EXCEPTION"
    assert (handle.status(), TaskAttempt.objects.get().will_retry) == ("FAILED", False)


@pytest.mark.slow
def test_the_context_has_the_number_of_attempts_and_marks_the_last_one(drain):
    once = succeeds_at_last.with_options(max_attempts=1).send()
    thrice = succeeds_at_last.send()

    drain()

    assert (once.value(0), thrice.value(0)) == ([1, 1], [3, 3])


@pytest.mark.slow
def test_a_call_with_its_own_attempts_keeps_the_backoff_of_its_task(drain):
    computed = tasks.choosy.with_options(max_attempts=9).send("choosy")
    at_once = tasks.flaky.with_options(max_attempts=5).send("at once", fails=4)
    later = tasks.flaky.with_options(backoff=1).send("later", fails=1)

    drain()  # it waits for no retry

    assert computed.get(0).err.message == "choosy"
    assert at_once.value(0) == 5
    row = Task.objects.get(pk=later.id)
    assert row.enqueued_at - row.attempts.get(attempt=1).finished_at > timedelta(seconds=0.9)


def test_a_task_fails_after_its_last_attempt(drain):
    handle = tasks.flaky.send("s4_30", fails=5)

    drain()

    assert handle.status() == "FAILED"
    assert list(TaskAttempt.objects.order_by("attempt").values_list("attempt", "will_retry")) == [
        (1, True),
        (2, True),
        (3, False),
    ]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("options", "retries"),
    [
        ({}, 0),
        ({"max_attempts": 1}, 0),
        ({"max_attempts": 5}, 4),
        ({"max_attempts": 1000}, 999),
        ({"backoff": 5}, 2),
        ({"backoff": lambda exception, result: 1.0}, 2),
        ({"backoff": RetryPolicy.fixed([1, 1, 1, 1], auto_retry_for=["X"])}, 4),
        ({"max_attempts": 1, "backoff": 5}, 0),
        ({"retry_policy": RetryPolicy.fixed([1], auto_retry_for=["X"])}, 1),
    ],
    ids=stable,
)
def test_the_row_stores_the_number_of_retries(options, retries):
    job = task(**options)(tasks.noop.func)

    job.send()

    assert Task.objects.get().max_retries == retries


# Options of @task.

POLICY = RetryPolicy.fixed([1], auto_retry_for=["X"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_attempts": 0}, "max_attempts is 0; allowed: a whole number from 1 to 1000."),
        ({"max_attempts": 1001}, "max_attempts is 1001; allowed: a whole number from 1 to 1000."),
        ({"max_attempts": -1}, "max_attempts is -1; "),
        ({"max_attempts": True}, "max_attempts is True; "),
        ({"max_attempts": 3.0}, "max_attempts is 3.0; "),
        ({"max_attempts": "3"}, "max_attempts is '3'; "),
        ({"backoff": -1}, "backoff is -1; allowed: seconds from 0 on, a RetryPolicy or a callable."),
        ({"backoff": "soon"}, "backoff is 'soon'; "),
        ({"backoff": True}, "backoff is True; "),
        ({"backoff": NAN}, "backoff is nan; "),
        ({"backoff": INFINITY}, "backoff is inf; "),
        ({"backoff": [1, 2]}, "backoff is [1, 2]; "),
        (
            {"backoff": lambda: 1},
            ": too many positional arguments; allowed: a function (exception, task_result) or (context).",
        ),
        ({"backoff": lambda one, two, three: 1}, ": missing a required argument: 'two'; allowed: "),
        ({"backoff": tasks.anoop.func}, ": it is a coroutine function; allowed: a function (exception, task_result) "),
        ({"retry_policy": 3}, "retry_policy is 3; allowed: a RetryPolicy."),
        ({"retry_policy": RetryPolicy}, "retry_policy is <class "),
        (
            {"retry_policy": POLICY, "max_attempts": 3},
            "retry_policy is set; allowed with it: neither max_attempts",
        ),
        ({"retry_policy": POLICY, "backoff": 3}, "retry_policy is set; allowed with it: neither max_attempts"),
        ({"backoff": POLICY, "max_attempts": 3}, "backoff is a RetryPolicy, which has its own max_retries"),
        ({"timeout": 0}, "timeout is 0; allowed: a positive number of seconds, 3153600000 at most, or None."),
        ({"timeout": -5}, "timeout is -5; "),
        ({"timeout": "30"}, "timeout is '30'; "),
        ({"timeout": True}, "timeout is True; "),
        ({"timeout": NAN}, "timeout is nan; "),
        ({"timeout": timedelta(seconds=5)}, "timeout is datetime.timedelta"),
        (
            {"exception_mapper": [OSError]},
            "exception_mapper is [<class 'OSError'>]; allowed: a dict of exception class",
        ),
        ({"exception_mapper": {"OSError": "X"}}, "exception_mapper has the key 'OSError'; allowed: exception classes."),
        ({"exception_mapper": {int: "X"}}, "exception_mapper has the key <class 'int'>; "),
        ({"exception_mapper": {OSError: 5}}, "exception_mapper has the code 5; allowed: a text"),
        ({"exception_mapper": {OSError: []}}, "exception_mapper has the code []; allowed: a text"),
        ({"exception_mapper": {OSError: ""}}, "exception_mapper has the code ''; "),
        ({"exception_mapper": {OSError: "x" * 101}}, "exception_mapper has the code 'xxx"),
        ({"exception_mapper": {OSError: "WORKER_CRASHED"}}, "not one of the library's own codes."),
        ({"exception_mapper": {OSError: OutcomeCode.TASK_TIMEOUT}}, "not one of the library's own codes."),
        ({"exception_mapper": {OSError: "a\0b"}}, "exception_mapper has the code 'a\\x00b'; "),
        ({"exception_mapper": {OSError: "\ud800"}}, "exception_mapper has the code '\\ud800'; "),
        ({"retention": "soon"}, "retention: 'soon' is not a duration; allowed: seconds, a timedelta, "),
        ({"retention": -1}, "retention: -1 is not a duration; "),
        ({"metadata": ["x"]}, "metadata is ['x']; allowed: a dict"),
        ({"queue_name": "x" * 101}, "queue_name is 'xxx"),
    ],
    ids=lambda value: ascii(stable(value))[:70],
)
def test_the_decorator_rejects_an_invalid_task_option(options, message):
    with pytest.raises(InvalidTask) as caught:
        task(**options)(tasks.noop.func)

    assert message in str(caught.value)
    assert "allowed" in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 1},
        {"max_attempts": 21, "backoff": 0},
        {"backoff": 0.5},
        {"backoff": POLICY},
        {"retry_policy": POLICY},
        {"timeout": 0.1},
        {"retention": "7d", "metadata": {}},
        {"exception_mapper": {OSError: "x" * 100, BaseException: "ANY"}},
        {"max_attempts": None, "backoff": None, "retry_policy": None, "timeout": None, "retention": None},
    ],
    ids=repr,
)
def test_the_decorator_keeps_valid_task_options(options):
    job = task(**options)(tasks.noop.func)

    assert {name: getattr(job, name) for name in options} == options


@pytest.mark.parametrize("option", ["good_until", "run_after", "unique_key"])
@pytest.mark.parametrize("value", [None, timezone.now()], ids=["none", "a time"])
def test_the_decorator_rejects_an_option_of_a_call_with_a_hint(option, value):
    with pytest.raises(TypeError) as caught:
        task(**{option: value})(tasks.noop.func)

    assert f"@task can't fix {option} for every call" in str(caught.value)
    assert f"with_options({option}=…)" in str(caught.value)


def test_the_decorator_names_every_unknown_option_and_the_known_ones():
    with pytest.raises(TypeError) as caught:
        task(retries=3, backof=1)(tasks.noop.func)

    assert "@task got unknown option backof, retries; allowed: " in str(caught.value)
    assert all(f"{known}" in str(caught.value) for known in ("max_attempts", "backoff", "timeout", "metadata"))


def test_the_error_for_an_unknown_option_lists_the_frameworks_options():
    with pytest.raises(TypeError) as caught:
        task(prioritty=3)(tasks.noop.func)

    allowed = str(caught.value).partition("allowed: ")[2]
    assert {"priority", "queue_name", "backend", "takes_context"} <= set(allowed.rstrip(".").split(", "))
