"""What every page owes to whoever looks at it: no fault that axe finds, no scrolling sideways, text that stays text."""

import pytest
from django.db import transaction
from django.db.models.functions import Now

from horsies_django.models import Queue, Task, TaskAttempt, Worker
from tests.jobs import tasks

HOSTILE = '<script>document.title = "taken"</script><img src=x onerror="document.title=\'taken\'">'


@pytest.fixture
def place(transactional_db):
    """Some of everything; the arguments of each page by its name."""
    failed = tasks.fail.send()
    Task.objects.filter(pk=failed.id).update(
        status="FAILED",
        failed_at=Now(),
        error_code="BROKEN",
        task_name=HOSTILE,
        args=[HOSTILE, "x" * 300],
        result={"err": {"error_code": "BROKEN", "message": HOSTILE, "exception": {"traceback": HOSTILE}}},
    )
    row = Task.objects.get(pk=failed.id)
    TaskAttempt.objects.create(
        task=row,
        attempt=1,
        outcome="FAILED",
        started_at=Now(),
        finished_at=Now(),
        traceback=HOSTILE,
        error_message=HOSTILE,
    )
    Worker.objects.register(
        "a-host-with-a-long-name-" + "0" * 32, "a-host", "a-host", 1, threads=8, async_slots=100, memory=80_000_000,
        queues=["default", "emails", "reports", "a-queue-with-a-long-name"], version="1.2.3",
    )  # fmt: skip
    tasks.noop.send_many({} for _ in range(5))
    with transaction.atomic():
        Task.objects.claim(Worker.objects.get().pk, start=4)
    queue = Queue.objects.create(name="emails", paused=True, max_concurrency=5)
    return {
        "index": (),
        "task_changelist": (),
        "task_change": (failed.id,),
        "queue_changelist": (),
        "queue_change": (queue.pk,),
        "queue_add": (),
        "worker_changelist": (),
        "worker_change": (Worker.objects.get().pk,),
        "worker_do": (Worker.objects.get().pk, "stop"),
    }


#: The pages that are looked at; whoever adds a page adds it here and to ``place``.
PAGES = (
    "index",
    "task_changelist",
    "task_change",
    "queue_changelist",
    "queue_change",
    "queue_add",
    "worker_changelist",
    "worker_change",
    "worker_do",
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_axe_finds_no_grave_fault(browser, place, page, scheme):
    browser.scheme(scheme)

    browser.go(page, *place[page])

    assert browser.grave_faults() == []


@pytest.mark.parametrize("page", PAGES)
def test_a_phone_need_not_be_scrolled_sideways(browser, place, page):
    browser.phone()

    browser.go(page, *place[page])

    assert not browser.scrolls_sideways


@pytest.mark.parametrize("page", ["task_changelist", "task_change", "worker_change"])
def test_what_a_task_says_is_text_whatever_it_says(browser, place, page):
    Task.objects.filter(status="RUNNING").update(task_name=HOSTILE, progress={"done": 1, "message": HOSTILE})

    browser.go(page, *place[page])

    assert HOSTILE in browser.text
    assert browser.driver.title != "taken"
