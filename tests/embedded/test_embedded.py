"""``horsies_django.embedded`` and ``OPTIONS["embedded"]``: a worker in threads of a web process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from horsies_django import embedded
from horsies_django.core.compat import task_backends
from horsies_django.models import Lease, Task, TaskAttempt, Worker
from tests.conftest import ROOT, wait_until
from tests.embedded import jobs
from tests.embedded.site import PYTHON, runserver, serve_runserver, sites, worker_pid
from tests.jobs import tasks
from tests.jobs.models import Entry

UNDER_RUNSERVER = {"embedded": {"when": "runserver"}}

#: A server in C that handles SIGTERM, of which Python does not know.
SERVER_IN_C = """
import ctypes, signal, sys

libc = ctypes.CDLL(None)
libc.signal(signal.SIGTERM, ctypes.cast(libc.abs, ctypes.c_void_p))
import site_wsgi

sys.exit(signal.getsignal(signal.SIGTERM) != signal.SIG_DFL)
"""


#: A site that starts a process of its own, which does not serve it, as it is loaded.
FORK_HELPER = """
import multiprocessing, threading
import site_wsgi

helper = multiprocessing.get_context("fork").Process(target=threading.Event().wait)
helper.start()
helper.join()
"""

#: A site whose user presses Ctrl-C again just as its process begins to end.
PRESS_CTRL_C_AGAIN = """
import signal, sys, threading
import site_wsgi

def press_again(frame, event, argument):
    if event == "call" and frame.f_code is signal.signal.__code__:
        sys.setprofile(None)
        signal.raise_signal(signal.SIGINT)

try:
    threading.Event().wait()
except KeyboardInterrupt:
    sys.setprofile(press_again)
"""

#: A system check that gives a worker that has begun too early the time to show it.
SLOW_CHECK = """
import threading
from django.core.checks import register

@register
def wait(**kwargs):
    threading.Event().wait(3)
    return []
"""

#: A system check that shows the threads, because 'check' runs no other code.
THREADS_CHECK = """
import threading
from django.core.checks import register

@register
def show_threads(**kwargs):
    print([thread.name for thread in threading.enumerate()], flush=True)
    return []
