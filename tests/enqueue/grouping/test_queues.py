"""Each queue has its own groups."""

from collections import Counter

import pytest

from horsies_django.models import Task
from tests.enqueue.grouping import jobs

pytestmark = pytest.mark.django_db(transaction=True)

MAIL_TO_EMAILS = jobs.mail.with_options(queue_name="emails")


def test_a_call_to_another_queue_joins_the_group_of_that_queue():
    handles = [
        job.send(customer_id=1) for job in (jobs.mail, MAIL_TO_EMAILS, jobs.mail, MAIL_TO_EMAILS, MAIL_TO_EMAILS)
    ]

    assert (handles[0].id, handles[1].id) == (handles[2].id, handles[3].id)
    assert dict(Task.objects.values_list("queue_name", "item_count")) == {"default": 2, "emails": 3}


def test_a_moved_group_takes_no_more_calls_and_is_not_merged():
    other = MAIL_TO_EMAILS.send(customer_id=1)
    moved = jobs.mail.send(customer_id=1)
    assert Task.objects.filter(pk=moved.id).move(queue_name="emails") == 1

    again, more = jobs.mail.send(customer_id=1), MAIL_TO_EMAILS.send(customer_id=1)

    assert (again.id not in (moved.id, other.id), more.id) == (True, other.id)
    assert Counter(Task.objects.values_list("queue_name", "item_count")) == Counter(
        {("emails", 2): 1, ("emails", 1): 1, ("default", 1): 1}
    )


def test_a_group_that_is_moved_to_its_own_queue_stays_open():
    group = jobs.mail.send(customer_id=1)

    Task.objects.filter(pk=group.id).move(queue_name="default", priority=5)

    assert jobs.mail.send(customer_id=1).id == group.id
