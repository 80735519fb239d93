"""Every mistake in the settings is reported at once, with the allowed values and a hint."""

import os
import subprocess
import sys
from datetime import timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command

from horsies_django import RetryPolicy, task, testing
from horsies_django.core.compat import InvalidTask
from horsies_django.core.options import Options
from horsies_django.core.read_settings import parse
from tests.conftest import ROOT
from tests.jobs import tasks

WRONG_OPTIONS = [
    ({"colour": 1}, "['colour'] is not an option"),
    ({"database": "nope"}, "['database'] is 'nope'; allowed: 'default'"),
    ({"serializer": "pickle"}, "['serializer'] is 'pickle'; allowed: 'json' or 'rich'"),
    ({"queues": {"emials": {}}}, "['emials'] is not an option; allowed: the names in QUEUES: default, emails"),
    (
        {"queues": {"emails": {"priority": 1000}}},
        "['emails']['priority'] is 1000; allowed: a whole number from -100 to 100",
    ),
    ({"queues": []}, "['queues'] is []"),
    ({"recovery": {"check_interval_ms": "30"}}, "['check_interval_ms'] is '30'"),
    ({"recovery": {"auto_fail_stale_running": 1}}, "['auto_fail_stale_running'] is 1; allowed: True or False"),
    ({"recovery": None}, "['recovery'] is None; allowed: a dict"),
    ({"retention": {"completed": "7 fortnights"}}, "['completed'] is '7 fortnights'"),
    ({"retention": {"failed": -1}}, "['failed'] is -1"),
    ({"worker": {"threads": True}}, "['threads'] is True"),
    ({"worker": {"treads": 8}}, "['treads'] is not an option"),
    ({"worker": {"poll_interval": float("nan")}}, "['poll_interval'] is nan"),
    ({"recovery": {"claimed_stale_threshold_ms": 59_999}}, "is 59999; allowed: at least 60000, twice"),
]


@pytest.mark.parametrize(("options", "message"), WRONG_OPTIONS, ids=[message for _, message in WRONG_OPTIONS])
def test_a_wrong_option_is_one_problem_with_a_path_a_value_and_a_hint(options, message):
    (problem,) = parse("default", options, {"default", "emails"}).problems

    assert str(problem).startswith("TASKS['default']['OPTIONS'][")
    assert message in str(problem)
    assert problem.hint


def test_a_threshold_is_at_least_twice_its_interval():
    def problems(interval, threshold):
        recovery = {"runner_heartbeat_interval_ms": interval, "running_stale_threshold_ms": threshold}
        return parse("default", {"recovery": recovery}, set()).problems

    assert len(problems(30_000, 30_000)) == 1
    assert problems(30_000, 60_000) == ()


def test_recovery_has_its_documented_defaults():
    recovery = Options().recovery

    assert (recovery.auto_requeue_stale_claimed, recovery.auto_fail_stale_running) == (True, True)
    assert (recovery.claimed_stale_threshold_ms, recovery.claimer_heartbeat_interval_ms) == (120_000, 30_000)
    assert (recovery.running_stale_threshold_ms, recovery.runner_heartbeat_interval_ms) == (300_000, 30_000)
    assert (recovery.check_interval_ms, recovery.heartbeat_retention_hours) == (30_000, 24)


def test_a_duration_can_be_a_text_seconds_or_a_timedelta():
    def retention(value):
        return parse("default", {"retention": {"completed": value}}, set()).options.retention.completed

    assert retention("7d") == retention(604_800) == retention(timedelta(days=7)) == timedelta(days=7)
    assert retention(0) == timedelta(0)
    assert retention(None) is None


@pytest.mark.slow
@pytest.mark.once
def test_check_prints_every_mistake_at_once(tmp_path):
    (tmp_path / "wrong.py").write_text(
        "from tests.settings import *\n"
        "TASKS = {'default': {'BACKEND': 'horsies_django.backend.HorsiesBackend', 'QUEUES': [], 'OPTIONS': {\n"
        "  'colour': 1, 'worker': {'threads': 0, 'treads': 1}, 'retention': {'failed': 'long'}}}}\n"
        "USE_TZ = False\n"
    )
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "wrong", "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}

    process = subprocess.run(
        [sys.executable, "-m", "django", "check"], env=environment, capture_output=True, text=True, check=False
    )

    assert process.returncode == 1
    assert process.stderr.count("horsies.E00") == 5
    assert process.stderr.count("HINT") == 5
    for text in (
        "['colour']",
        "['threads'] is 0",
        "Did you mean 'threads'?",
        "['failed'] is 'long'",
        "USE_TZ is False",
    ):
        assert text in process.stderr


def test_a_backend_with_wrong_options_raises_when_it_is_used(settings):
    settings.TASKS = {
        "default": {
            "BACKEND": "horsies_django.backend.HorsiesBackend",
            "QUEUES": [],
            "OPTIONS": {"worker": {"threads": 0}},
        }
    }

    with pytest.raises(Exception, match=r"\['threads'\] is 0; allowed"):
        tasks.noop.send()


