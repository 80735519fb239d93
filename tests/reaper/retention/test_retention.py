"""What a task's end says of how long it is kept."""

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from horsies_django import TaskStatus
from horsies_django.core.compat import task_finished
from horsies_django.models import Heartbeat, Queue, Task, TaskAttempt
from tests.reaper.retention import jobs

pytestmark = pytest.mark.django_db(transaction=True)

BACKEND = "horsies_django.backend.HorsiesBackend"


def configure(settings, **options):
    settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": options}}


def kept(handle):
    """For how long from its end a task is kept; None for ever."""
    row = Task.objects.get(pk=handle.id)
    return None if row.kept_until is None else row.kept_until - row.finished_at


def about(delta):
    return pytest.approx(delta, abs=timedelta(seconds=1))


def test_a_task_says_itself_how_long(drain):
    handle = jobs.two_hours.send()
    drain()
    assert kept(handle) == about(timedelta(hours=2))


def test_a_send_says_it_better_than_the_task(drain):
    handle = jobs.two_hours.with_options(retention=60).send()
    drain()
    assert kept(handle) == about(timedelta(minutes=1))


def test_none_keeps_for_ever(drain):
    handle = jobs.kept_for_ever.send()
    drain()
    assert kept(handle) is None
    assert handle.value(timeout=0) == "kept"


@pytest.mark.parametrize(
    ("given", "seconds"), [("3h", 10_800), ({"failed": "3h"}, 604_800), (None, None), ("inherit", 604_800)]
)
def test_a_queue_overrides_its_backend(settings, drain, given, seconds):
    configure(settings, queues={"default": {"retention": given}})
    handle = jobs.plain.send()
    drain()
    assert kept(handle) == (None if seconds is None else about(timedelta(seconds=seconds)))


def test_each_state_has_its_own(settings, drain):
    configure(settings, retention={"completed": 60, "failed": "2d", "cancelled": None, "expired": "1h"})
    done, failed, cancelled = jobs.plain.send(), jobs.failing.send(), jobs.plain.send()
    expired = jobs.plain.with_options(good_until=timezone.now() - timedelta(seconds=1)).send()
    assert cancelled.cancel()
    drain(no_reaper=False)
    assert expired.status() is TaskStatus.EXPIRED
    assert kept(done) == about(timedelta(minutes=1))
    assert kept(failed) == about(timedelta(days=2))
    assert kept(cancelled) is None
    assert kept(expired) == about(timedelta(hours=1))


def test_the_defaults_keep_successes_a_week_and_the_rest_a_month(drain):
    done, failed = jobs.plain.send(), jobs.failing.send()
    drain()
    assert (kept(done), kept(failed)) == (about(timedelta(days=7)), about(timedelta(days=30)))


def test_who_is_retried_by_hand_is_kept(drain):
    handle = jobs.failing.send()
    drain()
    assert handle.retry()
    assert Task.objects.get(pk=handle.id).kept_until is None


@pytest.mark.parametrize("job", [jobs.fleeting, jobs.fleeting_atomic])
def test_no_retention_deletes_on_completion(drain, job):
    handle = job.send()
    drain()
    assert handle.status() is None
    assert handle.get(timeout=0).err.error_code == "TASK_NOT_FOUND"
    assert not TaskAttempt.objects.exists()


def test_by_the_backends_settings(settings, drain):
    configure(settings, retention={"completed": 0})
    done, failed, kept_all_the_same = jobs.plain.send(), jobs.failing.send(), jobs.two_hours.send()
    drain()
    assert done.status() is None
    assert failed.status() is TaskStatus.FAILED
    assert kept_all_the_same.status() is TaskStatus.COMPLETED


def test_who_listens_to_the_end_still_finds_the_task(drain):
    found = []

    def receiver(sender, task_result, **kwargs):
        found.append(task_result.return_value)

    task_finished.connect(receiver)
    try:
        handle = jobs.fleeting.send()
        drain()
    finally:
        task_finished.disconnect(receiver)
    assert found == ["gone"]
    drain(no_reaper=False)  # which deletes what was left for the listener
    assert handle.status() is None
    assert not Heartbeat.objects.exists()


