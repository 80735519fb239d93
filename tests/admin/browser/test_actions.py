"""Actions of an operator, by mouse and by keyboard, while workers run."""

import pytest
from django.contrib.admin.models import LogEntry
from django.db.models.functions import Now
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from horsies_django import TaskStatus, Workflow
from horsies_django.admin.actions import bulk_action
from horsies_django.models import Queue, Task, Worker
from tests.conftest import wait_until
from tests.jobs import tasks
from tests.worker.test_stopping import send_hold


def test_a_failed_task_is_retried_and_completes(browser, worker, tmp_path):
    handle = tasks.fail_until.send(str(tmp_path / "fixed"))
    worker()
    wait_until(lambda: handle.status() == TaskStatus.FAILED)
    browser.go("task_change", handle.id)
    for text in ("State", "FileNotFoundError", "Sent at", "Traceback"):
        assert browser.shows(text)

    (tmp_path / "fixed").touch()
    browser.click("Retry")

    browser.await_text("1 task re-queued.")
    browser.await_text("Completed", reload=True)
    assert handle.status() == TaskStatus.COMPLETED


def test_a_running_task_is_cancelled(browser, worker, tmp_path):
    worker()
    handle, _ = send_hold(tmp_path / "gate")
    browser.go("task_change", handle.id)

    browser.click("Cancel and stop")
    browser.await_text("Running tasks are asked to stop.")
    browser.click("Cancel and stop 1 task")

    browser.await_text("1 task cancelled.")
    assert handle.status() == TaskStatus.CANCELLED
    wait_until(lambda: not Task.objects.active().exists())


@pytest.mark.nightly
def test_a_thousand_failed_tasks_are_retried_at_once(browser, worker):
    tasks.noop.send_many({} for _ in range(1000))
    Task.objects.update(status="FAILED", failed_at=Now(), attempt=1, claim=1, error_code="UNHANDLED_EXCEPTION")
    other = tasks.on_emails.send()
    Task.objects.filter(pk=other.id).update(status="FAILED", failed_at=Now(), error_code="OTHER")
    browser.go("task_changelist")
    browser.click_on(By.PARTIAL_LINK_TEXT, "Failed")
    browser.driver.find_element(By.ID, "searchbar").send_keys("error:UNHANDLED_EXCEPTION", Keys.ENTER)

    browser.choose_all("retry")
    browser.await_text("Matching tasks on all pages: 1,000")
    browser.click("Retry 1,000 tasks")

    browser.await_text("1,000 tasks re-queued.")
    assert Task.objects.filter(status="PENDING").count() == 1000
    worker("--threads", "8")
    wait_until(lambda: Task.objects.filter(status="COMPLETED").count() == 1000, limit=60)
    assert other.status() == TaskStatus.FAILED


@pytest.mark.nightly
def test_an_action_that_takes_several_requests_continues_by_itself(browser, monkeypatch):
    tasks.noop.send_many({} for _ in range(1200))
    monkeypatch.setattr(bulk_action, "WORK_SECONDS", 0.0)  # the site's threads run in this process
    browser.go("task_changelist")

    browser.choose_all("cancel")
    browser.click("Cancel 1,200 tasks")

    browser.await_text("1,200 tasks cancelled.")
    assert LogEntry.objects.count() > 1  # one for each request


def test_a_failed_task_is_found_and_retried_by_keyboard(browser, drain):
    handle = tasks.fail.send()
    drain()
    browser.go("overview_changelist")

    browser.tab_into(".horsies-tile-failed a")
    browser.press(Keys.ENTER)
    browser.await_text("1 task on this page")
    browser.tab_to("fail\ntests.jobs.tasks")
    browser.press(Keys.ENTER)
    browser.await_text("State and times")
    browser.tab_to("Retry")
    browser.press(Keys.ENTER)

    browser.await_text("1 task re-queued.")
    assert handle.status() == TaskStatus.PENDING


def test_the_rows_of_a_list_are_reached_past_the_filters_by_keyboard(browser):
    tasks.noop.send()
    browser.go("task_changelist")

    browser.tab_to("Skip to the results")
    browser.press(Keys.ENTER)

    browser.tab_to("noop\ntests.jobs.tasks", limit=3)  # two checkboxes come first


@pytest.mark.nightly
def test_a_queue_is_paused_by_keyboard(browser):
    tasks.noop.send()
    browser.go("queue_changelist")

    browser.tab_to("default")
    browser.press(Keys.ENTER)
    browser.await_text("Max concurrency")
    browser.tab_to("Pause")
    browser.press(Keys.SPACE)

    browser.await_text("1 queue paused.")
    assert Queue.objects.get(name="default").paused


@pytest.mark.nightly
def test_each_node_of_a_graph_is_reached_by_keyboard(browser):
    names = ("first", "second", "third")  # a workflow of two nodes has no graph
    first, second, third = (tasks.noop.node(node_id=name)() for name in names)
    browser.go("workflow_change", Workflow("three", first >> second >> third).start().id)

    for name in names:
        browser.tab_into("#horsies-flow-graph a")
        assert browser.driver.switch_to.active_element.accessible_name.startswith(f"{name}, ")
    browser.press(Keys.ENTER)

    browser.await_text("Node third")


def test_a_queue_is_paused_and_resumed(browser, worker):
    worker()
    browser.go("queue_changelist")
    browser.click("default")
    browser.click("Pause")
    browser.await_text("1 queue paused.")
    handles = tasks.noop.send_many({} for _ in range(3))
    others = tasks.on_emails.send_many({} for _ in range(3))

    wait_until(lambda: all(handle.status() == TaskStatus.COMPLETED for handle in others))
    assert {handle.status() for handle in handles} == {TaskStatus.PENDING}
    browser.await_text("3", reload=True)
    browser.click("Resume")

    browser.await_text("1 queue resumed.")
    wait_until(lambda: all(handle.status() == TaskStatus.COMPLETED for handle in handles))


def test_queues_are_paused_from_the_list(browser):
    row = Queue.objects.create(name="reports")
    browser.go("queue_changelist")

    browser.choose("pause", row.pk, "~default")

    browser.await_text("2 queues paused.")
    assert Queue.objects.filter(paused=True).count() == 2


def test_a_worker_that_is_asked_to_stop_exits_once_its_task_ends(browser, worker, tmp_path):
    process = worker("--threads", "1", TEST_HEARTBEAT_MS="500", TEST_STALE_MS="60000")
    handle, _ = send_hold(tmp_path / "gate")
    browser.go("worker_changelist")
    assert browser.shows("1/1")
    browser.go("worker_change", Worker.objects.get().pk)
    assert browser.shows("tests.jobs.tasks.hold")

    browser.click("Stop gracefully")
    browser.await_text("finishes the running ones")
    browser.click("Stop 1 worker gracefully")

    browser.await_text("1 worker was asked to stop.")
    browser.await_text("stopping")
    (tmp_path / "gate").touch()
    assert process.wait() == 0
    assert handle.status() == TaskStatus.COMPLETED


@pytest.mark.nightly
def test_the_list_of_workers_refreshes_itself(browser, worker, tmp_path):
    worker("--threads", "2")
    browser.go("worker_changelist")
    assert browser.shows("0/2")

    send_hold(tmp_path / "gate")

    browser.await_text("1/2")
    assert browser.shows("hold")
    (tmp_path / "gate").touch()
