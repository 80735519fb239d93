"""Output of commands that does not depend on LOGGING."""

import pytest

from tests.conftest import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once, pytest.mark.slow]

QUIET = {"DJANGO_SETTINGS_MODULE": "tests.management.quiet_settings"}


@pytest.mark.parametrize(("flags", "lines"), [([], 1), (["--processes", "2"], 2), (["-v", "0"], 0)])
def test_a_worker_prints_that_it_is_ready_and_its_queues(manage, flags, lines):
    process = manage("horsies_worker", "--drain", "--queues", "default,emails", "--name", "x" * 100, *flags, **QUIET)

    assert process.wait() == 0, process.output
    assert process.output.count("worker ready") == process.output.count("queues=default,emails") == lines


def test_a_worker_whose_log_is_shown_prints_only_once_that_it_is_ready(manage):
    process = manage("horsies_worker", "--drain")

    assert process.wait() == 0, process.output
    assert process.output.count("worker ready") == 1


def test_a_verbose_reaper_prints_each_pass(manage):
    process = manage("horsies_reaper", "--interval", "0.1", "-v", "2", **QUIET)

    wait_until(lambda: process.output.count("reaper pass: nothing to do\n") > 1, 30)
    process.stop()
