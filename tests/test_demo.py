"""The main job, as the README's first line runs it."""

import re

import pytest

from horsies_django.models import Task
from testproject.modules.analysis import BROKEN, sources
from tests.conftest import wait_until


@pytest.mark.slow
def test_the_demo_counts_what_a_plain_loop_counts(manage):
    process = manage("demo")

    assert process.wait(120) == 0, process.output
    expected = len(sources())
    assert expected > 600
    assert f"Enqueued {expected} tasks" in process.output
    assert re.search(r"A plain loop without the queue counts the same. [\d,]+ tasks/s", process.output)
    assert "The ten largest modules" in process.output
    assert process.output.count("FAILED") == len(list(BROKEN.glob("*.txt"))) == 4
    assert Task.objects.completed().count() == expected - 4
    failed = Task.objects.archived()
    assert {row.error_code for row in failed} == {"DOES_NOT_PARSE"}
    assert all("Error: " in row.attempts.get().traceback for row in failed)


@pytest.mark.slow
def test_the_demo_fails_when_its_totals_differ(manage, tmp_path):
    """A queue that loses a task, here one that somebody cancels, is told on."""
    process = manage("demo", "--processes", "1")
    wait_until(lambda: Task.objects.pending().exists())

    assert Task.objects.filter(pk__in=_last(50)).cancel()

    assert process.wait(120) == 1
    assert "a plain loop" in process.output


def _last(count):
    """Successful modules among the last to run."""
    broken = len(list(BROKEN.glob("*.txt")))
    return list(Task.objects.order_by("-pk").values_list("pk", flat=True)[broken : broken + count])
