"""The error code that an exception mapper gives an exception."""

import pytest

from horsies_django import RetryPolicy, task
from horsies_django.core.compat import InvalidTask, task_backends
from horsies_django.models import Task, TaskAttempt
from tests.worker.execution import jobs

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

BACKEND = "horsies_django.backend.HorsiesBackend"
DEEP_PATH = "tests.worker.execution.jobs.DeepTrouble"
APP = {jobs.Trouble: "APP_TROUBLE", DEEP_PATH: "APP_DEEP", "builtins.LookupError": "APP_LOST", SystemExit: "APP_LEFT"}


@pytest.fixture
def options(settings):
    def set_options(**options):
        settings.TASKS = {"default": {"BACKEND": BACKEND, "OPTIONS": options}}

    return set_options


def codes_of(drain, sends):
    """Run the tasks and return their error codes by name."""
    drain()
    codes = {name: handle.get(0).err.error_code for name, handle in sends.items()}
    for name, handle in sends.items():
        assert Task.objects.get(pk=handle.id).error_code == codes[name]
        assert TaskAttempt.objects.get(task=handle.id).error_code == codes[name]
    return codes


@pytest.mark.parametrize("body", [jobs.plain, jobs.aplain], ids=["thread", "coroutine"])
def test_the_backends_mapper_names_the_class_or_its_nearest_base(drain, options, body):
    options(exception_mapper=APP)
    expected = {
        "trouble": "APP_TROUBLE",
        "deep": "APP_DEEP",  # mapped by its dotted path, and nearer than its base
        "abyss": "APP_DEEP",  # not mapped itself; the nearest base counts
        "key": "APP_LOST",  # a built-in base class, mapped by its dotted path
        "exit": "APP_LEFT",
        "os": "UNHANDLED_EXCEPTION",
    }

    assert codes_of(drain, {name: body.send(name) for name in expected}) == expected


def test_the_tasks_mapper_takes_precedence_over_the_backends(drain, options):
    options(exception_mapper=APP)
    expected = {
        "trouble": "TASK_SAYS",  # both mappers have it
        "deep": "TASK_SAYS",  # the backend's mapper has the class itself, but the task's mapper has a base
        "abyss": "TASK_SAYS",
        "timeout": "TASK_SAYS_OS",
        "key": "APP_LOST",  # only the backend's mapper has it
    }

    assert codes_of(drain, {name: jobs.mapped.send(name) for name in expected}) == expected


def test_without_a_mapper_every_exception_is_unhandled(drain):
    assert codes_of(drain, {"deep": jobs.plain.send("deep")}) == {"deep": "UNHANDLED_EXCEPTION"}


def test_a_policy_retries_the_code_of_the_backends_mapper(drain, options):
    options(exception_mapper=APP)
    retried, other = jobs.retried_by_code.send("abyss"), jobs.retried_by_code.send("trouble")

    drain()

    assert Task.objects.retrying().get().pk == retried.id
    assert other.get(0).err.error_code == "APP_TROUBLE"
    assert TaskAttempt.objects.get(task=retried.id).error_code == "APP_DEEP"


def test_a_mapper_does_not_apply_to_control_exceptions(drain, options):
    """A mapper of Exception itself must not turn a snooze or a discard into a failure."""
    options(exception_mapper={Exception: "APP_ANY", BaseException: "APP_EVERY"})
    snoozed, discarded = jobs.raises_snooze.send("key", 1), jobs.raises_discard.send("key")
    late, failing = jobs.limited.send(), jobs.plain.send("os")

    drain()

    assert snoozed.value(0) == [2, 1]
    codes = [handle.get(0).err.error_code for handle in (discarded, late, failing)]
    assert codes == ["TASK_DISCARDED", "TASK_TIMEOUT", "APP_ANY"]


WRONG = {
    "no dict": ["Trouble"],
    "no exception": {int: "CODE"},
    "no class": {5: "CODE"},
    "nothing at the path": {"tests.worker.execution.jobs.Nowhere": "CODE"},
    "no module at the path": {"nowhere.Trouble": "CODE"},
    "no path": {"Trouble": "CODE"},
    "no exception at the path": {"tests.worker.execution.jobs.plain": "CODE"},
    "no text": {jobs.Trouble: 5},
    "an empty code": {jobs.Trouble: ""},
    "too long a code": {jobs.Trouble: "x" * 101},
    "the library's own code": {jobs.Trouble: "WORKER_CRASHED"},
}


@pytest.mark.django_db(transaction=False)
@pytest.mark.parametrize("mapper", WRONG.values(), ids=WRONG.keys())
def test_an_invalid_backend_mapper_is_one_check_error(options, mapper):
    options(exception_mapper=mapper)

    (error,) = [message for backend in task_backends.all() for message in backend.check() if message.is_serious()]

    assert error.id == "horsies.E002"
    assert error.msg.startswith(f"TASKS['default']['OPTIONS']['exception_mapper'] is {mapper!r}; allowed: ")
    assert "exception class" in error.msg
    assert error.hint


@pytest.mark.django_db(transaction=False)
@pytest.mark.parametrize("kind", ["no dict", "no exception", "no text", "an empty code", "the library's own code"])
def test_an_invalid_task_mapper_is_refused_by_the_decorator(kind):
    with pytest.raises(InvalidTask, match="exception_mapper"):
        task(exception_mapper=WRONG[kind])(jobs.write_entry)


@pytest.mark.parametrize(
    ("listed", "name", "is_retried"),
    [
        (jobs.DeepTrouble, "deep", True),
        (jobs.Trouble, "deep", True),
        (Exception, "deep", True),
        (jobs.DeepTrouble, "trouble", False),
    ],
)
def test_a_policy_that_lists_a_class_retries_its_subclasses_and_logs_the_error(drain, caplog, listed, name, is_retried):
    policy = RetryPolicy.fixed([60], auto_retry_for=["OTHER", listed])
    handle = jobs.plain.with_options(retry_policy=policy).send(name)

    with caplog.at_level("DEBUG", logger="horsies_django.worker"):
        drain()

    assert handle.status() == ("PENDING" if is_retried else "FAILED")
    assert (f"why=tests.worker.execution.jobs.{jobs.RAISED[name].__name__}: plain" in caplog.text) is is_retried
    assert "Traceback" in caplog.text


def test_a_listed_class_does_not_cover_permanent_failures():
    policy = RetryPolicy.fixed([60], auto_retry_for=[Exception])

    assert policy.auto_retry_for == ("builtins.Exception",)
    assert policy.covers("UNHANDLED_EXCEPTION", ValueError())
    assert not policy.covers("WORKER_SERIALIZATION_ERROR", ValueError())
    assert not policy.covers("UNHANDLED_EXCEPTION", KeyboardInterrupt())
    assert not policy.covers("WORKER_CRASHED")
