"""What one body sets in its thread's context, no other body finds; nor does the caller of a drain in its process."""

import pytest
from django.core.management import call_command
from django.test import TestCase
from django.utils import translation

from tests.worker import isolation_jobs as jobs


@pytest.mark.once
@pytest.mark.django_db(transaction=True)
def test_a_body_finds_neither_variables_nor_language_nor_time_zone_of_the_body_before(drain):
    expected = jobs.found()
    handles = [job.send() for job in (jobs.leave, jobs.report, jobs.identities, jobs.leave, jobs.report)]
    handles += [jobs.identities.send() for _ in range(3)]

    drain(threads=1, async_slots=1)

    values = [handle.value(0) for handle in handles]
    assert values[1] == values[4] == expected
    # A cache may hold a connection, so a thread's bodies share one; and a backend reads settings when it is made.
    assert len({tuple(value) for value in (values[2], *values[5:])}) == 1
    assert jobs.found() == expected


class InsideATestCase(TestCase):
    """Bodies run in this thread."""

    def test_a_drain_runs_bodies_in_the_callers_language_and_leaves_it_as_it_was(self):
        with translation.override("fr"):
            expected = jobs.found()
            handles = [jobs.leave.send(), jobs.report.send()]

            call_command("horsies_worker", drain=True, verbosity=0)

            assert handles[1].value(0) == jobs.found() == expected
            assert expected[1] == "fr"
