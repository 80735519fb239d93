"""Tasks that are refused with the framework's messages, when they are made and when they are enqueued."""

import functools
from datetime import datetime, timedelta

import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone

from horsies_django import register_task, task
from horsies_django.core.compat import InvalidTask, default_task_backend
from horsies_django.models import Task
from tests.enqueue.framework import jobs

OUT_OF_RANGE = r"^priority must be a whole number between -100 and 100\.$"


def raises_invalid_task(message):
    return pytest.raises(InvalidTask, match=f"^{message}$")


def nested():
    def inner():
        """Be defined inside a function."""

    return inner


@pytest.mark.parametrize("func", [nested(), (lambda: lambda: None)()], ids=["nested", "lambda"])
def test_a_task_function_must_be_defined_at_module_level(func):
    with raises_invalid_task(r"Task function must be defined at a module level\."):
        task(func)


@pytest.mark.parametrize(
    "func", [jobs.not_taking_context, jobs.taking_nothing], ids=["another argument", "no argument"]
)
def test_takes_context_requires_context_as_the_first_argument(func):
    with raises_invalid_task(r"Task takes context but does not have a first argument of 'context'\."):
        task(takes_context=True)(func)


def test_a_function_with_a_context_argument_may_omit_takes_context():
    with_context, without = task(takes_context=True)(jobs.takes_a), task(jobs.takes_a)

    assert (with_context.takes_context, without.takes_context) == (True, False)


@pytest.mark.parametrize("priority", [-101, 101, 1.5, 10**6, 10**400, float("inf"), float("-inf")])
def test_a_priority_is_a_whole_number_from_minus_100_to_100(priority):
    with pytest.raises(InvalidTask, match=OUT_OF_RANGE):
        task(priority=priority)(jobs.taking_nothing)
    with pytest.raises(InvalidTask, match=OUT_OF_RANGE):
        jobs.add.using(priority=priority)


@pytest.mark.django_db
@pytest.mark.parametrize("priority", [-100, 0, 100, 1.0, True])
def test_a_priority_that_the_framework_accepts_is_stored(priority):
    result = jobs.add.using(priority=priority).enqueue(1)

    assert Task.objects.get(pk=result.id).priority == priority


@pytest.mark.parametrize("priority", ["5", None, float("nan")], ids=repr)
def test_a_non_numeric_priority_raises_a_type_error_with_the_allowed_range(priority):
    with pytest.raises(TypeError, match=rf"^priority is {priority!r}; allowed: a whole number from -100 to 100\.$"):
        task(priority=priority)(jobs.taking_nothing)


@pytest.mark.parametrize("func", [jobs.yields, jobs.ayields], ids=["generator", "async generator"])
def test_a_generator_function_is_refused_as_a_task(func):
    for make in (task, functools.partial(register_task, name="a name")):
        with pytest.raises(InvalidTask, match=rf"{func.__name__} \(.*\) is a generator, .* allowed: def or async def"):
            make(func)


def test_a_task_cannot_be_decorated_again():
    with pytest.raises(InvalidTask, match=r"jobs\.add \(.*\) is already a task; allowed: one @task with all options"):
        task(priority=5)(jobs.add)


def test_run_after_must_be_an_aware_datetime():
    with raises_invalid_task(r"run_after must be an aware datetime\."):
        jobs.add.using(run_after=datetime(2030, 1, 1))


@pytest.mark.parametrize("run_after", ["tomorrow", 5, timedelta(seconds=-1)], ids=repr)
def test_run_after_refuses_a_text_a_number_and_a_negative_delay(run_after):
    with pytest.raises(InvalidTask, match="run_after"):
        jobs.add.using(run_after=run_after)


def test_the_other_options_of_a_delayed_task_are_validated():
    with pytest.raises(InvalidTask, match=OUT_OF_RANGE):
        jobs.add.using(run_after=timedelta(hours=1), priority=101)


def test_a_queue_must_be_in_the_settings(backend_settings):
    backend_settings(QUEUES=["default", "emails"])

    assert jobs.add.using(queue_name="emails").queue_name == "emails"
    with raises_invalid_task(r"Queue 'unknown' is not valid for backend\."):
        jobs.add.using(queue_name="unknown")


def test_only_the_default_queue_is_valid_if_the_settings_name_no_queues(settings):
    settings.TASKS = {"default": {"BACKEND": "horsies_django.backend.HorsiesBackend"}}

    with raises_invalid_task(r"Queue 'emails' is not valid for backend\."):
        jobs.add.using(queue_name="emails")


@pytest.mark.django_db
def test_an_empty_list_of_queues_allows_any_queue(backend_settings):
    backend_settings(QUEUES=[])

    result = jobs.add.using(queue_name="anything").enqueue(1)

    assert Task.objects.get(pk=result.id).queue_name == "anything"


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["q" * 101, "nul\0"], ids=["too long", "with a NUL"])
def test_a_queue_name_that_cannot_be_stored_is_refused_before_the_insert(backend_settings, name):
    backend_settings(QUEUES=[])

    with pytest.raises(InvalidTask, match="queue"):
        jobs.add.using(queue_name=name).enqueue(1)

    assert not Task.objects.exists()


def test_the_rules_of_the_framework_are_checked_before_those_of_horsies():
    with raises_invalid_task(r"Task function must be defined at a module level\."):
        task(timeout=-1)(nested())


def test_a_bad_horsies_option_raises_invalid_task():
    with pytest.raises(InvalidTask, match="timeout"):
        task(timeout=-1)(jobs.taking_nothing)


@pytest.mark.django_db
@pytest.mark.parametrize("run_after", [None, timedelta(hours=1)], ids=["now", "later"])
def test_a_task_is_validated_again_when_it_is_enqueued(backend_settings, run_after):
    job = jobs.add.using(queue_name="emails", run_after=run_after)
    backend_settings(QUEUES=["default"])

    with raises_invalid_task(r"Queue 'emails' is not valid for backend\."):
        job.enqueue(1)
    with raises_invalid_task(r"Queue 'emails' is not valid for backend\."):
        async_to_sync(job.aenqueue)(1)
    with raises_invalid_task(r"Queue 'emails' is not valid for backend\."):
        job.send(1)

    assert not Task.objects.exists()


@pytest.mark.django_db
def test_the_backend_validates_a_task_passed_to_enqueue(backend_settings):
    job = jobs.plain.using(queue_name="emails")
    backend_settings(QUEUES=["default"])

    with raises_invalid_task(r"Queue 'emails' is not valid for backend\."):
        default_task_backend.enqueue(job, [1], {})

    assert not Task.objects.exists()


def test_the_backend_accepts_a_valid_task():
    assert default_task_backend.validate_task(jobs.add.using(run_after=timezone.now())) is None
