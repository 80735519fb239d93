"""``OPTIONS["defaults"]``: the options of tasks that set none themselves."""

import datetime

import pytest
from django.core.management import call_command

from horsies_django import RetryPolicy, task
from horsies_django.core.compat import task_backends
from horsies_django.models import Task, TaskAttempt
from tests.enqueue import jobs
from tests.jobs import tasks

pytestmark = pytest.mark.django_db(transaction=True)

POLICY = RetryPolicy.fixed([7, 8], auto_retry_for=["X"])


@pytest.fixture
def defaults(settings):
    def set_defaults(**defaults):
        backend = "horsies_django.backend.HorsiesBackend"
        settings.TASKS = {"default": {"BACKEND": backend, "OPTIONS": {"defaults": defaults}}}

    return set_defaults


def delay_for(exception, task_result):
    return 7


def sent(**options):
    """Send a task that has only these options, and return its row."""
    handle = task(**options)(jobs.triple.func).send(1)
    return Task.objects.get(pk=handle.id)


def test_a_task_without_options_gets_the_projects_defaults(defaults):
    defaults(max_attempts=4, backoff=5, timeout=60)

    row = sent()

    assert (row.max_retries, row.retry_policy["intervals"], row.retry_policy["backoff_strategy"]) == (
        3,
        [5.0],
        "constant",
    )
    assert row.timeout == 60


@pytest.mark.parametrize(
    ("backoff", "strategy", "delays"),
    [
        (0, "constant", [0, 0]),
        (0.5, "constant", [0.5, 0.5]),
        (90_000, "constant", [90_000, 90_000]),
        (delay_for, "function", [2, 4]),
        (None, "exponential", [2, 4]),
    ],
)
def test_a_row_has_the_policy_that_its_short_form_means(backoff, strategy, delays):
    row = sent(max_attempts=3, backoff=backoff)

    policy = RetryPolicy.from_json(row.retry_policy)
    assert (policy.backoff_strategy, [policy.planned(retry) for retry in (1, 2)]) == (strategy, delays)
    assert policy.jitter is (strategy != "constant")


@pytest.mark.parametrize(
    ("options", "retries", "intervals"),
    [
        ({"max_attempts": 1}, 0, None),
        ({"max_attempts": 2}, 1, [5.0]),
        ({"backoff": 9}, 3, [9.0]),
        ({"retry_policy": POLICY}, 2, [7.0, 8.0]),
        ({"backoff": POLICY}, 2, [7.0, 8.0]),
    ],
    ids=repr,
)
def test_each_option_of_a_task_overrides_its_default(defaults, options, retries, intervals):
    defaults(max_attempts=4, backoff=5, timeout=60)

    row = sent(timeout=7, retention=None, **options)

    assert row.max_retries == retries
    assert (row.retry_policy or {}).get("intervals") == intervals
    assert (row.timeout, row.retention > datetime.timedelta(days=10_000)) == (7, True)


def test_a_default_retry_policy_sets_the_delays_of_tasks_that_set_none(defaults):
    defaults(retry_policy=POLICY)

    rows = [sent(), sent(max_attempts=1), sent(max_attempts=5), sent(max_attempts=5, backoff=9)]

    assert [row.max_retries for row in rows] == [2, 0, 4, 4]
    delays = [(row.retry_policy or {}).get("intervals") for row in rows]
    assert delays == [[7.0, 8.0], None, [7.0, 8.0, 8.0, 8.0], [9.0]]
    # max_attempts alone retries any failure.
    assert [row.retry_policy.get("auto_retry_for") for row in rows] == [["X"], None, ["*"], ["*"]]


@pytest.mark.once
def test_the_task_of_a_result_equals_the_sent_task_despite_the_defaults(defaults):
    defaults(max_attempts=4, backoff=5, timeout=60)
    job = jobs.triple
    differing = {"max_attempts": 1, "timeout": 8, "retention": "1h"}

    results = [each.enqueue(1) for each in (job, job.with_options(**differing))]

    assert results[0].task == job
    assert [job.get_result(result.id) for result in results] == results
    again = results[1].task
    assert (again.max_attempts, again.timeout, again.retention) == (1, 8, datetime.timedelta(hours=1))


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_worker_retries_a_task_by_the_defaults(defaults):
    defaults(max_attempts=3, backoff=0)
    handle = tasks.fail.send("why")

    call_command("horsies_worker", drain=True, verbosity=0)

    assert handle.status() == "FAILED"
    assert list(TaskAttempt.objects.order_by("attempt").values_list("will_retry", flat=True)) == [True, True, False]


def test_all_bad_defaults_are_reported_at_once(defaults):
    defaults(max_attempts=0, backof=5, retry_policy=3, timeout=-1)

    messages = [str(problem) for problem in task_backends["default"].parsed.problems]

    assert len(messages) == 4
    for key in ("max_attempts", "backof", "retry_policy", "timeout"):
        assert any(f"TASKS['default']['OPTIONS']['defaults']['{key}']" in message for message in messages)


def test_a_default_retry_policy_excludes_a_default_max_attempts(defaults):
    defaults(max_attempts=3, retry_policy=POLICY)

    (problem,) = task_backends["default"].parsed.problems

    assert "['defaults']['retry_policy']" in str(problem)
    assert "beside neither max_attempts nor backoff" in str(problem)
