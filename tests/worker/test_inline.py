"""A worker in the calling process, inside the transaction of a test."""

import os
import threading

import pytest
from django.core.management import call_command
from django.test import TestCase

from horsies_django import TaskStatus
from horsies_django.signals import task_cancelled, task_finished, task_retrying
from tests.jobs import tasks
from tests.jobs.models import Entry
from tests.worker.signals import jobs as signal_jobs


class InsideATestCase(TestCase):
    """The test's transaction is rolled back, so only this connection sees the tasks."""

    def test_a_drain_runs_the_tasks_that_the_test_has_enqueued(self):
        handle, failed = tasks.write.send("inline"), tasks.fail.send()
        coroutine = tasks.awrite.send("coroutine")

        call_command("horsies_worker", drain=True, verbosity=0)

        assert handle.status() == coroutine.status() == TaskStatus.COMPLETED
        assert failed.get(0).err.error_code == "UNHANDLED_EXCEPTION"
        assert set(Entry.objects.values_list("key", flat=True)) == {"inline", "coroutine"}

    def test_a_drain_calls_signal_receivers_and_runs_the_tasks_that_they_send(self):
        received, sent = [], []

        def send_another(sender, task_result, signal, **facts):
            received.append((signal, task_result.id, threading.current_thread()))
            if signal is task_finished and len(sent) < 2:
                sent.append(tasks.write.send(f"after {len(sent)}"))

        for signal in (task_finished, task_retrying):
            signal.connect(send_another)
            self.addCleanup(signal.disconnect, send_another)
        first, failing = tasks.noop.send(), signal_jobs.fail.send()

        call_command("horsies_worker", drain=True, verbosity=0)

        here, ended = threading.current_thread(), [first, *sent]
        expected = {(task_retrying, str(failing.id), here), *((task_finished, str(one.id), here) for one in ended)}
        assert (set(received), len(received)) == (expected, 4)
        assert set(Entry.objects.values_list("key", flat=True)) == {"after 0", "after 1"}

    def test_a_signal_sent_on_commit_comes_with_captured_on_commit_callbacks(self):
        received = []

        def receive(sender, task_result, **facts):
            received.append(task_result.id)

        task_cancelled.connect(receive)
        self.addCleanup(task_cancelled.disconnect, receive)
        handle = tasks.noop.send()

        with self.captureOnCommitCallbacks(execute=True):
            handle.cancel()
            assert received == []

        assert received == [str(handle.id)]

    def test_an_inline_once_worker_runs_the_tasks_of_one_claim(self):
        handles = [tasks.noop.send(), tasks.noop.send()]

        call_command("horsies_worker", once=True, verbosity=0)

        assert sorted(handle.status() for handle in handles) == [TaskStatus.COMPLETED, TaskStatus.PENDING]


@pytest.mark.slow
@pytest.mark.django_db
def test_a_worker_without_tables_asks_to_run_migrate(tmp_path):
    import os
    import subprocess
    import sys

    from tests.conftest import ROOT

    environment = {**os.environ, "DATABASE_URL": f"sqlite:///{tmp_path}/empty.sqlite3"}
    process = subprocess.run(
        [sys.executable, "manage.py", "horsies_worker", "--drain"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert process.returncode == 1
    assert "manage.py migrate" in process.stderr
    assert "Traceback" not in process.stderr


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("until", ["drain", "once"])
def test_a_test_run_starts_no_processes_even_if_the_settings_ask_for_them(until, settings):
    backend = settings.TASKS["default"]
    worker = {"processes": 2, "threads": 1}
    settings.TASKS = {"default": {**backend, "OPTIONS": {**backend["OPTIONS"], "worker": worker}}}
    tasks.write.send("here")

    call_command("horsies_worker", verbosity=0, **{until: True})

    assert Entry.objects.get().pid == os.getpid()


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_runner_refuses_to_start_on_another_database_than_its_supervisor(capfd):
    handle = tasks.noop.send()

    with pytest.raises(SystemExit) as ended:  # a new process reads the settings, which do not name the test database
        call_command("horsies_worker", no_scheduler=True, no_reaper=True)

    assert ended.value.code == 1
    assert handle.status() == TaskStatus.PENDING
    errors = capfd.readouterr().err
    assert "This runner would work on another database than the process that started it: 'default'" in errors
    assert "Traceback" not in errors
