"""``python manage.py check`` in a separate process."""

import os
import subprocess
import sys

import pytest

from horsies_django import Workflow, sleep
from horsies_django.core.compat import InvalidTask, task_backends
from horsies_django.models import Task
from tests.checks import alone
from tests.conftest import Process
from tests.jobs import tasks

FOLDER = "tests.checks"

pytestmark = [pytest.mark.once, pytest.mark.slow]


@pytest.fixture
def check(transactional_db):
    """Run the command under one of this folder's settings and return its exit status and its output."""

    def run(module):
        process = Process("check", DJANGO_SETTINGS_MODULE=f"{FOLDER}.{module}")
        status = process.wait()
        return status, process.output

    return run


def test_check_prints_every_mistake_of_every_backend_with_a_hint_for_each(check):
    status, output = check("all_wrong")

    assert status == 1
    assert "Traceback" not in output
    for message in (
        "['default']['OPTIONS']['database'] is 'nowhere'; allowed: 'default'.",
        "['default']['OPTIONS']['colour'] is not an option; allowed: database, listen_database, read_database, ",
        "['default']['OPTIONS']['serializer'] is 'pickle'; allowed: 'json' or 'rich'.",
        "['queues']['emials'] is not an option; allowed: the names in QUEUES: default, emails.",
        "['queues']['emails']['priority'] is 1000; allowed: a whole number from -100 to 100.",
        "['queues']['emails']['max_concurency'] is not an option; allowed: priority, weight, max_concurrency, ",
        "rate_limit, latency_warning, retention.",
        "['recovery']['claimed_stale_threshold_ms'] is 30000; allowed: at least 60000, twice ",
        "['retention']['completed'] is '7 fortnights'; allowed: ",
        "['retention']['failed'] is -1; allowed: ",
        "['worker']['threads'] is 0; allowed: a whole number from 1 to 1000.",
        "['worker']['processes'] is '2'; allowed: a whole number from 1 to 256.",
        "['worker']['treads'] is not an option; allowed: processes, threads, ",
        "['second']['OPTIONS']['worker']['poll_interval'] is 0; allowed: 0.01 to 3600 (seconds).",
        "['second']['OPTIONS']['recovery'] is None; allowed: a dict.",
    ):
        assert output.count(message) == 1, message
    assert output.count("USE_TZ is False; allowed: True") == 2  # once for each backend
    assert output.count("horsies.E001") + output.count("horsies.E002") == 16
    assert output.count("HINT: ") == output.count("(horsies.")
    for hint in ("Did you mean 'emails'?", "Did you mean 'max_concurrency'?", "Did you mean 'threads'?"):
        assert output.count(hint) == 1


def test_check_warns_of_sqlite_with_default_settings(check):
    status, output = check("bare_sqlite")

    assert status == 0
    assert "(horsies.W002) DATABASES['default'] is SQLite with deferred transactions" in output
    assert "HINT: Set OPTIONS['transaction_mode'] = 'IMMEDIATE'." in output
    assert "(horsies.W003) DATABASES['default'] is SQLite without write-ahead logging" in output
    assert "HINT: Set OPTIONS['init_command'] = 'PRAGMA journal_mode=WAL;'." in output
    assert "2 issues" in output


def test_check_refuses_a_queue_in_another_database_without_a_router(transactional_db, tmp_path):
    def check(**environment):
        settings = {"DJANGO_SETTINGS_MODULE": f"{FOLDER}.no_router", "OTHER_DATABASE": str(tmp_path / "other")}
        process = Process("check", **settings, **environment)
        return process.wait(), process.output

    status, output = check()
    assert status == 1
    assert "(horsies.E011) TASKS['default']['OPTIONS']['database'] is 'queue', and DATABASE_ROUTERS send" in output
    assert "HINT: Set DATABASE_ROUTERS = ['horsies_django.routers.QueueRouter'], or remove 'database'." in output

    assert "horsies.E" not in check(ROUTERS="horsies_django.routers.QueueRouter")[1]


def test_check_accepts_sqlite_with_the_documented_settings(check):
    status, output = check("good_sqlite")

    assert (status, "no issues" in output, "horsies." in output) == (0, True, False)


def test_check_warns_of_nothing_for_sqlite_in_memory(check):
    status, output = check("memory_sqlite")

    assert (status, "no issues" in output, "horsies." in output) == (0, True, False)


@pytest.mark.parametrize("has_pool", [False, True], ids=["kept connections", "pool"])
def test_check_warns_of_unchecked_connections_and_a_small_pool_without_a_server(check, has_pool):
    status, output = check("small_pool" if has_pool else "poor_postgres")

    assert status == 0
    assert "(horsies.W004) DATABASES['default'] keeps its connections and never checks them" in output
    warning = "(horsies.W005) DATABASES['default'] has a pool of 3 connections, and a runner has 6 threads"
    assert (warning in output) == has_pool
    assert output.count("HINT: ") == 1 + has_pool


