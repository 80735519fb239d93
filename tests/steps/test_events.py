"""Waits: a body gives up its slot until an event comes, or the end of a workflow."""

import pytest

from horsies_django.models import Task
from horsies_django.testing import drain as run_due
from tests.steps import event_jobs

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_waiting_task_is_no_scheduled_task():
    handle = event_jobs.waits.send()
    run_due()

    assert not Task.objects.scheduled().exists()
    assert Task.objects.awaiting().count() == Task.objects.awaiting("event:approved").count() == 1
    assert not Task.objects.awaiting("event:refused").exists()

    assert handle.cancel()

    assert not Task.objects.awaiting().exists()
