"""A body's changes to its context do not affect other bodies or the caller of an inline drain."""

import pytest
from django.core.management import call_command
from django.test import TestCase
from django.utils import translation

from tests.worker import isolation_jobs as jobs


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.django_db(transaction=True)
def test_context_variables_language_and_time_zone_do_not_leak_to_the_next_body(drain):
    expected = jobs.found()
    leaving = [jobs.leave, jobs.leave_atomically, jobs.aleave, jobs.aleave_and_fail]
    reports = []
    for leave in leaving:
        leave.send()
        reports += [report.send() for report in (jobs.report, jobs.report_atomically, jobs.areport)]
    same = [jobs.identities.send() for _ in range(3)]

    drain(threads=1, async_slots=1)

    assert {tuple(found) for report in reports for found in report.value(0)} == {tuple(expected)}
    # The bodies of a thread share a cache, which may hold a connection, and a backend, which reads the settings.
    assert len({tuple(handle.value(0)) for handle in same}) == 1
    assert jobs.found() == expected


class InsideATestCase(TestCase):
    """Bodies run in the thread of the test."""

    @pytest.mark.slow
    @pytest.mark.sqlite
    def test_a_drain_runs_bodies_in_the_callers_language_and_restores_it(self):
        with translation.override("fr"):
            expected = jobs.found()
            reports = []
            for leave in (jobs.leave, jobs.leave_atomically, jobs.aleave):
                leave.send()
                reports += [jobs.report.send(), jobs.report_atomically.send()]

            call_command("horsies_worker", drain=True, verbosity=0)

            assert [report.value(0) for report in reports] == [[expected]] * 6
            assert (jobs.found(), expected[1]) == (expected, "fr")
