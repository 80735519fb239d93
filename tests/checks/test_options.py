"""Each wrong option is one error with its path, its value, the allowed values and a hint."""

import dataclasses
from datetime import timedelta

import pytest
from django.core.checks import ERROR
from django.core.exceptions import ImproperlyConfigured

from horsies_django.core.compat import task_backends
from horsies_django.core.limits import RATE_ALLOWED
from horsies_django.core.options import (
    AboutOptions,
    AdminOptions,
    AttemptLogOptions,
    DefaultOptions,
    EmbeddedOptions,
    MetricsOptions,
    Options,
    QueueOptions,
    RecoveryOptions,
    RetentionOptions,
    WorkerOptions,
)
from horsies_django.models import Task
from tests.jobs import tasks

BACKEND = "horsies_django.backend.HorsiesBackend"
NAN, INFINITY = float("nan"), float("inf")

DURATION = 'seconds, a timedelta, a text like "90s", "12h", "7d", 0 (delete at once) or None (keep)'
NO_DURATIONS = ["7 fortnights", "7", "d", "-1d", "1.5h", -1, -0.1, True, [], NAN, INFINITY, 1e300, "99999999999999w"]
NO_DURATIONS.append(timedelta(days=-1))
WAIT = 'seconds, at least 1, a timedelta, a text like "90s", "12h", "7d", or None (never)'
LATENCY = 'seconds above 0, a timedelta, a text like "90s", "5m", or None (no warning)'


def whole(low, high, unit="", bad=()):
    allowed = f"a whole number from {low} to {high}{unit}"
    none = [] if "None" in unit else [None]
    return allowed, [low - 1, high + 1, str(low), float(low), True, NAN, *none, *bad]


def switch():
    return "True or False", [1, 0, "yes", None, "True"]


QUEUE_DURATION = f"{DURATION}, or a dict of them for completed, failed, cancelled, expired, or 'inherit'"
MAPPER = "a dict of exception class, or its dotted path, to an error code that is not one of the library's own"

