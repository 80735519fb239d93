"""Options of the default backend for one test, and sites that serve the events of its tasks."""

import copy

import pytest

from tests.embedded.site import sites
from tests.output.event_stream import PLAIN_ASGI, address_of
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


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Return a function that starts a site and returns it and its address."""
    monkeypatch.setenv("ALLOWED_HOSTS", "*")
    (tmp_path / "plain_asgi.py").write_text(PLAIN_ASGI)
    with sites(tmp_path) as start:

        def serve_site(*command):
            site = start(*command, modules=["tests.output.jobs"])
            return site, address_of(site)

        yield serve_site
