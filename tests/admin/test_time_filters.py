"""The filters of the task list by times and by attempts."""

from datetime import timedelta

import pytest
from django.utils import timezone

from horsies_django.models import Task

pytestmark = pytest.mark.django_db(transaction=True)

LIST = "/admin/horsies_django/task/"


@pytest.fixture
def ago():
    """Return a function of seconds to the time that long ago, with one reading of the clock for all."""
    now = timezone.now()
    return lambda seconds: now - timedelta(seconds=seconds)


def make(name, **columns):
    Task.objects.create(task_name=f"jobs.{name}", **columns)


@pytest.fixture
def shown(staff):
    """Return a function of a query string to the names of the tasks that the list shows."""
    client = staff("view_task")

    def names(query):
        rows = client.get(LIST + query).context["cl"].result_list
        return {row.task_name.removeprefix("jobs.") for row in rows}

    return names


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        ("1s", {"waits", "waited", "was_cancelled"}),
        ("1m", {"waits", "was_cancelled"}),
        ("1h", {"waits"}),
        ("nonsense", set()),
    ],
)
def test_the_waited_filter_counts_finished_and_current_waits(shown, ago, length, expected):
    make("waits", enqueued_at=ago(7_200))
    make("waited", status="COMPLETED", enqueued_at=ago(9_000), started_at=ago(8_970), completed_at=ago(10))
    make("was_cancelled", status="CANCELLED", enqueued_at=ago(9_000), cancelled_at=ago(8_000))
    make("began_at_once", status="COMPLETED", enqueued_at=ago(9_000), started_at=ago(9_000), completed_at=ago(1))
    make("later", deferred=True, enqueued_at=ago(-7_200))
    make("blocked", limit_key="k", blocked=True, deferred=True, enqueued_at=ago(7_200))
    make("just_released", limit_key="k", enqueued_at=ago(7_200), released_at=ago(0))

    assert shown(f"?waited={length}") == expected


def test_a_task_is_due_for_a_minute_only_from_the_release_by_its_limit_on(shown, ago):
    make("due", enqueued_at=ago(90))
    make("released", limit_key="k", enqueued_at=ago(7_200), released_at=ago(90))
    make("just_released", limit_key="k", enqueued_at=ago(7_200), released_at=ago(1))
    make("blocked", limit_key="k", blocked=True, deferred=True, enqueued_at=ago(7_200))

    assert shown("?trouble=late") == {"due", "released"}


@pytest.mark.parametrize(
    ("length", "expected"),
    [("10s", {"runs", "ran", "failed"}), ("10m", {"runs", "failed"}), ("1h", {"failed"})],
)
def test_the_ran_filter_counts_finished_and_current_runs(shown, ago, length, expected):
    held = {"claim": 1, "claimed_by_worker_id": "w", "claimed_at": ago(900)}
    make("runs", status="RUNNING", started_at=ago(900), **held)
    make("ran", status="COMPLETED", started_at=ago(900), completed_at=ago(880))
    make("failed", status="FAILED", started_at=ago(9_000), failed_at=ago(100))
    make("short", status="COMPLETED", started_at=ago(900), completed_at=ago(899))
    make("waits", enqueued_at=ago(9_000))

    assert shown(f"?ran={length}") == expected


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        ("last_hour", {"now"}),
        ("last_day", {"now", "before"}),
        ("next_hour", {"soon"}),
        ("next_day", {"soon", "tonight"}),
    ],
)
def test_the_due_filter_selects_tasks_by_due_time(shown, ago, time, expected):
    make("before", enqueued_at=ago(7_200))
    make("now", status="COMPLETED", enqueued_at=ago(60), completed_at=ago(1))
    make("soon", deferred=True, enqueued_at=ago(-1_800))
    make("tonight", deferred=True, enqueued_at=ago(-36_000))
    make("next_week", deferred=True, enqueued_at=ago(-600_000))

    assert shown(f"?due={time}") == expected


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [("none", {"new"}), ("one", {"once", "spent"}), ("more", {"twice"}), ("all", {"spent", "twice"})],
)
def test_the_attempts_filter_selects_tasks_by_number_of_attempts(shown, attempts, expected):
    make("new", max_retries=1)
    make("once", attempt=1, max_retries=1)
    make("spent", attempt=1)
    make("twice", attempt=2, max_retries=1)

    assert shown(f"?attempts={attempts}") == expected
