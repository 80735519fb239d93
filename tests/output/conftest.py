"""Options of the default backend for one test."""

import copy

import pytest

from tests.steps.conftest import read_entries, run_script, send_script  # noqa: F401  # fixtures


@pytest.fixture
def options(settings):
    """Return a function that sets options of the default backend."""

    def set_options(**options):
        tasks = copy.deepcopy(settings.TASKS)
        tasks["default"]["OPTIONS"].update(options)
        settings.TASKS = tasks

    return set_options


@pytest.fixture
def keep_logs(options):
    """Return a function that keeps the log of attempts."""

    def keep(**log):
        options(attempt_log=log)

    return keep
