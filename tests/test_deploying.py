"""The files of ``docs/deploy``, and what ``docs/deploying.md`` says of stopping, connections, backups and erasing."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from datetime import timedelta
from io import StringIO
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from django.core.management import call_command, load_command_class
from django.db import connection
from django.utils import timezone

from horsies_django import TaskHandle, TaskStatus, Workflow, WorkflowHandle, sleep
from horsies_django.models import Schedule, Task, TaskAttempt, TaskItem, Worker, WorkflowTask
from horsies_django.models import Workflow as WorkflowRow
from horsies_django.ops.inspector import tasks as inspect_tasks
from horsies_django.worker.spawner import GROUP_GRACE
from horsies_django.worker.stop_signals import ABORT_TIMEOUT, LEAVE_TIMEOUT
from horsies_django.worker.supervisor import GRACE
from tests.chaos.fleet import stopped
from tests.conftest import ROOT, database_url, wait_until
from tests.enqueue.grouping import jobs as grouping
from tests.jobs import tasks
from tests.jobs.models import Entry
from tests.ops.inspector.factories import make
from tests.workflows import bodies

FOLDER = ROOT / "docs" / "deploy"
PAGE = (ROOT / "docs" / "deploying.md").read_text()
UNITS = sorted((FOLDER / "systemd").glob("*.service"))
MANIFESTS = sorted((FOLDER / "kubernetes").glob("*.yaml"))

#: The Kubernetes whose schemas the manifests must fit.
KUBERNETES = "1.30"

#: Seconds that the files add to ``--shutdown-timeout``.
MARGIN = 20


def read_yaml(path):
    return yaml.safe_load(path.read_text())


def containers_of(manifest):
    pod = manifest["spec"]["template"]["spec"]
    return [*pod.get("initContainers", []), *pod["containers"]]


def directives(unit):
    return dict(re.findall(r"^(\w+)=(.*)$", unit.read_text(), re.M))


def lines_of_procfile():
    return dict(line.split(": ", 1) for line in (FOLDER / "Procfile").read_text().splitlines())


def commands():
    """Yield every command line of a file as words, with the name of the file."""
    for unit in UNITS:
        yield unit.name, shlex.split(directives(unit)["ExecStart"])
    for line in lines_of_procfile().values():
        yield from (("Procfile", shlex.split(part)) for part in line.split("&&"))
    yield "Dockerfile", json.loads(dockerfile()["CMD"][0])
    for service in read_yaml(FOLDER / "compose.yaml")["services"].values():
        yield from (("compose.yaml", words) for words in _parts(service.get("command", [])))
    for path in MANIFESTS:
        for container in containers_of(read_yaml(path)):
            probe = container.get("readinessProbe", {}).get("exec", {}).get("command", [])
            for words in (*_parts(container["command"] + container.get("args", [])), *_parts(probe)):
                yield path.name, words


def _parts(words):
    """Return the commands in one line: those of a shell's script, or the words themselves."""
    if words[:2] != ["sh", "-c"]:
        return [words]
    return [shlex.split(part) for part in re.split(r"&&|\|", words[2])]


def dockerfile():
    """Return the values of each instruction."""
    text = re.sub(r"^#.*\n", "", (FOLDER / "Dockerfile").read_text(), flags=re.M)
    found = {}
    for name, value in re.findall(r"^([A-Z]+) (.*)$", text, re.M):
        found.setdefault(name, []).append(value)
    return found


OURS = [(name, words) for name, words in commands() if "manage.py" in words]


def test_the_page_links_to_every_file():
    linked = set(re.findall(r"\]\((deploy/[\w./-]+)\)", PAGE))

    assert linked == {str(path.relative_to(ROOT / "docs")) for path in FOLDER.rglob("*") if path.is_file()}


def test_every_file_with_commands_is_found():
    assert {name for name, _ in OURS} == {
        *(path.name for path in UNITS),
        *("Procfile", "Dockerfile", "compose.yaml", "release.yaml", "worker.yaml"),
    }