def test_a_plain_value_is_for_success_alone(settings, drain):
    configure(settings, queues={"brief": {"retention": 0}}, defaults={"retention": 0}, retention="1h")
    failing, month = jobs.failing, about(timedelta(days=30))
    kept_on = [
        failing.send(),
        failing.with_options(retention=0).send(),
        failing.with_options(retention=None).send(),
        failing.using(queue_name="brief").send(),
    ]
    cancelled = jobs.fleeting.send()
    assert cancelled.cancel()
    drain(no_reaper=False)
    assert [kept(handle) for handle in (*kept_on, cancelled)] == [month] * 5
    assert TaskAttempt.objects.get(task=kept_on[1].id).traceback


def test_a_dict_says_it_by_state_at_every_level_and_the_nearest_that_says_it_counts(settings, drain):
    configure(
        settings,
        retention={"expired": "9d"},
        queues={"default": {"retention": {"completed": "8d", "cancelled": "7d", "failed": "7d"}}},
        defaults={"retention": {"failed": "5d", "completed": "5d"}},
    )
    hour = timedelta(hours=1)
    job = jobs.by_state  # {"completed": "2h", "failed": "3h"}
    past = timezone.now() - timedelta(seconds=1)
    ends = {
        jobs.plain.send(): timedelta(days=5),
        jobs.failing.send(): timedelta(days=5),
        job.send(fails=False): 2 * hour,
        job.send(fails=True): 3 * hour,
        job.with_options(retention="4h").send(fails=False): 4 * hour,
        job.with_options(retention="4h").send(fails=True): 3 * hour,
        job.with_options(retention={"failed": None}).send(fails=False): 2 * hour,
        job.with_options(retention={"failed": None}).send(fails=True): None,
        job.with_options(good_until=past).send(fails=True): timedelta(days=9),
        job.with_options(good_until=past, retention={"expired": "6h"}).send(fails=True): 6 * hour,
    }
    cancelled = job.send(fails=True)
    assert cancelled.cancel()
    gone = job.with_options(retention={"failed": 0}).send(fails=True)
    drain(no_reaper=False)
    drain(no_reaper=False)  # which deletes what ended after the first pass
    assert gone.status() is None
    for handle, expected in (ends | {cancelled: timedelta(days=7)}).items():
        assert kept(handle) == (None if expected is None else about(expected))


@pytest.mark.parametrize(
    "hostile", ["1e400", "-1", '"3h"', "null", "true", "[5]", '{"completed": 5}', "3153600001", "9" * 5_000]
)
@pytest.mark.parametrize("form", ['{"failed": %s}', "%s"])
def test_what_may_not_stand_in_a_row_counts_as_not_set(drain, hostile, form):
    handle = jobs.failing.using(queue_name="odd").send()
    Queue.objects.named("odd")
    with connection.cursor() as cursor:
        for table in ("horsies_tasks", "horsies_queues"):
            cursor.execute(f"UPDATE {table} SET retention_by_state = %s", [form % hostile])
    drain()
    assert kept(handle) == about(timedelta(days=30))
    assert handle.info().status == TaskStatus.FAILED


@pytest.mark.once
@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (
            {"fialed": 5},
            "retention: 'fialed' .it has 5. is not a state; allowed: completed, failed, cancelled, expired",
        ),
        ({"failed": "soon"}, "retention: 'failed' has 'soon', not a duration; allowed: seconds, a timedelta"),
    ],
)
def test_a_bad_state_or_its_duration_is_named_with_what_is_allowed(bad, words):
    with pytest.raises(Exception, match=words):
        jobs.plain.with_options(retention=bad)


@pytest.mark.parametrize("bad", [-1, "soon", True, float("nan")])
def test_a_bad_retention_is_named(bad):
    with pytest.raises(Exception, match=r"retention: .* is not a duration; allowed: "):
        jobs.plain.with_options(retention=bad)
