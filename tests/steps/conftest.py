"""Bodies that a test writes in place."""

import inspect

import pytest

from horsies_django import RetryPolicy
from horsies_django.testing import drain
from tests.jobs.entries import entries
from tests.steps import scripts


@pytest.fixture
def send_script():
    """Return a function that sends a task with this body, these attempts and these options."""

    def send(body, attempts=1, **options):
        if attempts > 1:
            options["retry_policy"] = RetryPolicy.constant(0, max_retries=attempts - 1, auto_retry_for=["*"])
        scripts.bodies.append(body)
        task = scripts.ascripted if inspect.iscoroutinefunction(body) else scripts.scripted
        return task.with_options(**options).send()

    yield send
    scripts.bodies.clear()


@pytest.fixture
def run_script(send_script):
    """Return a function that runs a task with this body, and returns its handle."""

    def run(body, **options):
        handle = send_script(body, **options)
        drain(retries=True)
        return handle

    return run


@pytest.fixture(name="entries")
def read_entries():
    """Return a function that returns the effects so far."""
    return entries
