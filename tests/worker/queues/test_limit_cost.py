"""The cost of a limited queue compared with an unlimited one, in statements and rows."""

import pytest
from django.db import connection

from horsies_django.models import Queue, Task, TaskAttempt
from tests.jobs import tasks

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

COUNT = 10_000


@pytest.fixture
def cost(manage, tmp_path):
    """Return a function that drains a queue under a limit, and returns the statements and rows read of each task."""

    def measure(most):
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE horsies_tasks, horsies_task_attempts CASCADE")
        Queue.objects.named("default").set(max_concurrency=most)
        tasks.noop.send_many({} for _ in range(COUNT))
        tally, before = tmp_path / f"statements-{most}", rows_read()
        process = manage(
            "horsies_worker", "--drain", "--processes", "2", "--threads", "64", "-v0", COUNT_STATEMENTS=str(tally)
        )
        assert process.wait(120) == 0, process.output
        assert Task.objects.completed().count() == TaskAttempt.objects.count() == COUNT
        return tally.stat().st_size / COUNT, (rows_read() - before) / COUNT

    return measure


def rows_read():
    """Return how many rows of tasks and attempts have been read so far; a backend reports its count when it ends."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute(
            "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables"
            " WHERE relname IN ('horsies_tasks', 'horsies_task_attempts')"
        )
        return int(cursor.fetchone()[0])


def test_a_limit_that_is_not_reached_adds_few_statements_and_rows(cost):
    if connection.vendor != "postgresql":
        return  # SQLite counts no rows
    (free, read), (limited, read_limited) = cost(None), cost(1_000)
    print(f"statements a task: {free:.3f}, {limited:.3f} with a limit; rows read: {read:.1f}, {read_limited:.1f}")

    assert limited <= 0.15
    assert read_limited <= 1.5 * read


def test_two_runners_complete_all_tasks_of_a_limited_queue(cost):
    if connection.vendor == "postgresql":
        statements, read = cost(16)
        print(f"a limit that binds: {statements:.3f} statements a task, {read:.1f} rows read")
