"""Batches of rows: one that fails is retried row by row, and those that fail again are left out."""

import pytest

from horsies_django import TaskStatus
from horsies_django.models import Task
from horsies_django.reaper.batches import SkippedRows, run_batch
from tests.reaper.conftest import overdue

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_batch_in_which_every_row_fails_leaves_the_other_rows_to_the_next_batch(poison):
    rows = sorted(overdue(3), key=lambda row: row.pk)
    for row in rows[:2]:
        poison(row)
    skipped = SkippedRows()

    first, second = (
        run_batch(Task.objects.overdue().order_by("pk"), lambda tasks: tasks.expire(), skipped, size=2)
        for _ in range(2)
    )

    assert (first.done, first.may_be_more) == (0, True)
    assert (second.done, second.may_be_more) == (1, False)
    assert skipped == {row.pk for row in rows[:2]}
    assert Task.objects.get(status=TaskStatus.EXPIRED).pk == rows[2].pk