#: Section, option, the allowed values as text, and values that are not allowed.
RULES = [
    ((), "database", "an alias of DATABASES", [5, None, "", ["default"]]),
    ((), "listen_database", "an alias of DATABASES", [5, None, ["default"]]),
    ((), "read_database", "an alias of DATABASES", [5, None, ["default"]]),
    ((), "serializer", "'json' or 'rich'", ["pickle", None, True, "JSON"]),
    ((), "exception_mapper", MAPPER, [None, [], {5: "CODE"}, {"no.such.Error": "CODE"}, {OSError: "WORKER_CRASHED"}]),
    ((), "middleware", "a list of dotted paths, the outermost first", [5, None, "a.b", ["undotted"], [5]]),
    ((), "max_payload_bytes", *whole(1_024, 250_000_000, ", or None (no limit)")),
    ((), "max_output_bytes", *whole(1_024, 250_000_000)),
    (
        ("attempt_log",),
        "level",
        "'DEBUG' or 'INFO' or 'WARNING' or 'ERROR' or 'CRITICAL'",
        ["LOUD", "info", 20, True, None],
    ),
    (("attempt_log",), "max_bytes", *whole(1_024, 16_777_216)),
    (
        ("attempt_log",),
        "loggers",
        'a list of names of loggers, like "shop"',
        ["shop", [""], ["."], ["shop."], [7], True, None],
    ),
    (("about", "about.Order"), "on_delete", "'cancel' or 'keep'", ["delete", None, True]),
    ((), "project", "at most 100 letters, digits, '.', '_' or '-'", [5, None, "a project", "x" * 101]),
    (
        (),
        "disable_undeclared_schedules_after",
        "10 to 3.1536e+07 (seconds), or None (never)",
        [0, 9.9, -1, "600", True, NAN, INFINITY],
    ),
    (("queues", "emails"), "priority", *whole(-100, 100)),
    (("queues", "emails"), "max_concurrency", *whole(0, 1_000_000, ", or None (no limit)")),
    (("queues", "emails"), "weight", *whole(1, 1_000)),
    (("queues", "emails"), "rate_limit", f"{RATE_ALLOWED}, or None (no limit)", [100, "", "100", "0/m", "5/w", True]),
    (("queues", "emails"), "latency_warning", LATENCY, [*NO_DURATIONS, 0, "0s", timedelta(0)]),
    (("queues", "emails"), "retention", QUEUE_DURATION, NO_DURATIONS),
    (("recovery",), "auto_requeue_stale_claimed", *switch()),
    (
        (),
        "modules",
        'a list of dotted names of modules, like "shop.jobs"',
        ["shop.jobs", [5], ["shop..jobs"], ["shop/jobs"], [""], None, {"a": 1}],
    ),
    ((), "version", "at most 64 characters, no control characters", ["x" * 65, "a\n", 5, None]),
    (("recovery",), "claimed_stale_threshold_ms", *whole(1_000, 3_600_000, " (milliseconds)")),
    (("recovery",), "claimer_heartbeat_interval_ms", *whole(100, 120_000, " (milliseconds)")),
    (("recovery",), "auto_fail_stale_running", *switch()),
    (("recovery",), "running_stale_threshold_ms", *whole(1_000, 7_200_000, " (milliseconds)")),
    (("recovery",), "runner_heartbeat_interval_ms", *whole(100, 120_000, " (milliseconds)")),
    (("recovery",), "check_interval_ms", *whole(100, 600_000, " (milliseconds)")),
    (("recovery",), "heartbeat_retention_hours", *whole(1, 8_760, ", or None (keep)")),
    (("recovery",), "paused_workflow_auto_cancel_after", WAIT, [*NO_DURATIONS, 0, 0.5, timedelta(0), "0s"]),
    (("retention",), "completed", DURATION, NO_DURATIONS),
    (("retention",), "failed", DURATION, NO_DURATIONS),
    (("retention",), "cancelled", DURATION, NO_DURATIONS),
    (("retention",), "expired", DURATION, NO_DURATIONS),
    (("worker",), "processes", *whole(1, 256)),
    (("worker",), "threads", *whole(1, 1_000)),
    (("worker",), "async_slots", *whole(1, 100_000)),
    (("worker",), "prefetch", *whole(0, 10_000)),
    (("worker",), "start_ahead", *whole(0, 5_000)),
    (("worker",), "poll_interval", "0.01 to 3600 (seconds)", [0, -1, 3_601, "1", None, True, NAN, INFINITY]),
    (("worker",), "order", "'priority' or 'strict' or 'weighted'", ["fair", None, True, 1]),
    (("worker",), "max_tasks_per_child", *whole(1, 1_000_000_000, ", or None (never replaced)")),
    (("worker",), "max_memory_mb", *whole(16, 1_000_000_000, ", or None (never replaced)")),
    (
        ("worker",),
        "task_timeout",
        "0.001 to 3.1536e+07 (seconds), or None (no limit)",
        [0, -1, "30", True, NAN, INFINITY],
    ),
    (("worker",), "timeout_grace", "0.1 to 3600 (seconds)", [0, -1, 3_601, "5", None, True, NAN, INFINITY]),
    (
        ("worker",),
        "stall_timeout",
        "3 to 3.1536e+07 (seconds), or None (running_stale_threshold_ms)",
        [0, 2.9, -1, "30", True, NAN, INFINITY],
    ),
    (("worker",), "shutdown_timeout", "0 to 86400 (seconds)", [-1, 86_401, "30", None, True, NAN, INFINITY]),
    (("worker",), "reaper", *switch()),
    (("worker",), "scheduler", *switch()),
    (("worker",), "fork", *switch()),
    (("defaults",), "max_attempts", *whole(1, 1_000, ", or None (no retries)")),
    (
        ("defaults",),
        "backoff",
        "0 to 86400 (seconds), or None (2, 4, 8 … seconds)",
        [-1, 86_401, "5", True, NAN, INFINITY],
    ),
    (("defaults",), "retry_policy", "a RetryPolicy, or None", [3, {}, "fixed"]),
    (
        ("defaults",),
        "timeout",
        "0.001 to 3.1536e+09 (seconds), or None (the worker's task_timeout)",
        [0, -1, "30", True, NAN, INFINITY],
    ),
    (
        ("worker",),
        "conn_max_age",
        "0 to 3.1536e+07 (seconds), or None (kept), or 'inherit' (as DATABASES says)",
        [-1, 31_536_001, "60", True, NAN, INFINITY],
    ),
    (("worker",), "reset_sessions", *switch()),
    (("embedded",), "when", "'runserver' or None", ["always", True, 1]),
    (("embedded",), "threads", *whole(1, 1_000)),
    (("admin",), "read_only", *switch()),
    (
        ("metrics",),
        "public",
        "a list of 'metrics', 'health/live', 'health/ready'",
        ["metrics", ["health"], {"metrics"}, None, True, [1]],
    ),
    (("worker",), "heartbeat_file", "the path of a file", ["x" * 4_097, "a\0", 5, None, True]),
    (("worker",), "state_dir", "the path of a directory", ["x" * 4_097, "a\0", 5, None, True]),
    (("worker",), "name", "at most 100 letters, digits, '.', '_' or '-'", ["x" * 101, "a b", "a\n", 5, None, "a/b"]),
]
WRONG = [
    pytest.param(section, option, allowed, value, id=f"{'.'.join([*section, option])}={str(value)[:30]!r}")
    for section, option, allowed, values in RULES
    for value in values
]


