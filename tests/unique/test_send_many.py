"""Many calls of a unique task in one statement."""

import uuid

import pytest

from horsies_django import Unique
from horsies_django.models import Task
from tests.unique import jobs

pytestmark = pytest.mark.django_db

SKIP = jobs.note.with_options(unique=Unique(by=("name",)))


@pytest.mark.once
@pytest.mark.parametrize("options", [{"task_id": uuid.UUID(int=7)}, {"unique_key": "k"}])
def test_an_option_for_one_call_is_refused_and_nothing_is_sent(options):
    job = SKIP.with_options(**options)

    with pytest.raises(ValueError, match=f"^send_many.. can't give '.*' to every call: {next(iter(options))} is for"):
        job.send_many([{"name": "a"}, {"name": "b"}])

    assert Task.objects.count() == 0
