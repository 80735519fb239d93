"""What commands say however LOGGING is set."""

import pytest

from tests.conftest import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once, pytest.mark.slow]

MUTE = {"DJANGO_SETTINGS_MODULE": "tests.management.quiet_settings"}


@pytest.mark.parametrize(("flags", "lines"), [([], 1), (["--processes", "2"], 2), (["-v", "0"], 0)])
def test_a_worker_says_that_it_is_ready_and_for_which_queues(manage, flags, lines):
    process = manage("horsies_worker", "--drain", "--queues", "default,emails", "--name", "x" * 100, *flags, **MUTE)

    assert process.wait() == 0, process.output
    assert process.output.count("worker ready") == process.output.count("queues=default,emails") == lines


def test_where_our_own_log_is_shown_it_is_said_once(manage):
    process = manage("horsies_worker", "--drain")

    assert process.wait() == 0, process.output
    assert process.output.count("worker ready") == 1


def test_a_reaper_says_each_pass_if_asked_to(manage):
    process = manage("horsies_reaper", "--interval", "0.1", "-v", "2", **MUTE)

    wait_until(lambda: process.output.count("reaper pass: nothing to do\n") > 1, 30)
    process.stop()