def nested(section, option, value):
    """Return OPTIONS with this one value."""
    options = {option: value}
    for name in reversed(section):
        options = {name: options}
    return options


def path_of(section, *option):
    return "TASKS['default']['OPTIONS']" + "".join(f"[{name!r}]" for name in (*section, *option))


def found_errors():
    """Return the errors that the framework's check collects from the backends."""
    found = [message for backend in task_backends.all() for message in backend.check()]
    return [message for message in found if message.level >= ERROR]


@pytest.fixture
def errors(settings):
    """Set the OPTIONS and return the errors that the framework finds in them."""

    def check(options, queues=("default", "emails")):
        settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": list(queues), "OPTIONS": options}}
        return found_errors()

    return check


@pytest.mark.parametrize(("section", "option", "allowed", "value"), WRONG)
def test_a_wrong_value_is_one_error_with_its_path_the_allowed_values_and_a_hint(
    errors, section, option, allowed, value
):
    found = errors(nested(section, option, value))

    assert [error.msg for error in found] == [f"{path_of(section, option)} is {value!r}; allowed: {allowed}."]
    assert found[0].hint
    assert (found[0].id, found[0].obj) == ("horsies.E002", "default")


@pytest.mark.parametrize(
    ("section", "kind"),
    [
        ((), Options),
        (("queues", "emails"), QueueOptions),
        (("about", "about.Order"), AboutOptions),
        (("recovery",), RecoveryOptions),
        (("retention",), RetentionOptions),
        (("worker",), WorkerOptions),
        (("defaults",), DefaultOptions),
        (("embedded",), EmbeddedOptions),
        (("attempt_log",), AttemptLogOptions),
        (("admin",), AdminOptions),
        (("metrics",), MetricsOptions),
    ],
)
def test_the_rules_of_this_file_cover_every_option(section, kind):
    sections = (
        {
            *("queues", "about", "recovery", "retention", "worker", "embedded", "defaults", "attempt_log"),
            *("admin", "metrics"),
        }
        if kind is Options
        else set()
    )

    tested = {option for where, option, *_ in RULES if where == section}

    tested |= {"token"} if kind is MetricsOptions else set()  # no error shows it: see tests.extras.test_access
    assert tested == {field.name for field in dataclasses.fields(kind)} - sections


@pytest.mark.parametrize(
    ("section", "key", "near"),
    [
        ((), "serialiser", "serializer"),
        (("queues", "emails"), "max_concurency", "max_concurrency"),
        (("about", "about.Order"), "ondelete", "on_delete"),
        (("recovery",), "check_interval", "check_interval_ms"),
        (("retention",), "complete", "completed"),
        (("worker",), "treads", "threads"),
        (("embedded",), "wenn", "when"),
        (("admin",), "readonly", "read_only"),
        (("metrics",), "tokens", "token"),
    ],
)
def test_an_unknown_key_is_one_error_with_the_nearest_key_as_hint(errors, section, key, near):
    (error,) = errors(nested(section, key, 5))

    assert error.id == "horsies.E001"
    assert error.msg.startswith(f"{path_of(section, key)} is not an option; allowed: ")
    assert near in error.msg
    assert error.hint == f"Did you mean {near!r}?"


@pytest.mark.parametrize("key", ["zzzzzz", 5, None, ("a", 1)], ids=repr)
def test_an_unknown_key_unlike_any_option_has_a_hint(errors, key):
    (error,) = errors({"worker": {key: 1}})

    assert error.msg.startswith(f"{path_of(('worker',), key)} is not an option; allowed: processes, threads, ")
    assert error.hint


@pytest.mark.parametrize("value", [[], "x", -5, True], ids=repr)
def test_a_retention_must_be_a_duration_or_a_dict(errors, value):
    (error,) = errors({"retention": value})

    allowed = QUEUE_DURATION.removesuffix(", or 'inherit'")
    assert error.msg == f"{path_of(('retention',))} is {value!r}; allowed: {allowed}."


