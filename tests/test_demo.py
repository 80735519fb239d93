"""The demo, which the first command of the README runs."""

import os
import re
import signal
import socket
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from horsies_django import TaskHandle, WorkflowStatus
from horsies_django.models import Queue, Task, Worker, Workflow
from testproject.modules.analysis import BROKEN, sources
from testproject.modules.tasks import deliver, report
from tests.conftest import wait_until


def reports():
    return Task.objects.filter(task_name=report.module_path)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_demo_counts_the_same_as_a_plain_loop(manage, tmp_path):
    process = manage("demo", OUTBOX=str(tmp_path / "outbox"))

    assert process.wait(300) == 0, process.output
    expected = len(sources())
    assert expected > 600
    assert re.search(rf"reports .* {expected}/{expected}", process.output)
    assert re.search(r"A plain loop without the queue counts the same. [\d,]+ tasks/s", process.output)
    assert "Each task parses a module: this sets the rate, not the queue." in process.output
    assert "The ten largest modules" in process.output
    assert "Not approved in time" in process.output
    assert len(re.findall("report of .*DOES_NOT_PARSE", process.output)) == len(list(BROKEN.glob("*.txt"))) == 4
    assert "Failed" not in process.output
    assert "Success." in process.output.partition("Planned failures")[2]
    assert reports().completed().count() == expected - 4
    failed = reports().archived()
    assert {row.error_code for row in failed} == {"DOES_NOT_PARSE"}
    assert all("Error: " in row.attempts.get().traceback for row in failed)
    assert set(Workflow.objects.values_list("status", "depth")) == {("COMPLETED", 0), ("COMPLETED", 1)}


@pytest.mark.nightly
@pytest.mark.slow
def test_the_delivery_of_the_demo_fails_until_its_cause_is_fixed(manage, tmp_path):
    outbox = tmp_path / "outbox"
    process = manage("demo", OUTBOX=str(outbox))
    assert process.wait(300) == 0, process.output
    assert re.search("deliver .*Errno 2", process.output)
    (failed,) = Task.objects.filter(task_name=deliver.module_path).archived()

    outbox.mkdir()
    TaskHandle(failed.pk).retry()
    assert manage("horsies_worker", "--drain", OUTBOX=str(outbox)).wait(60) == 0

    assert TaskHandle(failed.pk).value() == str(outbox / "report.json")
    assert (outbox / "report.json").exists()


@pytest.mark.slow
def test_a_user_can_approve_the_report_of_the_demo(manage):
    process = manage("demo", "--patience", "600")
    wait_until(lambda: reports().exists(), limit=60)

    approval = manage("demo", "--approve")

    assert approval.wait(60) == 0, approval.output
    assert process.wait(300) == 0, process.output
    assert re.search(r"Approved by \w+\.", process.output)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.once
def test_the_demo_leaves_its_site_running_if_asked(manage):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    process = manage("demo", "--keep", address)
    wait_until(lambda: f"http://{address}/admin/" in process.output, limit=300)

    def opens():
        try:
            return urlopen(f"http://{address}/admin/login/", timeout=10).status == 200
        except (URLError, ConnectionError, TimeoutError):
            return False

    wait_until(opens, limit=60)
    os.killpg(process.process.pid, signal.SIGINT)  # as a terminal does

    assert process.wait(60) == 0, process.output
    assert not opens()
    assert not Worker.objects.exists()  # it stopped in order


@pytest.mark.slow
def test_approving_a_demo_that_does_not_run_is_an_error(manage):
    process = manage("demo", "--approve")

    assert process.wait(60) == 1
    assert "No demo is running." in process.output


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize(
    ("flag", "value"), [("--processes", "0"), ("--patience", "-1"), ("--patience", "nan"), ("--keep", "8000")]
)
def test_the_demo_rejects_an_invalid_flag_before_it_starts(manage, flag, value):
    process = manage("demo", flag, value)

    assert process.wait(60) == 1
    assert f"CommandError: {flag} is {value}; allowed: " in process.output


@pytest.mark.nightly
@pytest.mark.slow
def test_the_demo_fails_when_its_totals_differ(manage):
    """The demo detects lost tasks, here some that are cancelled."""
    Queue.objects.create(name="modules", paused=True)  # so that tasks wait until they are cancelled
    process = manage("demo", "--processes", "1")
    wait_until(lambda: reports().pending().exists(), limit=60)

    assert Task.objects.filter(pk__in=_last(50)).cancel() == 50
    Queue.objects.update(paused=False)

    assert process.wait(300) == 1
    assert "a plain loop" in process.output
    assert Workflow.objects.get(depth=0).status == WorkflowStatus.FAILED


def _last(count):
    """Return the reports of successful modules among the last to run."""
    broken = len(list(BROKEN.glob("*.txt")))
    return list(reports().order_by("-pk").values_list("pk", flat=True)[broken : broken + count])