@pytest.mark.parametrize(("name", "words"), OURS, ids=[f"{name} {words[2]}" for name, words in OURS])
def test_the_commands_of_a_file_have_flags_that_exist(name, words):
    python, manage, command, *flags = words
    assert (Path(python).name, manage) == ("python", "manage.py")
    app = "horsies_django" if command.startswith("horsies_") else "django.core"
    if command == "runserver":
        app = "django.contrib.staticfiles"

    load_command_class(app, command).create_parser("manage.py", command).parse_args(flags)


def test_every_grace_period_is_long_enough_for_the_shutdown_timeout():
    assert MARGIN >= GRACE + GROUP_GRACE + LEAVE_TIMEOUT + ABORT_TIMEOUT

    worker = directives(FOLDER / "systemd" / "shop-worker.service")
    service = read_yaml(FOLDER / "compose.yaml")["services"]["worker"]
    pod = read_yaml(FOLDER / "kubernetes" / "worker.yaml")["spec"]["template"]["spec"]
    graces = {
        "shop-worker.service": int(worker["TimeoutStopSec"]),
        "compose.yaml": int(service["stop_grace_period"].removesuffix("s")),
        "worker.yaml": pod["terminationGracePeriodSeconds"],
        "Procfile": 30,  # that of Heroku
    }
    given = {name: words for name, words in OURS if words[2] == "horsies_worker" and name in graces}
    timeouts = {
        name: int(re.search(r"--shutdown-timeout[ =](\d+)", " ".join(words))[1]) for name, words in given.items()
    }
    assert {name: timeout + MARGIN for name, timeout in timeouts.items()} == graces


def test_the_grace_period_of_the_reaper_is_longer_than_its_stop():
    assert int(directives(FOLDER / "systemd" / "shop-reaper.service")["TimeoutStopSec"]) > LEAVE_TIMEOUT


@pytest.mark.parametrize("path", MANIFESTS, ids=[path.name for path in MANIFESTS])
def test_a_manifest_fits_the_schema_of_kubernetes(path):
    manifest = read_yaml(path)

    kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(manifest | {"unknown": 1}, KUBERNETES, strict=True)


@pytest.mark.slow
def test_the_compose_file_fits_the_compose_specification():
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, FOLDER / "compose.yaml"], capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("docker") is None, reason="docker is not installed")
def test_docker_compose_reads_the_compose_file():
    command = ["docker", "compose", "-f", str(FOLDER / "compose.yaml"), "config", "--quiet"]
    if subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=60, check=False).returncode:
        pytest.skip("docker has no compose plugin")

    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dockerfile_copies_what_exists_and_installs_an_extra_that_exists():
    instructions = dockerfile()
    sources = [word for line in instructions["COPY"] for word in shlex.split(line)[:-1]]

    assert all((ROOT / source).exists() for source in sources)
    extras = re.findall(r"\.\[(\w+)\]", "\n".join(instructions["RUN"]))
    assert extras
    assert all(re.search(rf"^{extra} = \[", (ROOT / "pyproject.toml").read_text(), re.M) for extra in extras)
    assert instructions["FROM"] == ["python:3.13-slim"]