def test_each_mistake_in_a_retention_by_state_is_a_separate_error(errors):
    wrong = {"failed": "soon", "fialed": 5}

    found = errors({"queues": {"emails": {"retention": wrong}}})

    section = ("queues", "emails", "retention")
    bad, unknown = (next(one for one in found if path_of(section, key) in one.msg) for key in wrong)
    assert bad.msg == f"{path_of(section, 'failed')} is 'soon'; allowed: {DURATION}."
    assert (unknown.id, unknown.hint) == ("horsies.E001", "Did you mean 'failed'?")
    assert len(found) == 2


@pytest.mark.parametrize("section", ["queues", "recovery", "worker", "admin", "metrics"])
@pytest.mark.parametrize("value", [None, [], "x", 5, True], ids=repr)
def test_a_section_of_options_must_be_a_dict(errors, section, value):
    (error,) = errors({section: value})

    assert error.msg.startswith(f"{path_of((section,))} is {value!r}; allowed: a dict")
    assert error.hint


@pytest.mark.parametrize("value", [None, [], "x", 5], ids=repr)
def test_options_must_be_a_dict(errors, value):
    (error,) = errors(value)

    assert error.msg == f"TASKS['default']['OPTIONS'] is {value!r}; allowed: a dict."
    assert error.hint


def test_options_of_an_unknown_queue_are_one_error_with_the_nearest_name(errors):
    (error,) = errors({"queues": {"emials": {}}})

    assert (
        error.msg == f"{path_of(('queues', 'emials'))} is not an option; allowed: the names in QUEUES: default, emails."
    )
    assert error.hint == "Did you mean 'emails'?"


def test_options_may_name_any_queue_if_the_backend_allows_any(errors):
    found = errors({"queues": {"whatever": {"priority": 5}}}, queues=())

    assert found == []


@pytest.mark.parametrize("value", [None, 5, [], "high"], ids=repr)
def test_the_options_of_a_queue_must_be_a_dict(errors, value):
    (error,) = errors({"queues": {"emails": value}})

    assert error.msg == f"{path_of(('queues', 'emails'))} is {value!r}; allowed: a dict."
    assert error.hint


def test_an_unknown_database_is_one_error_that_lists_the_known_ones(errors):
    (error,) = errors({"database": "nowhere"})

    assert error.msg == f"{path_of((), 'database')} is 'nowhere'; allowed: 'default'."
    assert "DATABASES" in error.hint


def test_all_mistakes_in_options_are_reported_at_once(errors):
    wrong = [(section, option, values[0]) for section, option, _, values in RULES if option != "database"]
    options: dict = {"colour": 1}
    for section, option, value in wrong:
        target = options
        for name in section:
            target = target.setdefault(name, {})
        target[option] = value

    found = errors(options)

    expected = {f"{path_of(section, option)} is {value!r};" for section, option, value in wrong}
    assert len(found) == len(expected) + 1
    assert expected < {error.msg.partition(" allowed:")[0] for error in found}


def test_every_backend_is_checked_and_named(settings):
    settings.TASKS = {
        alias: {"BACKEND": BACKEND, "OPTIONS": {"worker": {"threads": 0}}} for alias in ("default", "second")
    }

    found = found_errors()

    assert [error.msg.partition("[")[2].partition("]")[0] for error in found] == ["'default'", "'second'"]
    assert [error.obj for error in found] == ["default", "second"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {
            "database": "default",
            "serializer": "rich",
            "queues": {
                "emails": {"priority": -100, "max_concurrency": 0, "retention": "2w", "rate_limit": "5/m"},
                "default": {"latency_warning": 0.5},
            },
            "recovery": {"heartbeat_retention_hours": None, "check_interval_ms": 100},
            "retention": {"completed": 0, "failed": None, "cancelled": "90s", "expired": timedelta(hours=1)},
            "worker": {
                "processes": 256,
                "threads": 1,
                "async_slots": 1,
                "prefetch": 0,
                "start_ahead": 256,
                "poll_interval": 1,
                "max_tasks_per_child": None,
                "shutdown_timeout": 0,
                "reaper": False,
                "scheduler": False,
                "fork": False,
                "name": "web-1.a_b",
            },
        },
    ],
    ids=["none", "every one"],
)
def test_valid_options_give_no_errors(errors, options):
    found = errors(options)

    assert found == []


# Options that limit each other.


