"""The eighteen jobs of an operator, each from the overview, with at most so many clicks.

Some of them come a second time, with steps, output and rows.

The site is in the middle of an incident: see :mod:`tests.admin.scale.incident`. Tests that change it leave the rows
that others need: the failed tasks of the incident are retried by the last test.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta

from django.contrib.auth import get_user_model
from django.urls import reverse
from django.utils.timezone import localtime
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from horsies_django import Batch
from horsies_django.models import ErrorGroup, Queue, Schedule, Task, WorkflowTask
from tests.admin.scale.incident import CHARGE, DECLINED, MINUTES, PAYMENTS, TENANT
from tests.conftest import wait_until

from .conftest import command
from .shop.tasks import count, pack, refuse

#: The name of the incident's error on pages.
ERROR = DECLINED.rsplit(".", 1)[-1]

#: A link from the overview to the due tasks of a queue.
DUE_IN = '#horsies-wide-queues a[href*="queue_name={}"]'


def worker():
    """Run a worker for the queue of the tasks that really run."""
    return command("horsies_worker", "--queues", "stock", "--no-reaper", "--no-scheduler")


def open_failed_task(operator):
    """Open the task that has failed last, from the overview in two clicks."""
    operator.click(ERROR)
    operator.await_text("Last failure")
    operator.click_css(".horsies-last a")
    operator.await_text("Traceback")


def test_01_the_cause_and_the_beginning_of_failures_are_found(operator):
    group = ErrorGroup.objects.get(exception_class=DECLINED)
    assert operator.text_of("#horsies-wide-errors tbody tr").startswith(ERROR)  # the first row

    operator.click(ERROR)
    operator.await_text("Last failing")

    since = localtime(group.first_seen_at)
    assert group.last_seen_at - since > timedelta(minutes=MINUTES - 1)
    assert operator.shows(f"{since:%Y-%m-%d %H:%M}")
    for text in ("the provider refused the connection", "payments/provider.py", CHARGE, PAYMENTS):
        assert operator.shows(text)
    assert operator.clicks <= 1


def test_02_the_task_that_fails_most_and_its_errors_are_found(operator):
    operator.click("Tasks by name")
    operator.await_text("TOTAL RUN TIME")
    operator.click("failed or retried")
    operator.await_text("FAILED OR RETRIED ↓")
    assert operator.text_of("#horsies-wide-names tbody tr th") == CHARGE
    operator.click(CHARGE)

    operator.await_text(ERROR)
    assert operator.clicks <= 3


def test_04_all_tasks_of_one_tenant_are_cancelled(operator):
    of_tenant = Task.objects.filter(queue_name=PAYMENTS, kwargs__user_id=TENANT)
    number = of_tenant.filter(status="PENDING").count()
    others = Task.objects.filter(queue_name=PAYMENTS, status="PENDING").count() - number
    operator.click_css(DUE_IN.format(PAYMENTS))
    operator.await_text("Search")
    operator.enter("#searchbar", f"args.user_id:{TENANT}", submit=True)
    operator.await_text(f"Search: args.user_id:{TENANT}")
    operator.choose_all("cancel")
    operator.await_text(f"Matching tasks on all pages: {number}")
    operator.click(f"Cancel {number} tasks")
    operator.await_text(f"{number} tasks cancelled.")

    assert number > 0
    assert of_tenant.filter(status="CANCELLED").count() == number
    assert Task.objects.filter(queue_name=PAYMENTS, status="PENDING").count() == others
    assert operator.clicks <= 7


def test_04_all_tasks_about_one_row_are_cancelled(operator):
    user = get_user_model().objects.get(username="viewer")
    waiting = count.with_options(queue_name="media")  # a paused queue
    other = waiting.send("never")
    handles = [waiting.about(user).send("never") for _ in range(3)]
    operator.driver.refresh()
    operator.click_css(DUE_IN.format("media"))
    operator.await_text("Search")
    operator.click_css("#result_list tbody tr th a")
    operator.await_text("All tasks about this row")
    operator.click("All tasks about this row")
    operator.await_text(f"About: auth.User:{user.pk}")
    operator.click_css("#action-toggle")
    operator.choose("cancel")
    operator.await_text("3 tasks cancelled.")

    assert [handle.status() for handle in handles] == ["CANCELLED"] * 3
    assert other.status() == "PENDING"
    assert operator.clicks <= 6
    other.cancel()


def test_05_what_runs_now_for_how_long_and_how_far_is_read(operator):
    longest = Task.objects.filter(status="RUNNING").order_by("started_at").first()
    operator.click("Running now")
    operator.await_text("Longest running first")

    row = operator.text_of("#result_list tbody tr")
    assert longest.task_name.rsplit(".", 1)[-1] in row
    assert " h " in row  # the run time
    assert f"{longest.progress['done']}/100 rows" in row
    assert operator.clicks <= 1


def test_06_the_reason_why_a_task_is_not_running_is_read(operator):
    operator.click_css(DUE_IN.format("media"))
    operator.await_text("Search")
    operator.click_css("#result_list tbody tr .field-listed_task a, #result_list tbody tr th a")
    operator.await_text("Why it is not running")

    assert operator.shows("The queue media is paused.")
    assert operator.clicks <= 2


def test_06_the_event_that_a_task_waits_for_is_read_and_sent(operator):
    handle = pack.send(7)
    with worker():
        wait_until(lambda: Task.objects.awaiting().filter(pk=handle.id).exists())
        operator.driver.refresh()
        operator.click_css(".horsies-tile-awaiting a")
        operator.await_text("packed")
        operator.click_css("#result_list tbody tr th a")
        operator.await_text("It is waiting for the event packed")
        for text in ("pick", "order 7 is picked"):  # its steps and its output say how far it has come
            assert operator.shows(text)
        operator.click("Send event")
        operator.await_text("Send an event to")
        operator.enter("[name=payload]", '"large"')
        operator.click_css(".submit-row button.default")

        assert handle.get(60).is_ok()
    assert operator.clicks <= 4


def test_07_a_queue_that_has_fallen_behind_is_seen_with_the_time_since_when(operator):
    first = localtime(ErrorGroup.objects.get(exception_class=DECLINED).first_seen_at)
    since = [f"since {first + timedelta(minutes=late):%H:%M}" for late in range(-1, 4)]  # the queue is late after it
    warning = operator.text_of(".horsies-warnings li")
    assert warning.startswith(f"Queue {PAYMENTS}: latency")
    assert any(words in warning for words in since)
    operator.click(PAYMENTS)

    operator.await_text("Wait time, last hour, by minute")
    assert any(operator.shows(words) for words in since)
    assert operator.clicks <= 1


def test_08_the_tasks_that_a_worker_holds_are_listed(operator):
    held = Task.objects.filter(status__in=("RUNNING", "CLAIMED"))
    worker_id = held.filter(status="RUNNING").values_list("claimed_by_worker_id", flat=True).order_by("started_at")[0]
    operator.click("Workers")
    operator.await_text("TASKS IN PROGRESS")
    operator.click(worker_id[: worker_id.rindex("-") + 9])
    operator.await_text(worker_id)

    # In one call, because a refresh of the page replaces them.
    selector = "#content a[href*='/task/']"
    links = operator.driver.execute_script(f'return [...document.querySelectorAll("{selector}")].map(a => a.href)')
    for key in held.filter(claimed_by_worker_id=worker_id).values_list("pk", flat=True):
        assert any(str(key) in link for link in links)
    assert operator.clicks <= 2


def test_09_a_queue_is_paused_and_resumed(operator):
    operator.click("emails")
    operator.click("Pause")
    operator.await_text("1 queue paused.")
    assert Queue.objects.get(name="emails").paused
    operator.click("Resume")
    operator.await_text("1 queue resumed.")
    assert not Queue.objects.get(name="emails").paused
    assert operator.clicks <= 3


@contextmanager
def limit_restored():
    """Remove the limit of the queue at the end, for later jobs."""
    try:
        yield
    finally:
        Queue.objects.filter(name="stock").update(max_concurrency=None)


def test_10_a_limit_is_changed_and_obeyed(operator, tmp_path):
    running = Task.objects.filter(queue_name="stock", status="RUNNING")
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    count.send_many({"gate": first} for _ in range(3))
    with worker(), limit_restored():
        wait_until(lambda: running.count() == 3)
        operator.driver.refresh()
        operator.click("stock")
        operator.await_text("Maximum number of tasks in progress")
        operator.enter("#id_max_concurrency", "1")
        operator.click("Save")
        operator.await_text("successfully")
        count.send_many({"gate": second} for _ in range(3))
        (tmp_path / "first").touch()
        # One of the three new ones runs, rather than the last of the old ones.
        wait_until(lambda: Task.objects.filter(queue_name="stock", status="PENDING").count() == 2)
        operator.click("stock")
        operator.await_text("Maximum number of tasks in progress")
        operator.click_css("#content a[href*='state=active']")
        operator.await_text("items", reload=True)

        # In one script, since the list is refreshed all the time.
        texts = "return [...document.querySelectorAll('#result_list tbody tr')].map((row) => row.innerText)"
        (row,) = operator.driver.execute_script(texts)
        assert "count" in row
        assert Task.objects.filter(queue_name="stock", status="PENDING").count() == 2
        assert operator.clicks <= 4
        (tmp_path / "second").touch()
        wait_until(lambda: not Task.objects.filter(queue_name="stock", status__in=("PENDING", "RUNNING")).exists())


def test_11_a_schedule_is_added_previewed_edited_and_disabled(operator):
    operator.click_css("#nav-sidebar a[href$='/schedule/add/']")
    operator.await_text("Add schedule")
    operator.enter("[name=name]", "nightly count")
    operator.enter("[name=task_name]", "shop.stock.tasks.refuse")
    operator.enter("[name=timing]", "30 9 * * *")
    operator.await_text("At 09:30")
    operator.enter("[name=args]", "[1]")
    operator.click("Save and continue editing")
    operator.await_text("was added successfully")
    operator.enter("[name=timing]", "every:3600")
    operator.await_text("every hour")
    operator.click("Save and continue editing")
    operator.await_text("was changed successfully")
    assert Schedule.objects.get().timing.removeprefix("every:") == "3600"
    operator.click("Disable")
    operator.await_text("disabled by an operator")

    assert not Schedule.objects.get().enabled
    assert operator.clicks <= 4


def test_12_the_failing_node_of_a_workflow_is_found_and_retried(operator):
    operator.click_css("#horsies-wide-failed-workflows th a")
    operator.await_text("step_3 failed")
    operator.click("Retry step_3")
    operator.await_text("The node runs again")
    operator.click("Retry step_3")
    operator.await_text("6 nodes")

    flow = operator.driver.current_url.split("/workflow/")[1].split("/")[0]
    assert WorkflowTask.objects.get(workflow_id=flow, node_id="step_3").status == "ENQUEUED"
    assert operator.clicks <= 3


def test_13_the_progress_of_a_batch_is_read_and_its_failures_are_retried(operator):
    with Batch("restock") as batch:
        batch.add_many(refuse, [{"order": number, "reason": ""} for number in range(6)])
        batch.add_many(refuse, [{"order": number, "reason": "sold out"} for number in range(6, 10)])
    with worker():
        wait_until(lambda: batch.handle.progress().done)
    operator.driver.refresh()
    operator.click("restock")
    operator.await_text("Batch of 10 tasks")
    assert operator.shows("6 Completed")
    assert operator.shows("4 Failed")
    operator.click("Retry failed tasks")
    operator.await_text("4 nodes run again.")
    operator.click("Retry failed nodes of 1 workflow")
    operator.await_text("4 Enqueued")

    assert Task.objects.filter(workflow_id=batch.handle.id, status="PENDING").count() == 4
    assert operator.clicks <= 3


def test_14_arguments_error_and_traceback_are_read_and_copied(operator):
    open_failed_task(operator)

    assert '"user_id":' in operator.copy("horsies-text-kwargs")
    assert operator.copy("horsies-text-args").startswith("[")
    assert operator.copy("horsies-traceback-text").startswith("Traceback (most recent call last):")
    assert operator.shows("UNHANDLED_EXCEPTION")
    assert operator.clicks <= 6


def test_14_the_last_words_before_a_failure_are_read(operator):
    handle = pack.send(8)
    handle.send_event("packed", "small")
    with worker():
        assert handle.get(60).is_err()
    operator.driver.refresh()
    operator.click_css(".horsies-tile-failed a")
    operator.await_text("order 8 does not fit")
    operator.click_css("#result_list tbody tr th a")
    operator.await_text("Log and output")

    assert operator.shows("order 8 does not fit")
    assert operator.shows("order 8 is in the box small")
    assert operator.clicks <= 2


def test_15_a_link_to_a_filtered_list_says_what_it_shows(operator):
    operator.click_css(".horsies-tile-failed a")
    operator.await_text("Search")
    operator.enter("#searchbar", f"queue:{PAYMENTS}", submit=True)
    operator.await_text(f"Search: queue:{PAYMENTS}")
    assert operator.clicks <= 2
    link = operator.driver.current_url
    operator.log_in_as("viewer")
    operator.driver.get(link)

    assert operator.driver.title.startswith("Failed, ")
    assert f"Search: queue:{PAYMENTS} | Tasks" in operator.driver.title
    assert operator.text_of(".horsies-tabs [aria-current]").startswith("Failed")
    assert f"queue:{PAYMENTS}" in operator.text_of(".horsies-chips")
    assert operator.text_of("#result_list tbody").count(PAYMENTS) > 10


def test_16_a_user_with_read_only_rights_sees_all_and_changes_nothing(operator):
    operator.log_in_as("viewer")
    operator.begin()
    operator.click("emails")
    operator.await_text("Wait time, last hour, by minute")
    pages = [operator.driver.current_url]
    operator.driver.back()
    open_failed_task(operator)
    pages.append(operator.driver.current_url)
    task = pages[-1].split("/task/")[1].split("/")[0]
    assert operator.clicks <= 3

    for page in pages:
        operator.driver.get(page)
        assert operator.driver.find_elements(By.CSS_SELECTOR, "#content form[method=post] [type=submit]") == []
        assert not operator.shows("Run again")
    for name in ("errorgroup", "schedule", "workflow", "worker", "limit", "heartbeat", "task"):
        operator.go(f"{name}_changelist")
        assert operator.driver.find_elements(By.CSS_SELECTOR, "#content form[method=post] [type=submit]") == []
    for address in (
        reverse("admin:horsies_django_task_do", args=[task, "retry"]),
        reverse("admin:horsies_django_task_run_again", args=[task]),
        reverse("admin:horsies_django_queue_do", args=["~emails", "pause"]),
    ):
        assert operator.post(address) == 403
    assert Task.objects.get(pk=task).status == "FAILED"
    assert not Queue.objects.get(name="emails").paused


def test_17_a_queue_is_paused_on_a_phone_by_keyboard_in_the_dark(operator):
    operator.use_phone_screen(390)
    operator.set_color_scheme("dark")
    operator.begin()
    operator.tab_to(PAYMENTS)
    operator.press(Keys.ENTER)
    operator.await_text("Wait time, last hour, by minute")
    assert not operator.scrolls_sideways
    operator.tab_to("Pause")
    operator.press(Keys.SPACE)
    operator.await_text("1 queue paused.")

    assert Queue.objects.get(name=PAYMENTS).paused
    Queue.objects.filter(name=PAYMENTS).update(paused=False)


def test_18_a_failed_task_is_run_again_with_other_arguments(operator):
    open_failed_task(operator)
    failed = operator.driver.current_url.split("/task/")[1].split("/")[0]
    operator.click("Run again…")
    operator.await_text("Enter it again")
    operator.click("Run again")
    operator.await_text("The task was not sent.")  # without the token
    operator.enter("[name=kwargs]", '{"user_id": 7, "token": "tok_new"}')
    operator.click("Run again")
    operator.await_text("This is a new task, run again from")

    assert Task.objects.get(rerun_of_id=failed).kwargs == {"user_id": 7, "token": "tok_new"}
    assert not operator.shows("tok_new")
    assert operator.clicks <= 5


def test_03_all_failures_of_one_kind_are_retried(operator):
    failed = Task.objects.filter(fingerprint=ErrorGroup.objects.get(exception_class=DECLINED).pk, status="FAILED")
    keys = list(failed.values_list("pk", flat=True))
    others = Task.objects.filter(status="FAILED").count() - len(keys)
    operator.click(ERROR)
    operator.click(f"Retry {len(keys):,} failed tasks")
    operator.await_text("Matching tasks")
    operator.click(f"Retry {len(keys):,} tasks")
    operator.await_text(f"{len(keys):,} tasks re-queued.")

    assert len(keys) > 1000
    assert Task.objects.filter(pk__in=keys, status="PENDING").count() == len(keys)
    assert Task.objects.filter(status="FAILED").count() == others
    assert operator.clicks <= 3