def test_check_reports_that_the_app_is_not_installed(check):
    status, output = check("not_installed")

    assert status == 1
    assert "(horsies.E003)" in output
    assert "HINT: Add 'horsies_django' to INSTALLED_APPS and run migrate." in output


def test_check_reports_the_missing_app_if_the_urlconf_first_imports_a_task(check):
    status, output = check("late_and_not_installed")

    assert status == 1
    assert "TASKS['default'] uses HorsiesBackend, but 'horsies_django' is not in INSTALLED_APPS." in output


def test_check_reports_unknown_queues_misplaced_keys_and_ignored_priorities(check):
    status, output = check("careless")

    assert status == 1
    assert "Traceback" not in output
    for message in (
        "(horsies.E010) queue_name of tests.checks.lost_queues.tasks.mistyped is 'emials'; allowed: "
        "the QUEUES of TASKS['default'], default, emails.",
        "(horsies.E010) queue_name of tests.checks.lost_queues.tasks.unknown is 'reports'; allowed: ",
        "Did you mean 'emails'?",
        "(horsies.E001) TASKS['default']['QUEUE'] is not an option; allowed: BACKEND, QUEUES, OPTIONS.",
        "Did you mean 'QUEUES'?",
        "(horsies.E001) TASKS['default']['retention'] is not an option",
        "Put 'retention' into OPTIONS.",
        "(horsies.E002) TASKS['second']['QUEUES'] is 'default'; allowed: a list of names of queues.",
        "(horsies.W010) TASKS['default']['OPTIONS']['queues']['emails']['priority'] is 5, which counts where the "
        "workers' order is 'strict' alone; it is 'weighted'.",
    ):
        assert output.count(message) == 1, (message, output)
    assert output.count("(horsies.") == 6


def test_a_project_needs_no_admin_and_no_queue_named_default(settings, manage):
    settings.TASKS = alone.TASKS
    handle = Workflow("to be woken", [sleep(0)]).start()
    assert set(Task.objects.values_list("queue_name", flat=True)) == {"alarms"}

    worker = manage("horsies_worker", "--drain", DJANGO_SETTINGS_MODULE=f"{FOLDER}.alone")

    assert worker.wait() == 0, worker.output
    assert handle.status() == "COMPLETED"


#: What the README adds to the settings of a new project; no server is needed.
NEW_PROJECT = """
INSTALLED_APPS += ["horsies_django"]
TASKS = {"default": {"BACKEND": "horsies_django.backend.HorsiesBackend", "QUEUES": ["default", "emails"]}}
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "shop"}}
"""


def test_check_says_nothing_about_a_new_project_on_postgresql(tmp_path):
    def django(*arguments):
        command = [sys.executable, "-m", "django", *arguments]
        environment = os.environ | {"DJANGO_SETTINGS_MODULE": "shop.settings", "PYTHONPATH": str(tmp_path)}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    django("startproject", "shop", ".")
    with (tmp_path / "shop" / "settings.py").open("a") as settings:
        settings.write(NEW_PROJECT)

    check = django("check", "--fail-level", "WARNING")

    assert (check.returncode, check.stdout) == (0, "System check identified no issues (0 silenced).\n"), check.stderr


def test_check_refuses_a_listen_database_that_cannot_receive_the_notifications(check):
    status, output = check("listening")

    assert status == 1
    start = "TASKS['{0}']['OPTIONS']['listen_database'] is '{0}'"
    for alias, problem in {
        "other": ", which is another database than 'default': no notification arrives there.",
        "pooled": ", whose DISABLE_SERVER_SIDE_CURSORS says that it is behind a pooler, where LISTEN fails.",
        "sqlite": ", and the two are SQLite and PostgreSQL; allowed: PostgreSQL.",
    }.items():
        assert f"(horsies.E012) {start.format(alias)}{problem}" in output
    assert output.count("horsies.E012") == 3
    assert "['listen_database'] is 'nowhere'; allowed: 'default' or 'direct' or 'other' or " in output


def test_sending_a_task_to_an_unknown_queue_raises_invalid_task(settings):
    settings.TASKS = {"default": settings.TASKS["default"] | {"QUEUES": ["default"]}}
    task = tasks.noop.using(queue_name="default")
    settings.TASKS = {"default": settings.TASKS["default"] | {"QUEUES": ["emails"]}}

    with pytest.raises(InvalidTask, match="default"):
        task.send()


def test_the_settings_of_this_suite_have_no_errors():
    found = task_backends["default"].check()

    assert [message for message in found if message.id.startswith("horsies.E")] == []
