"""Each log record names the task whose code wrote it."""

from __future__ import annotations

import ast
import json
import logging
import re
import traceback

import pytest
from pythonjsonlogger.json import JsonFormatter

from horsies_django import Workflow, current_task, task
from horsies_django.log import TaskContextFilter
from horsies_django.testing import drain
from tests.conftest import ROOT
from tests.jobs import tasks

logger = logging.getLogger("shop.orders")


@task(max_attempts=2, backoff=0)
def say(word: str) -> list[str | int | None]:
    logger.warning("said %s", word)
    current = current_task()
    assert current is not None
    return [str(current.id), current.name, current.queue_name, current.attempt, str(current.workflow_id)]


@task
async def asay() -> str:
    logger.warning("said it in a coroutine")
    current = current_task()
    return "" if current is None else current.name


@task
def fail() -> None:
    raise ValueError("out of luck")


class Records(logging.Handler):
    """Keeps records in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.addFilter(TaskContextFilter())

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def of(self, name: str) -> list[dict[str, object]]:
        """Return the attributes of the records of a logger."""
        names = ("task_id", "task_name", "queue", "attempt", "workflow_id")
        return [{key: getattr(record, key) for key in names} for record in self.records if record.name == name]


@pytest.fixture
def records():
    handler = Records()
    names = ("shop.orders", "horsies_django.worker")
    for name in names:
        logging.getLogger(name).addHandler(handler)
    yield handler
    for name in names:
        logging.getLogger(name).removeHandler(handler)


@pytest.mark.django_db
def test_records_of_a_body_and_of_the_worker_name_the_task(records, caplog):
    caplog.set_level(logging.INFO, "horsies_django.worker")
    handle = say.with_options(queue_name="emails").send("hello")

    drain()

    expected = {
        "task_id": str(handle.id),
        "task_name": say.task_name,
        "queue": "emails",
        "attempt": 1,
        "workflow_id": None,
    }
    assert records.of("shop.orders") == [expected]
    assert [one for one in records.of("horsies_django.worker") if one["task_id"]] == [expected] * 2  # start and end
    assert handle.value(0) == [str(handle.id), say.task_name, "emails", 1, "None"]


@pytest.mark.django_db
def test_a_node_of_a_workflow_names_it_and_a_coroutine_has_a_context_too(records):
    workflow = Workflow("says", [say.node()(word="a")]).start()
    asay.send()

    assert {handle.value(0) if isinstance(handle.value(0), str) else "" for handle in drain().handles} == {
        "",
        asay.task_name,
    }
    assert {one["workflow_id"] for one in records.of("shop.orders")} == {str(workflow.id), None}


@pytest.mark.django_db
def test_the_logged_traceback_of_a_failure_begins_in_the_function(records):
    fail.send()

    drain()

    (record,) = (record for record in records.records if record.exc_info)
    assert [frame.name for frame in traceback.extract_tb(record.exc_info[2])] == ["fail"]


@pytest.mark.django_db
def test_an_error_that_a_body_returns_is_logged_without_a_traceback(records):
    tasks.returns_error.send("NO_SUCH_ITEM")

    drain()

    (record,) = (record for record in records.records if record.levelno == logging.ERROR)
    assert "NO_SUCH_ITEM" in record.getMessage()
    assert record.exc_info is None


def test_outside_of_a_task_the_attributes_are_none(records):
    logger.warning("between two tasks")

    assert current_task() is None
    assert set(records.of("shop.orders")[0].values()) == {None}


def test_attributes_that_a_record_has_stay():
    record = logging.makeLogRecord(
        {"task_id": "mine", "task_name": None, "queue": "q", "attempt": 7, "workflow_id": None}
    )

    assert TaskContextFilter().filter(record)
    assert (record.task_id, record.attempt) == ("mine", 7)


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.django_db(transaction=True)
def test_threads_of_a_worker_each_have_their_own_task(worker):
    sent = [tasks.current_ids.send() for _ in range(4)]
    worker("--processes", "1", "--threads", "4")

    for handle in sent:
        assert handle.value(30) == [str(handle.id)] * 2


@pytest.mark.django_db
def test_the_json_configuration_of_the_docs_writes_one_object_a_line(capsys):
    page = (ROOT / "docs" / "logging.md").read_text()
    (block,) = re.findall(r"^```python\n(LOGGING = .*?)^```$", page, re.M | re.S)
    config = ast.literal_eval(block.removeprefix("LOGGING = "))
    handler = logging.StreamHandler()
    parts = config["formatters"]["json"]
    handler.setFormatter(JsonFormatter(parts["fmt"]))
    handler.addFilter(TaskContextFilter())
    logger.addHandler(handler)
    try:
        handle = say.send("hello")
        drain()
    finally:
        logger.removeHandler(handler)

    lines = [line for line in capsys.readouterr().err.splitlines() if '"said hello"' in line]
    (written,) = map(json.loads, lines)
    assert config["filters"]["task"]["()"] == f"{TaskContextFilter.__module__}.{TaskContextFilter.__qualname__}"
    assert parts["()"] == f"{JsonFormatter.__module__}.{JsonFormatter.__qualname__}"
    assert (written["task_id"], written["task_name"], written["attempt"]) == (str(handle.id), say.task_name, 1)
