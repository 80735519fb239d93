"""What a limit costs a queue, side by side with none: counted, not clocked."""

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
    """Return how many rows of tasks and attempts have been read so far; a backend tells its own when it ends."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute(
            "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables"
            " WHERE relname IN ('horsies_tasks', 'horsies_task_attempts')"
        )
        return int(cursor.fetchone()[0])


def test_a_limit_that_does_not_bind_costs_a_task_few_more_statements_and_rows(cost):
    if connection.vendor != "postgresql":
        return  # SQLite counts no rows
    (free, read), (limited, read_limited) = cost(None), cost(1_000)
    print(f"statements a task: {free:.3f}, {limited:.3f} with a limit; rows read: {read:.1f}, {read_limited:.1f}")

    assert limited <= 0.15
    assert read_limited <= 1.5 * read


def test_nothing_is_lost_where_a_limit_binds_two_runners(cost):
    if connection.vendor == "postgresql":
        statements, read = cost(16)
        print(f"a limit that binds: {statements:.3f} statements a task, {read:.1f} rows read")