@pytest.mark.parametrize(
    "use",
    [
        tasks.noop.send,
        lambda: tasks.noop.enqueue(),
        lambda: tasks.noop.send_many([{}]),
        lambda: call_command("horsies_worker", "--once", skip_checks=True),
        lambda: call_command("horsies_reaper", "--once"),
        lambda: call_command("horsies_scheduler", "--once"),
        lambda: call_command("horsies_status"),
        lambda: call_command("horsies_prune"),
        lambda: call_command("horsies_queue", "list"),
        lambda: call_command("horsies_schedule", "list"),
        lambda: call_command("horsies_task", "list"),
        lambda: call_command("horsies_check_deploy"),
        lambda: testing.drain(),
    ],
)
@pytest.mark.once
@pytest.mark.django_db
def test_sends_workers_and_commands_refuse_a_project_without_time_zones(settings, use):
    settings.USE_TZ, settings.TASKS = False, {**settings.TASKS}

    with pytest.raises((ImproperlyConfigured, CommandError), match="USE_TZ is False; allowed: True"):
        use()


# Tasks and policies.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_attempts": 0}, "max_attempts is 0"),
        ({"max_attempts": True}, "max_attempts is True"),
        ({"max_attempts": 1001}, "from 1 to 1000"),
        ({"backoff": -1}, "backoff is -1"),
        ({"backoff": "soon"}, "backoff is 'soon'"),
        ({"retry_policy": 3}, "retry_policy is 3"),
        ({"timeout": 0}, "timeout is 0"),
        ({"retention": "soon"}, "'soon' is not a duration"),
        ({"exception_mapper": {"X": "Y"}}, "allowed: exception classes"),
        ({"exception_mapper": {OSError: "WORKER_CRASHED"}}, "the library's own codes"),
        ({"exception_mapper": {OSError: ""}}, "has the code ''"),
        ({"queue_name": "x" * 101}, "queue_name is"),
    ],
    ids=str,
)
def test_the_decorator_refuses_a_bad_option(options, message):
    with pytest.raises(InvalidTask, match=message.replace("(", r"\(")):
        task(**options)(tasks.noop.func)


def test_a_function_that_cannot_be_imported_by_its_name_is_refused():
    class Holder:
        def method(self):
            pass

    Holder.method.__qualname__ = "Holder.method"
    anonymous = eval("lambda: None")
    for func in (anonymous, Holder.method):
        with pytest.raises(InvalidTask, match="under its own name"):
            task(func)


@pytest.mark.parametrize("option", ["good_until", "unique_key", "run_after"])
def test_the_decorator_refuses_an_option_for_one_send_with_a_hint(option):
    with pytest.raises(TypeError, match="with_options"):
        task(**{option: None})(tasks.noop.func)


def test_the_error_for_an_unknown_option_names_the_allowed_ones():
    with pytest.raises(TypeError, match="unknown option retries; allowed: aliases, atomic, backend, backoff, "):
        task(retries=3)(tasks.noop.func)
    with pytest.raises(TypeError, match="unknown option eta; allowed: "):
        tasks.noop.with_options(eta=3)


def test_a_fixed_policy_has_one_interval_for_each_retry():
    policy = RetryPolicy.fixed([1, 5, 9], auto_retry_for=["X"], jitter=False)

    assert [policy.delay(retry) for retry in (1, 2, 3)] == [1, 5, 9]
    assert policy.max_retries == 3


def test_an_exponential_policy_doubles_up_to_its_limit():
    policy = RetryPolicy.exponential(max_retries=10, auto_retry_for=["X"], jitter=False)

    assert [policy.delay(retry) for retry in range(1, 11)] == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_jitter_changes_a_delay_by_at_most_a_quarter_either_way():
    policy = RetryPolicy.fixed([100], auto_retry_for=["X"])
    delays = [policy.delay(1) for _ in range(500)]

    assert 75 <= min(delays) < 90
    assert 110 < max(delays) <= 125


def test_one_error_names_every_bad_field_of_a_policy():
    with pytest.raises(ValueError, match=r"max_retries is 0.*backoff_strategy is 'slow'.*0\.5.*auto_retry_for"):
        RetryPolicy(max_retries=0, intervals=(0.5,), backoff_strategy="slow", auto_retry_for=())


def test_a_stored_policy_is_read_back_unchanged():
    policy = RetryPolicy.exponential(base_seconds=3, max_retries=4, max_delay_seconds=None, auto_retry_for=["A", "B"])

    assert RetryPolicy.read(policy.as_json(), "id") == policy
    assert RetryPolicy.read({"no": "policy"}, "id") is None


def test_retrying_any_code_excludes_errors_that_a_retry_cannot_fix():
    policy = tasks.flaky.stored_policy()

    assert policy.covers("WORKER_CRASHED")
    assert policy.covers("MINE")
    assert not policy.covers("WORKER_RESOLUTION_ERROR")
