"""What a worker keeps of bodies that have ended."""

import gc
import logging

import pytest
from django.db import connections

from horsies_django.db.connection import own_connection
from horsies_django.exceptions import TaskFailed
from tests.worker.execution import memory_jobs as jobs

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


@pytest.mark.slow
@pytest.mark.parametrize("has_receivers", [False, True])
def test_a_runner_keeps_no_local_variable_of_failed_bodies(worker, has_receivers):
    worker("--processes", "1", "--threads", "1")
    if has_receivers:
        jobs.receive_signals.send().value(20)
    failing = [jobs.fail, jobs.fail_twice, jobs.fail_atomically, jobs.afail, jobs.fail_in_a_group]

    for body in failing:
        assert body.send().get(20).is_err()

    assert jobs.count_locals.send().value(20) == [len(failing) + 1, 0]


def test_a_drain_keeps_the_tracebacks_of_its_last_20_failures_for_callers(drain, caplog):
    caplog.set_level(logging.CRITICAL, "horsies_django.worker")  # pytest keeps logged exceptions
    jobs.references.clear()
    handles = [jobs.fail.send() for _ in range(25)]
    try:
        drain(threads=1)
    finally:
        gc.enable()

    assert sum(reference() is not None for reference in jobs.references) == 20
    with pytest.raises(TaskFailed) as failure:
        handles[-1].value(0)
    assert failure.value.__cause__.__traceback__.tb_frame.f_locals


@pytest.mark.parametrize("body", [jobs.count_queries, jobs.acount_queries], ids=["thread", "shared thread"])
def test_with_debug_the_log_of_queries_begins_anew_with_each_body(drain, settings, body):
    settings.DEBUG = True
    handles = [body.send() for _ in range(3)]

    drain(threads=1, async_slots=1)

    assert [handle.value(0) for handle in handles] == [0, 0, 0]


def test_with_debug_the_connections_of_the_worker_itself_keep_no_log_of_queries(settings):
    settings.DEBUG = True

    with own_connection("default", "guard"):
        connections["default"].cursor().execute("SELECT 1")
        assert not connections["default"].queries_log