"""


@pytest.fixture
def start(tmp_path):
    with sites(tmp_path) as start:
        yield start


@pytest.fixture
def gate(tmp_path):
    return tmp_path / "gate"


def gunicorn(*flags):
    return (sys.executable, "-m", "gunicorn", "--bind", "127.0.0.1:0", *flags, "site_wsgi")


def uvicorn(*flags):
    return (sys.executable, "-m", "uvicorn", "--port", "0", *flags, "site_asgi:application")


def daphne():
    return (sys.executable, "-m", "daphne", "-p", "0", "site_asgi:application")


#: Commands of servers, and what each writes, how often, when it has served its last request.
SERVERS = {
    "gunicorn": (gunicorn(), {"Worker exiting": 1}),
    "uvicorn": (uvicorn(), {"Finished server process": 1}),
    "uvicorn with workers": (
        uvicorn("--workers", "2"),
        {"Finished server process": 2, "Waiting for child process": 1},
    ),
    "gunicorn with uvicorn": (
        (*gunicorn("-k", "uvicorn_worker.UvicornWorker")[:-1], "site_asgi:application"),
        {"Finished server process": 1},
    ),
    "daphne": (daphne(), {"Killed 0 pending application instances": 1}),
}

#: It has 16 dependencies, so it is only where ``tox -e beside`` installs it.
with_daphne = pytest.mark.skipif(
    find_spec("daphne") is None and "REQUIRE_DAPHNE" not in os.environ, reason="daphne is missing"
)
#: At Ctrl-C, uvicorn under gunicorn ends its process by the signal.
SIGNALS = [
    pytest.param(name, number, marks=[with_daphne] * (name == "daphne"))
    for name in SERVERS
    for number in (signal.SIGTERM, signal.SIGINT)
    if (name, number) != ("gunicorn with uvicorn", signal.SIGINT)
]


def press_ctrl_c(site):
    """Signal all processes of the site, as a terminal does."""
    os.killpg(site.process.pid, signal.SIGINT)


def handles_signal(pid, number):
    caught = Path(f"/proc/{pid}/status").read_text().partition("SigCgt:")[2].split()[0]
    return int(caught, 16) >> number - 1 & 1


def pid_of(key):
    """Return the process in which the last body with this key began, once it has."""
    return wait_until(lambda: Entry.objects.filter(key=key).order_by("-pk").values_list("pid", flat=True).first())


def assert_put_back(handle):
    task = Task.objects.get(pk=handle.id)
    assert (task.status, task.retry_count) == ("PENDING", 0)
    assert not Worker.objects.exists()


@pytest.mark.sqlite
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
class TestRunserver:
    def test_the_process_that_serves_requests_runs_tasks_and_no_other(self, start):
        site = start(*runserver(), **UNDER_RUNSERVER)

        assert tasks.add.send(1, 2).value(timeout=60) == 3
        assert worker_pid() != site.process.pid
        site.wait_for("task completed")
        assert site.output.count("worker ready") == 1

    def test_ctrl_c_leaves_neither_lease_nor_worker(self, start):
        site = serve_runserver(start)  # the reloader kills a server that needs more than a quarter of a second to end
        worker_pid()

        press_ctrl_c(site)
        site.process.wait(20)
        assert not Lease.objects.filter(name__startswith="embedded").exists()
        assert not Worker.objects.exists()

    def test_it_waits_for_the_tables(self, start, django_db_blocker):
        with_table = Task._meta.db_table
        from django.db import connection

        with connection.schema_editor() as editor:
            editor.alter_db_table(Task, with_table, "horsies_away")
        try:
            site = start(*runserver("--noreload"), **UNDER_RUNSERVER)
            site.wait_for("embedded worker waits backend=default: The tables of horsies_django are not in")
        finally:
            with connection.schema_editor() as editor:
                editor.alter_db_table(Task, "horsies_away", with_table)

        assert tasks.add.send(1, 2).value(timeout=60) == 3

    def test_a_reload_puts_back_what_runs_by_its_policy(self, start, gate):
        site = start(*runserver(), **UNDER_RUNSERVER)
        handle, other = jobs.hold.send("again", str(gate)), tasks.hold.send("once", str(gate))
        first = pid_of("again")
        pid_of("once")

        # Until the reloader has seen the file for the first time, it does not notice a change.
        wait_until(lambda: os.utime(site.settings) or "worker stopping" in site.output)

        wait_until(lambda: pid_of("again") != first, what=f"it runs again: {site.output}")
        gate.touch()
        assert handle.value(timeout=60) == "again"
        attempts = TaskAttempt.objects.filter(task=handle.id).order_by("attempt")
        assert list(attempts.values_list("outcome", flat=True)) == ["WORKER_FAILURE", "COMPLETED"]
        assert other.get(timeout=60).err.error_code == "WORKER_CRASHED"
        assert Task.objects.get(pk=handle.id).retry_count == 0  # a stop is not charged

    def test_the_next_start_recovers_at_once_what_a_killed_process_has_left(self, start, gate):
        first = start(*runserver("--noreload"), **UNDER_RUNSERVER)
        handle = jobs.hold.send("again", str(gate))
        pid_of("again")
        first.kill()
        gate.touch()

        start(*runserver("--noreload"), **UNDER_RUNSERVER)

        assert handle.value(timeout=60) == "again"  # heartbeats would show it after two minutes
        assert Task.objects.get(pk=handle.id).retry_count == 1
        wait_until(lambda: Worker.objects.count() == 1, what="the row of the dead worker is deleted")

    def test_a_body_that_can_not_be_interrupted_keeps_its_slot(self, start, tmp_path):
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        site = start(*runserver("--noreload"), **UNDER_RUNSERVER, worker={"timeout_grace": 0.1})
        stuck = jobs.read_pipe.send(str(pipe))

        site.wait_for("it keeps its slot until it ends")
        assert tasks.add.send(1, 2).value(timeout=60) == 3
        assert stuck.status() == "RUNNING"

        with suppress(BrokenPipeError):  # the body is interrupted as soon as its open() returns
            pipe.write_text("late")
        assert stuck.get(timeout=60).err.error_code == "TASK_TIMEOUT"
        assert site.output.count("worker ready") == 1

    def test_a_busy_port_fails_no_task(self, start, tmp_path):
        (tmp_path / "site_checks.py").write_text(SLOW_CHECK)
        handle = tasks.add.send(1, 2)

        with socket.create_server(("127.0.0.1", 0)) as other:
            site = start(
                *PYTHON,
                "runserver",
                f"127.0.0.1:{other.getsockname()[1]}",
                "--noreload",
                modules=["site_checks"],
                **UNDER_RUNSERVER,
            )
            assert site.process.wait(60) == 1

        assert "That port is already in use" in site.output
        assert handle.status() == "PENDING"

    def test_a_body_that_outlives_the_stop_is_recovered_by_the_next_start(self, start, tmp_path):
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        site = serve_runserver(start, worker={"timeout_grace": 0.1})
        stuck = jobs.read_pipe_for_long.send(str(pipe))
        wait_until(lambda: stuck.status() == "RUNNING")

        press_ctrl_c(site)
        site.process.wait(60)
        assert stuck.status() == "RUNNING"

        serve_runserver(start)
        assert stuck.get(timeout=60).err.error_code == "WORKER_CRASHED"

    @pytest.mark.parametrize("is_shared", [False, True])
    def test_a_coroutine_that_waits_for_a_thread_holds_up_no_exit(self, start, tmp_path, is_shared):
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        site = serve_runserver(start)
        handle = jobs.read_pipe_in_thread.send(str(pipe), is_shared=is_shared)
        wait_until(lambda: handle.status() == "RUNNING")

        press_ctrl_c(site)

        site.process.wait(60)
        assert "Traceback" not in site.output

    def test_a_worker_that_fails_starts_again_and_recovers_its_tasks(self, start):
        site = serve_runserver(start)
        handle = jobs.break_worker.send()

        assert handle.value(timeout=60) == "again"
        assert "embedded worker failed" in site.output

    def test_an_operators_stop_holds_for_all_processes_of_the_host(self, start):
        serve_runserver(start)
        wait_until(Worker.objects.all().request_stop)  # it is ready before it has its row
        wait_until(lambda: not Worker.objects.exists())

        lease = Lease.objects.get(name__startswith="embedded")
        is_renewed = Lease.objects.filter(holder=lease.holder, renewed_at__gt=lease.renewed_at)
        wait_until(is_renewed.exists)

    def test_a_task_that_has_not_begun_is_not_running(self, start):
        handles = jobs.count_running.send_many({} for _ in range(300))

        serve_runserver(start)

        assert max(handle.value(timeout=60) for handle in handles) <= 2

    def test_options_that_need_a_process_are_ignored(self, start):
        site = serve_runserver(start, worker={"max_memory_mb": 16, "state_dir": "/nonexistent"})

        assert tasks.add.send(1, 2).value(timeout=60) == 3
        assert "an embedded worker has no processes names=max_memory_mb,state_dir" in site.output


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
class TestHosts:
    def test_of_two_processes_of_a_host_one_works_and_the_other_takes_over(self, start, gate):
        first = serve_runserver(start)
        second = start(*runserver("--noreload"), **UNDER_RUNSERVER)
        handle = jobs.hold.send("again", str(gate))
        assert pid_of("again") == first.process.pid
        second.wait_for("Starting development server")
        assert worker_pid() == first.process.pid

        first.kill()
        gate.touch()

        assert handle.value(timeout=60) == "again"
        assert pid_of("again") == second.process.pid

    def test_a_process_that_stands_still_loses_its_lease(self, start):
        first = serve_runserver(start)
        first.stand_still()

        second = serve_runserver(start)

        first.process.send_signal(signal.SIGCONT)
        first.wait_for("lost its lease")
        first.wait_for("worker stopped")
        assert worker_pid() == second.process.pid

    def test_each_host_works(self, start):
        for host in ("one", "two"):
            start(*runserver("--noreload"), host=host, **UNDER_RUNSERVER)

        wait_until(lambda: set(Worker.objects.values_list("hostname", flat=True)) == {"one", "two"})


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
class TestServers:
    def test_of_the_processes_that_gunicorn_forks_from_a_preloaded_site_one_works(self, start, gate):
        site = start(*gunicorn("--preload", "--workers", "2"))
        handle = jobs.hold.send("again", str(gate))
        first = pid_of("again")
        assert first == worker_pid() != site.process.pid

        os.kill(first, signal.SIGKILL)
        wait_until(lambda: pid_of("again") != first, what=f"it runs again: {site.output}")
        gate.touch()

        assert handle.value(timeout=60) == "again"
        assert site.process.pid != pid_of("again")

    def test_of_the_processes_of_uvicorn_one_works_until_another_takes_over(self, start, gate):
        site = start(*uvicorn("--workers", "2"))
        site.wait_for("Application startup complete", 2)
        handle = jobs.hold.send("again", str(gate))
        first = pid_of("again")
        assert first == worker_pid() != site.process.pid
        assert Lease.objects.filter(name__startswith="embedded").count() == 1

        os.kill(first, signal.SIGKILL)
        wait_until(lambda: pid_of("again") != first, what=f"it runs again: {site.output}")
        gate.touch()

        assert handle.value(timeout=60) == "again"
        wait_until(lambda: Worker.objects.count() == 1, what="the row of the dead worker is deleted")

    @pytest.mark.once
    @pytest.mark.parametrize(("server", "number"), SIGNALS)
    def test_a_signal_to_a_server_stops_in_order(self, start, server, number, gate):
        command, ends = SERVERS[server]
        site = start(*command, worker={"shutdown_timeout": 10})
        handle = tasks.hold.send("key", str(gate))
        pid_of("key")

        if number == signal.SIGINT:
            press_ctrl_c(site)
        else:
            site.process.send_signal(number)
        if (server, number) == ("gunicorn", signal.SIGINT):  # then the log of its process may be cut short
            ends = {"Handling signal: int": 1}
        for text, count in ends.items():
            site.wait_for(text, count)
        gate.touch()

        assert handle.value(timeout=60) == "key"
        # uvicorn ends by the signal that has stopped it.
        assert site.process.wait(20) == (-number if (server, number) == ("uvicorn", signal.SIGTERM) else 0)
        assert not Lease.objects.filter(name__startswith="embedded").exists()
        assert not Worker.objects.exists()
        assert "Traceback" not in site.output

    @pytest.mark.once
    @pytest.mark.parametrize("server", ["uvicorn", pytest.param("daphne", marks=with_daphne)])
    def test_a_second_ctrl_c_puts_back_what_runs(self, start, server, gate):
        command, ends = SERVERS[server]
        site = start(*command, worker={"shutdown_timeout": 600})
        handle = jobs.hold.send("again", str(gate))
        pid_of("again")

        press_ctrl_c(site)
        for text, count in ends.items():
            site.wait_for(text, count)
        # Until the worker has taken over its signals, the server may take another Ctrl-C for a part of the first.
        wait_until(lambda: handles_signal(site.process.pid, signal.SIGQUIT))
        press_ctrl_c(site)

        site.process.wait(60)
        assert_put_back(handle)

    @pytest.mark.once
    def test_a_second_ctrl_c_right_after_the_first_puts_back_what_runs(self, start, gate):
        site = start(sys.executable, "-c", PRESS_CTRL_C_AGAIN, worker={"shutdown_timeout": 600})
        handle = jobs.hold.send("again", str(gate))
        pid_of("again")

        press_ctrl_c(site)

        site.process.wait(60)
        assert_put_back(handle)

    def test_a_helper_that_the_site_forks_takes_no_work_from_it(self, start):
        site = start(sys.executable, "-c", FORK_HELPER)

        assert tasks.add.send(1, 2).value(timeout=60) == 3
        assert worker_pid() == site.process.pid

    @pytest.mark.once
    def test_the_handler_of_a_server_in_c_stays(self, start, tmp_path):
        (tmp_path / "server.py").write_text(SERVER_IN_C)

        assert start(sys.executable, str(tmp_path / "server.py")).process.wait(60) == 0


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("command", ["shell", "check", "test"])
def test_no_other_command_starts_a_worker(start, tmp_path, command):
    threads = "import threading; print([thread.name for thread in threading.enumerate()])"
    (tmp_path / "site_checks.py").write_text(THREADS_CHECK)
    (tmp_path / "site_tests.py").write_text(f"import site_asgi, site_wsgi; {threads}\n")
    arguments = {"shell": ["-c", threads], "check": [], "test": ["site_tests"]}[command]

    site = start(*PYTHON, command, *arguments, modules=["site_checks"], **UNDER_RUNSERVER)

    assert site.process.wait(60) == 0
    assert "MainThread" in site.output
    assert "horsies" not in site.output.replace("horsies_django", "")


@pytest.fixture
def options(settings):
    def set_options(**options):
        settings.TASKS = {"default": {"BACKEND": "horsies_django.backend.HorsiesBackend", "OPTIONS": options}}
        return task_backends["default"]

    return set_options


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tasks_per_child", 100),
        ("max_memory_mb", 100),
        ("stall_timeout", 100.0),
        ("heartbeat_file", "/run/beat"),
        ("state_dir", "/run/state"),
    ],
)
def test_start_refuses_options_that_need_a_process(options, name, value):
    assert options(worker={name: value}, **UNDER_RUNSERVER).check() == []
    with pytest.raises(ImproperlyConfigured, match=rf"\['worker'\] has {name}: an embedded worker has no processes"):
        embedded.start()


def test_start_does_nothing_in_a_test():
    embedded.start()

    assert not [thread for thread in threading.enumerate() if thread.name.startswith("horsies-embedded")]


@pytest.mark.parametrize("threads", [0, 1_001, "2", None])
def test_the_number_of_threads_is_checked(threads):
    with pytest.raises(ValueError, match=r"threads is .*; allowed: a whole number from 1 to 1000"):
        embedded.start(threads)


def test_an_unknown_backend_is_an_error():
    with pytest.raises(ValueError, match="There is no HorsiesBackend at TASKS\\['other'\\]"):
        embedded.start(backend="other")


@pytest.mark.slow
def test_a_database_in_memory_is_refused():
    program = (
        "import django; from django.conf import settings\n"
        "settings.configure(INSTALLED_APPS=['django.contrib.contenttypes', 'horsies_django'], USE_TZ=True,\n"
        "    DATABASES={'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': ':memory:'}},\n"
        "    TASKS={'default': {'BACKEND': 'horsies_django.backend.HorsiesBackend'}})\n"
        "django.setup()\n"
        "from horsies_django import embedded\n"
        "embedded.start()\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}

    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True)

    assert "The database 'default' is in memory: no other thread can see its tasks." in done.stderr