@pytest.mark.parametrize("unit", UNITS, ids=[unit.name for unit in UNITS])
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_a_unit(unit, tmp_path):
    copy = tmp_path / unit.name
    text = unit.read_text().replace("/srv/shop/.venv/bin/python", sys.executable).replace("/srv/shop", str(ROOT))
    copy.write_text(text)

    def verify():
        command = ["systemd-analyze", "verify", "--man=no", str(copy)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr

    status, output = verify()
    assert status == 0, output
    assert unit.name not in output
    copy.write_text(text.replace("KillMode=", "KilMode=").replace("TimeoutStopSec=", "TimeoutStop="))
    assert "Unknown key" in verify()[1]


# Commands of the files, run.


@pytest.fixture
def shell(transactional_db):
    """Run lines in a shell, with ``python`` as that of the tests, on the test database."""
    started = []

    def start(line):
        process = subprocess.Popen(
            ["sh", "-c", line],
            cwd=ROOT,
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "DATABASE_URL": database_url(),
                "DJANGO_SETTINGS_MODULE": "tests.settings",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.slow
@pytest.mark.once
def test_the_lines_of_the_procfile_migrate_run_tasks_and_stop(shell):
    handle = tasks.add.send(1, b=2)
    lines = lines_of_procfile()

    release = shell(lines["release"])
    assert "Nothing would break." in release.communicate(timeout=120)[0]
    assert release.returncode == 0
    worker = shell(lines["worker"])
    assert handle.value(timeout=60) == 3
    os.killpg(worker.pid, signal.SIGTERM)  # to all processes, as Heroku does

    output, _ = worker.communicate(timeout=60)
    assert "worker stopped" in output
    assert not Worker.objects.exists()


@pytest.mark.slow
@pytest.mark.once
def test_the_readiness_probe_of_kubernetes_tells_whether_the_worker_is_healthy(shell, worker, tmp_path):
    (container,) = containers_of(read_yaml(FOLDER / "kubernetes" / "worker.yaml"))
    *_, script = container["readinessProbe"]["exec"]["command"]
    (place,) = (flag.partition("=")[2] for flag in container["args"] if flag.startswith("--heartbeat-file="))
    path = tmp_path / "heartbeat"
    assert place in script

    def probe():
        process = shell(script.replace(place, str(path)))
        process.communicate(timeout=60)
        return process.returncode

    assert probe() == 1
    process = worker("--heartbeat-file", str(path))
    wait_until(path.exists)
    assert probe() == 0
    with stopped(process.process.pid):
        os.utime(path, (time.time() - 120,) * 2)
        assert probe() == 1
    wait_until(lambda: probe() == 0)


@pytest.mark.slow
@pytest.mark.once
def test_a_worker_whose_bodies_do_not_end_stops_within_the_grace_period(worker, gate):
    process = worker("--shutdown-timeout", "1")
    tasks.hold.send("held", str(gate))
    wait_until(lambda: Entry.objects.exists())

    process.signal(signal.SIGTERM)

    assert process.wait(1 + MARGIN) == 0
    assert Task.objects.get().status == TaskStatus.FAILED


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.skipif("connection.vendor != 'postgresql'")
def test_a_worker_has_as_many_connections_as_the_page_says(worker, gate):
    processes, threads = 2, 3
    worker("--processes", str(processes), "--threads", str(threads), runners=processes)
    # Of each runner the producer, and of the supervisor the reaper and the scheduler.
    wait_until(lambda: connections_of_others() == processes + 2)

    for number in range(processes * threads):
        tasks.hold.send(str(number), str(gate))
    wait_until(lambda: Entry.objects.count() == processes * threads)

    assert connections_of_others() == processes * (1 + threads) + 2
    gate.touch()


def connections_of_others():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend'"  # not an autovacuum
        )
        return cursor.fetchone()[0]


# Recipes.


def block(start):
    """Return the Python block of the page that begins with this line."""
    for indent, code in re.findall(r"^( *)```python\n(.*?)^ *```$", PAGE, re.M | re.S):
        if (code := textwrap.dedent(code) if indent else code).startswith(start):
            return code
    raise AssertionError(start)


def run_block(start, **replaced):
    names = {}
    code = block(start)
    for old, new in replaced.items():
        assert old in code
        code = code.replace(old, new)
    exec(compile(code, "docs/deploying.md", "exec"), names)
    return names


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_after_the_recipe_for_a_restored_backup_nothing_old_runs(drain):
    in_flight = [make(state) for state in ("scheduled", "pending", "retrying", "claimed", "running")]
    done = make("completed")
    grouping.mail.send(customer_id=1)
    parent = Workflow("work", [tasks.write.node(node_id="sent")(key="old"), bodies.Leaf.node()(key="old")]).start()
    paused = Workflow("paused", [tasks.write.node()(key="old")]).start()
    paused.pause()
    Workflow("asleep", sleep(timedelta(hours=1)) >> tasks.write.node()(key="old")).start()
    Schedule(name="missed", task_name=tasks.write.task_name, args=["old"], timing="every:3600").save()
    Schedule(name="off", task_name=tasks.write.task_name, args=["old"], timing="every:3600", enabled=False).save()
    Schedule.objects.filter(enabled=True).update(next_run_at=timezone.now() - timedelta(hours=3))

    run_block("from horsies_django import WorkflowHandle")

    assert {Task.objects.get(pk=task.pk).status for task in in_flight} == {"CANCELLED"}
    assert Task.objects.get(pk=done.pk).status == "COMPLETED"
    assert {*WorkflowRow.objects.values_list("status", flat=True)} == {"CANCELLED"}
    assert not Task.objects.filter(status__in=["PENDING", "CLAIMED", "RUNNING"]).exists()
    assert Schedule.objects.get(name="missed").next_run_at > timezone.now()
    assert list(Schedule.objects.filter(enabled=True).values_list("name", flat=True)) == ["missed"]
    call_command("horsies_scheduler", once=True, stdout=StringIO())
    drain(no_reaper=False)
    assert not Entry.objects.exists()

    # What has no effect outside of the database is run again.
    call_command("horsies_task", "retry", "--all", "--status", "cancelled", "--task", tasks.noop.task_name, "--yes")
    assert parent.retry()
    drain()
    assert TaskHandle(in_flight[0].pk).status() == "COMPLETED"
    assert WorkflowHandle(parent.id).status() == "COMPLETED"
    assert Entry.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_without_its_last_line_the_recipe_for_a_restored_backup_leaves_schedules_disabled(drain):
    Schedule(name="missed", task_name=tasks.write.task_name, args=["old"], timing="every:3600").save()
    last = block("from horsies_django import WorkflowHandle").splitlines()[-1]
    assert ".enable()" in last

    run_block("from horsies_django import WorkflowHandle", **{last: ""})
    call_command("horsies_scheduler", once=True, stdout=StringIO())
    drain()

    assert not Schedule.objects.filter(enabled=True).exists()
    assert not Entry.objects.exists()


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_the_recipe_for_erasing_deletes_what_is_stored_of_one_person(drain):
    names = f'"{tasks.echo.task_name}", "{tasks.fail.task_name}"'
    erase = run_block("from django.db.models import Q", **{'"shop.tasks.invoice", "shop.tasks.remind"': names})["erase"]
    for customer in (7, 8):
        tasks.echo.send(customer, "private")
        tasks.fail.send(message="private")
        Task.objects.filter(task_name=tasks.fail.task_name, args=[]).update(args=[customer], kwargs={})
        tasks.echo.send(customer_id=customer, text="private")
        grouping.three.send_many({"key": customer, "customer_id": customer, "value": "private"} for _ in range(3))
        echo = tasks.echo.node(node_id="echo")(customer_id=customer, text="private")
        Workflow("work", [echo, bodies.Leaf.node()(key="k")]).start()
    drain()
    tasks.echo.schedule(3_600, customer_id=7, text="private")
    live = Workflow("live", [tasks.echo.node(queue_name="other")(customer_id=7, text="private")]).start()
    running = make("running", task_name=tasks.echo.task_name, kwargs={"customer_id": 7, "text": "private"})
    kept = {model: model.objects.count() for model in (TaskAttempt, TaskItem, WorkflowTask, WorkflowRow)}

    skipped = erase(7)

    (node_task,) = WorkflowTask.objects.filter(workflow=live.id).values_list("task", flat=True)
    assert {left.id for left in skipped} == {running.pk, node_task}
    Task.objects.filter(pk=running.pk).cancel(include_running=True)
    live.cancel()
    drain()
    assert erase(7) == ()
    assert not any(is_about(7, row) for model in kept for row in model.objects.values())
    assert not any(is_about(7, row) for row in Task.objects.values())
    assert any(is_about(8, row) for row in Task.objects.values())
    assert Task.objects.filter(task_name=tasks.echo.task_name).count() == 3
    assert TaskItem.objects.count() == kept[TaskItem] / 2
    assert {*WorkflowRow.objects.filter(parent=None).values_list("name", flat=True)} == {"work"}
    assert WorkflowRow.objects.count() == 2
    assert not inspect_tasks().list(status=["scheduled", "running"])


def is_about(customer, row):
    values = [row.get(name) for name in ("args", "kwargs", "result")]
    return any(value in ([customer], [customer, "private"]) for value in values) or any(
        isinstance(value, dict) and value.get("customer_id") == customer for value in values
    )