@pytest.mark.parametrize(("state", "role"), [("claimed", "claimer"), ("running", "runner")])
def test_a_threshold_below_twice_its_heartbeat_interval_is_one_error(errors, state, role):
    same = {f"{state}_stale_threshold_ms": 30_000, f"{role}_heartbeat_interval_ms": 30_000}

    (error,) = errors({"recovery": same})

    path = path_of(("recovery",), f"{state}_stale_threshold_ms")
    assert error.msg == f"{path} is 30000; allowed: at least 60000, twice {role}_heartbeat_interval_ms."
    assert error.hint


@pytest.mark.parametrize(("state", "role"), [("claimed", "claimer"), ("running", "runner")])
@pytest.mark.parametrize("threshold", [60_000, 60_001])
def test_a_threshold_of_twice_its_heartbeat_interval_is_valid(errors, state, role, threshold):
    twice = {f"{state}_stale_threshold_ms": threshold, f"{role}_heartbeat_interval_ms": 30_000}

    found = errors({"recovery": twice})

    assert found == []


def test_an_interval_alone_is_checked_against_the_default_threshold(errors):
    (error,) = errors({"recovery": {"claimer_heartbeat_interval_ms": 60_001}})

    assert "['claimed_stale_threshold_ms'] is 120000; allowed: at least 120002" in error.msg


def test_the_documented_recovery_settings_are_valid(errors):
    slow = {"runner_heartbeat_interval_ms": 60_000, "running_stale_threshold_ms": 300_000}
    quick = {"runner_heartbeat_interval_ms": 10_000, "running_stale_threshold_ms": 30_000}

    found = errors({"recovery": slow}) + errors({"recovery": quick})

    assert found == []


# The parsed options.


@pytest.fixture
def configured(settings):
    """Set the OPTIONS and return the backend's configuration."""

    def configure(options):
        settings.TASKS = {"default": {"BACKEND": BACKEND, "OPTIONS": options}}
        return task_backends["default"].config

    return configure


@pytest.mark.parametrize(
    ("option", "default"),
    [
        ("auto_requeue_stale_claimed", True),
        ("claimed_stale_threshold_ms", 120_000),
        ("claimer_heartbeat_interval_ms", 30_000),
        ("auto_fail_stale_running", True),
        ("running_stale_threshold_ms", 300_000),
        ("runner_heartbeat_interval_ms", 30_000),
        ("check_interval_ms", 30_000),
        ("heartbeat_retention_hours", 24),
        ("paused_workflow_auto_cancel_after", None),
    ],
)
def test_recovery_options_have_their_documented_defaults(configured, option, default):
    value = getattr(configured({}).recovery, option)

    assert value == default
    assert type(value) is type(default)


def test_worker_and_retention_options_have_their_documented_defaults(configured):
    config = configured({})

    assert (config.database, config.serializer, config.queues) == ("default", "json", {})
    assert (config.worker.processes, config.worker.threads, config.worker.prefetch) == (1, 8, 0)
    assert (config.worker.max_tasks_per_child, config.worker.reaper, config.worker.name) == (None, True, "")
    assert config.worker.poll_interval == 1
    assert (config.retention.completed, config.retention.failed) == (timedelta(days=7), timedelta(days=30))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("90s", timedelta(seconds=90)),
        ("12h", timedelta(hours=12)),
        ("5m", timedelta(minutes=5)),
        ("7d", timedelta(days=7)),
        ("2w", timedelta(weeks=2)),
        (" 7 d ", timedelta(days=7)),
        (3_600, timedelta(hours=1)),
        (0.5, timedelta(seconds=0.5)),
        (timedelta(days=3), timedelta(days=3)),
        (0, timedelta(0)),
        (None, None),
    ],
    ids=str,
)
def test_a_duration_can_be_written_in_several_ways(configured, written, expected):
    config = configured({"retention": written, "queues": {"default": {"retention": written}}})

    assert config.retention == RetentionOptions(completed=expected)
    assert config.queues["default"].retention == {"completed": expected}


@pytest.mark.slow
@pytest.mark.django_db
def test_using_a_backend_with_wrong_options_names_them_and_inserts_nothing(configured):
    with pytest.raises(ImproperlyConfigured) as caught:
        configured({"worker": {"threads": 0, "colour": 1}})
    with pytest.raises(ImproperlyConfigured):
        tasks.noop.send()

    assert "['threads'] is 0; allowed: " in str(caught.value)
    assert "['colour'] is not an option" in str(caught.value)
    assert Task.objects.count() == 0
