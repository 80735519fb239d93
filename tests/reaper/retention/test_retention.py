"""How long an ended task is kept."""

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
    """Return how long a task is kept after its end, or None for forever."""
    row = Task.objects.get(pk=handle.id)
    return None if row.kept_until is None else row.kept_until - row.finished_at


def about(delta):
    return pytest.approx(delta, abs=timedelta(seconds=1))


def test_a_task_can_set_its_retention(drain):
    handle = jobs.two_hours.send()
    drain()
    assert kept(handle) == about(timedelta(hours=2))


def test_the_retention_of_a_send_overrides_that_of_the_task(drain):
    handle = jobs.two_hours.with_options(retention=60).send()
    drain()
    assert kept(handle) == about(timedelta(minutes=1))


def test_retention_none_keeps_a_task_forever(drain):
    handle = jobs.kept_for_ever.send()
    drain()
    assert kept(handle) is None
    assert handle.value(timeout=0) == "kept"


@pytest.mark.parametrize(
    ("given", "seconds"), [("3h", 10_800), ({"failed": "3h"}, 604_800), (None, None), ("inherit", 604_800)]
)
def test_the_retention_of_a_queue_overrides_that_of_the_backend(settings, drain, given, seconds):
    configure(settings, queues={"default": {"retention": given}})
    handle = jobs.plain.send()
    drain()
    assert kept(handle) == (None if seconds is None else about(timedelta(seconds=seconds)))


def test_each_end_state_can_have_its_own_retention(settings, drain):
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


def test_by_default_completed_tasks_are_kept_a_week_and_failed_ones_a_month(drain):
    done, failed = jobs.plain.send(), jobs.failing.send()
    drain()
    assert (kept(done), kept(failed)) == (about(timedelta(days=7)), about(timedelta(days=30)))


def test_a_manual_retry_clears_kept_until(drain):
    handle = jobs.failing.send()
    drain()
    assert handle.retry()
    assert Task.objects.get(pk=handle.id).kept_until is None


@pytest.mark.parametrize("job", [jobs.fleeting, jobs.fleeting_atomic])
def test_a_retention_of_0_deletes_a_task_on_completion(drain, job):
    handle = job.send()
    drain()
    assert handle.status() is None
    assert handle.get(timeout=0).err.error_code == "TASK_NOT_FOUND"
    assert not TaskAttempt.objects.exists()


def test_a_task_overrides_its_backends_retention_of_0_for_completed_tasks(settings, drain):
    configure(settings, retention={"completed": 0})
    done, failed, kept_longer = jobs.plain.send(), jobs.failing.send(), jobs.two_hours.send()
    drain()
    assert done.status() is None
    assert failed.status() is TaskStatus.FAILED
    assert kept_longer.status() is TaskStatus.COMPLETED


def test_a_task_finished_receiver_still_finds_a_task_with_retention_0(drain):
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
    drain(no_reaper=False)  # deletes the task that was left for the receiver
    assert handle.status() is None
    assert not Heartbeat.objects.exists()


def test_a_plain_retention_applies_only_to_completed_tasks(settings, drain):
    configure(settings, queues={"brief": {"retention": 0}}, retention="1h")
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


def test_a_setting_that_changes_applies_to_tasks_that_wait(settings, drain):
    configure(settings, queues={"default": {"retention": "5d"}})
    own = jobs.by_state.send(fails=False)  # {"completed": "2h", "failed": "3h"}
    waiting = {jobs.plain.send(): timedelta(days=8), jobs.failing.send(): timedelta(days=9), own: timedelta(hours=2)}
    configure(settings, queues={"default": {"retention": {"completed": "8d", "failed": "9d"}}})
    drain(no_reaper=False)
    assert [kept(handle) for handle in waiting] == [
        about(timedelta(days=8)),
        about(timedelta(days=9)),
        about(timedelta(hours=2)),
    ]


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_retention_by_state_overrides_that_of_the_levels_above(settings, drain):
    configure(
        settings,
        retention={"expired": "9d"},
        queues={"default": {"retention": {"completed": "8d", "cancelled": "7d", "failed": "7d"}}},
    )
    hour = timedelta(hours=1)
    job = jobs.by_state  # {"completed": "2h", "failed": "3h"}
    past = timezone.now() - timedelta(seconds=1)
    ends = {
        jobs.plain.send(): timedelta(days=8),
        jobs.failing.send(): timedelta(days=7),
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
    drain(no_reaper=False)  # deletes the tasks that ended after the first pass
    assert gone.status() is None
    for handle, expected in (ends | {cancelled: timedelta(days=7)}).items():
        assert kept(handle) == (None if expected is None else about(expected))


@pytest.mark.parametrize(
    "hostile", ["1e400", "-1", '"3h"', "null", "true", "[5]", '{"completed": 5}', "3153600001", "9" * 5_000]
)
@pytest.mark.parametrize("form", ['{"failed": %s}', pytest.param("%s", marks=pytest.mark.slow)])
def test_an_invalid_retention_in_a_row_is_ignored(drain, hostile, form):
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
    ("bad", "message"),
    [
        (
            {"fialed": 5},
            "retention: 'fialed' .it has 5. is not a state; allowed: completed, failed, cancelled, expired",
        ),
        ({"failed": "soon"}, "retention: 'failed' has 'soon', not a duration; allowed: seconds, a timedelta"),
    ],
)
def test_an_invalid_retention_by_state_is_refused_with_the_allowed_values(bad, message):
    with pytest.raises(Exception, match=message):
        jobs.plain.with_options(retention=bad)


@pytest.mark.parametrize("bad", [-1, "soon", True, float("nan")])
def test_an_invalid_retention_is_refused(bad):
    with pytest.raises(Exception, match=r"retention: .* is not a duration; allowed: "):
        jobs.plain.with_options(retention=bad)
