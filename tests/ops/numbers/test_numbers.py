"""Every number that an operator sees is that of SQL which these tests state, for random tasks in every state."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from html import unescape
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client

from horsies_django.core.compat import task_backends
from horsies_django.db.clock import database_now
from horsies_django.models import depths
from horsies_django.ops.metrics import counts
from horsies_django.reaper.rollup import roll_up
from tests.extras.monitoring import TOKEN, scrape, values, with_metrics
from tests.ops.numbers.rows import LIMITS, QUEUES, RandomTasks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

ADMIN = "/admin/horsies_django"

PENDING = "status = 'PENDING'"
IN_TIME = "(good_until IS NULL OR good_until > %(now)s)"
LATER = f"{PENDING} AND enqueued_at > %(now)s"

#: The definition of each state.
STATES = {
    "due": f"{PENDING} AND NOT blocked AND enqueued_at <= %(now)s AND {IN_TIME}",
    "blocked": f"{PENDING} AND blocked AND {IN_TIME}",
    "overdue": f"{PENDING} AND good_until <= %(now)s",
    "pending": f"{PENDING} AND enqueued_at <= %(now)s",
    "scheduled": f"{LATER} AND next_retry_at IS NULL AND waits_for IS NULL AND (group_key IS NULL OR claim > 0)",
    "aggregating": f"{LATER} AND next_retry_at IS NULL AND group_key IS NOT NULL AND claim = 0",
    "awaiting": f"{LATER} AND waits_for IS NOT NULL",
    "retrying": f"{LATER} AND next_retry_at IS NOT NULL",
    "active": "status IN ('CLAIMED', 'RUNNING')",
    "claimed": "status = 'CLAIMED'",
    "running": "status = 'RUNNING'",
    "completed": "status = 'COMPLETED'",
    "failed": "status = 'FAILED'",
    "cancelled": "status = 'CANCELLED'",
    "expired": "status = 'EXPIRED'",
}

#: Ended attempts, each with the names of its task.
ATTEMPTS = "horsies_task_attempts AS a JOIN horsies_tasks AS t ON t.id = a.task_id"

#: Since when a task could run.
RUNNABLE_AT = "CASE WHEN released_at > enqueued_at THEN released_at ELSE enqueued_at END"


@pytest.fixture(params=[0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
def table(request, settings) -> RandomTasks:
    settings.TASKS = with_metrics(settings.TASKS, token=TOKEN)
    table = RandomTasks(request.param)
    table.insert(60)
    for _ in roll_up(task_backends["default"].config):
        pass
    return table


def rows_of(sql: str, table: RandomTasks) -> list[tuple[Any, ...]]:
    now = connection.ops.adapt_datetimefield_value(table.now)
    with closing(connection.cursor()) as cursor:
        cursor.execute(sql.replace("%(now)s", "%s"), [now] * sql.count("%(now)s"))
        return cursor.fetchall()


def counts_of(table: RandomTasks, condition: str) -> dict[str, int]:
    """Return the number of tasks by queue that meet a condition."""
    grouped = f"SELECT queue_name, COUNT(*) FROM horsies_tasks WHERE {condition} GROUP BY queue_name"
    return dict.fromkeys(QUEUES, 0) | dict(rows_of(grouped, table))


def number(table: RandomTasks, state: str) -> int:
    return sum(counts_of(table, STATES[state]).values())


def page(client: Client, path: str) -> str:
    response = client.get(path)
    assert response.status_code == 200
    return response.content.decode()


def links_with_counts(html: str, pattern: str) -> dict[str, int]:
    """Return the numbers of a page's tiles or tabs by the address of their lists."""
    return {unescape(url): int(count) for url, count in re.findall(pattern, html)}


def listed(client: Client, path: str) -> int:
    """Return the number of rows of a list."""
    return len(set(re.findall(r'name="_selected_action" value="([^"]*)"', page(client, path))))


def state_of(url: str) -> str:
    """Return the state whose list an address shows."""
    return re.search(r"(?:state|trouble)=(\w+)", url)[1].lower()


def test_tiles_tabs_and_the_lists_behind_them_agree(table, admin_client):
    tile = r'<li class="horsies-tile[^>]*><a href="([^"]*)".*?<strong>(\d+)</strong>'
    tiles = links_with_counts(page(admin_client, f"{ADMIN}/overview/"), tile)
    tab = r'<li><a href="([^"]*)"[^>]*>[^<]*<span class="horsies-tab-count"[^>]*>(\d+)</span>'
    tabs = links_with_counts(page(admin_client, f"{ADMIN}/task/?kind=all"), tab)

    found = [*tiles.items(), *tabs.items()]
    assert len(found) >= 16
    for url, count in found:
        path = url if url.startswith("/") else f"{ADMIN}/task/{url}"
        assert (state_of(url), count) == (state_of(url), number(table, state_of(url)))
        assert (state_of(url), listed(admin_client, path)) == (state_of(url), count)


def status(*flags: str) -> str:
    output = StringIO()
    call_command("horsies_status", *flags, stdout=output)
    return output.getvalue()


def oldest(table: RandomTasks, column: str, condition: str) -> dict[str, datetime]:
    """Return by queue the earliest time of the tasks that meet a condition."""
    sql = f"SELECT queue_name, MIN({column}) FROM horsies_tasks WHERE {condition} GROUP BY 1"
    return {
        name: datetime.fromisoformat(since).replace(tzinfo=UTC) if isinstance(since, str) else since
        for name, since in rows_of(sql, table)
    }


def oldest_due(table: RandomTasks) -> dict[str, datetime]:
    return oldest(table, RUNNABLE_AT, STATES["due"])


def oldest_blocked(table: RandomTasks) -> dict[str, datetime]:
    return oldest(table, "enqueued_at", f"{STATES['blocked']} AND limit_key IS NOT NULL")


@contextmanager
def ages(expected: dict[str, datetime]) -> Iterator[dict[str, float]]:
    """Compare the ages that the block stores with those before and after it; queues without tasks have none."""
    found: dict[str, float] = {}
    before = database_now("default")
    yield found
    after = database_now("default")
    found = {name: age for name, age in found.items() if age}
    assert found.keys() == expected.keys()
    for name, since in expected.items():
        assert (before - since).total_seconds() <= found[name] <= (after - since).total_seconds(), name


def rows_of_list(html: str) -> list[dict[str, str]]:
    """Return the texts of the columns of each row of a list of the admin."""
    found = []
    for row in re.findall(r"<tr[^>]*>(.*?)</tr>", html, re.DOTALL):
        cells = re.findall(r'class="[^"]*field-(\w+)[^"]*"[^>]*>(.*?)</t[dh]>', row, re.DOTALL)
        found += [{name: unescape(re.sub(r"<[^>]*>", "", text)).strip() for name, text in cells}] if cells else []
    return found


def test_the_status_agrees(table):
    with ages(oldest_due(table)) as due, ages(oldest_blocked(table)) as blocked:
        report = json.loads(status("--json"))
        due |= {queue["name"]: queue["oldest_waits"] for queue in report["queues"]}
        blocked |= {queue["name"]: queue["oldest_blocked_waits"] for queue in report["queues"]}

    counts = {state: count["count"] for state, count in report["counts"].items()}
    assert counts == {state: number(table, state) for state in counts}
    assert {"due", "blocked", "overdue"} <= counts.keys()
    assert (report["oldest_waits"], report["oldest_blocked_waits"]) == (
        max(due.values()),
        max(filter(None, blocked.values())),
    )
    for queue in report["queues"]:
        name = queue["name"]
        expected = {state: counts_of(table, STATES[state])[name] for state in queue["counts"]}
        assert {state: count["count"] for state, count in queue["counts"].items()} == expected, name
        states = {"due": "due", "blocked": "blocked", "held": "active"}
        assert {key: queue[key] for key in states} == {
            key: counts_of(table, STATES[state])[name] for key, state in states.items()
        }


def test_beyond_their_bounds_the_numbers_of_the_status_are_lower_bounds_and_say_so(table, monkeypatch):
    for module, names in {depths: ("MAX_COUNTED", "MAX_BLOCKED", "MAX_LATE"), counts: ("MAX_COUNTED",)}.items():
        for name in names:
            monkeypatch.setattr(module, name, 3)

    report = json.loads(status("--json"))

    everywhere = {name: (count, number(table, name)) for name, count in report["counts"].items()}
    for queue in report["queues"]:
        due, blocked = (counts_of(table, STATES[state])[queue["name"]] for state in ("due", "blocked"))
        assert queue["due"] <= due
        assert queue["due_is_at_least"] or queue["due"] == due
        assert queue["blocked"] <= blocked
        assert queue["blocked_is_at_least"] or queue["blocked"] == blocked
        everywhere |= {
            f"{queue['name']} {state}": (count, counts_of(table, STATES[state])[queue["name"]])
            for state, count in queue["counts"].items()
        }
    for name, (count, actual) in everywhere.items():
        assert count["exactness"] == "estimate" or count["count"] <= actual, name
        assert count["exactness"] != "exact" or count["count"] == actual, name
    assert any(count["exactness"] == "at least" for count, _ in everywhere.values())


def test_the_tables_of_the_status_agree(table):
    lines = [re.split(r"\s{2,}", line.strip()) for line in status().splitlines()]
    counts = {line[0]: int(line[-1]) for line in lines if len(line) >= 2 and line[0] in STATES and line[-1].isdigit()}
    assert counts == {state: number(table, state) for state in STATES if state in counts}
    heads = [(line, index) for index, line in enumerate(lines) if line[:1] == ["queue"]]
    for head, index in heads:
        for row in lines[index + 1 : index + 1 + len(QUEUES)]:
            cells = {name: cell for name, cell in zip(head, row, strict=False) if name in STATES}
            assert cells == {name: str(counts_of(table, STATES[name])[row[0]]) for name in cells}


def test_the_list_of_queues_agrees(table, admin_client):
    rows = {row["name"]: row for row in rows_of_list(page(admin_client, f"{ADMIN}/queue/"))}
    for column, state in {"due": "due", "blocked": "blocked", "held": "active", "scheduled": "scheduled"}.items():
        shown = {name: int(row[f"shown_{column}"].split()[0].replace("-", "0")) for name, row in rows.items()}
        assert shown == counts_of(table, STATES[state]), column


def test_the_list_of_limits_agrees(table, admin_client):
    rows = {
        row["key"]: int(row["blocked_tasks"].split()[0]) for row in rows_of_list(page(admin_client, f"{ADMIN}/limit/"))
    }
    counted = f"SELECT limit_key, COUNT(*) FROM horsies_tasks WHERE {STATES['blocked']} GROUP BY 1"
    assert rows == dict.fromkeys(LIMITS, 0) | {key: count for key, count in rows_of(counted, table) if key is not None}
    for key, count in rows.items():
        assert listed(admin_client, f"{ADMIN}/task/?kind=all&waits_for_limit={key}") == count


def cells_of(html: str) -> dict[str, list[str]]:
    """Return the cells of each row of a page's tables, by the text of its head without spaces."""
    found = {}
    for row in re.findall(r"<tr[^>]*>(.*?)</tr>", html, re.DOTALL):
        cells = [re.sub(r"\s+|<[^>]*>", "", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)]
        found[cells[0]] = cells[1:]
    return found


def test_the_list_of_names_agrees(table, admin_client):
    cells = cells_of(page(admin_client, f"{ADMIN}/task/names/"))
    counted = (
        f"SELECT task_name, COUNT(*), SUM(CASE WHEN outcome = 'COMPLETED' THEN 0 ELSE 1 END) FROM {ATTEMPTS} GROUP BY 1"
    )
    for name, attempts, failed in rows_of(counted, table):
        assert cells[name][:2] == [str(attempts), str(failed)]


def test_the_list_of_errors_agrees(table, admin_client):
    html = page(admin_client, f"{ADMIN}/errorgroup/?period=24h")
    counted = f"SELECT exception_class, COUNT(*), SUM(CASE WHEN will_retry THEN 1 ELSE 0 END) FROM {ATTEMPTS}"
    expected = rows_of(f"{counted} WHERE outcome = 'FAILED' GROUP BY 1", table)
    cells = cells_of(html)
    for name, total, retried in expected:
        (row,) = (row for head, row in cells.items() if head.startswith(name.split(".")[1]))
        assert row[:2] == [str(total), str(retried)]
    assert cells["Total"][:2] == [str(sum(column)) for column in list(zip(*expected, strict=True))[1:]]


def test_the_tabs_of_held_tasks_agree(table, admin_client):
    for state in ("running", "claimed", "active"):
        listed = admin_client.get(f"{ADMIN}/task/?state={state}").context["cl"]
        (tab,) = [tab for tab in listed.state_tabs if tab.is_current]
        assert tab.count.number == len(listed.result_list) == number(table, state)


def test_the_metrics_agree(table):
    with ages(oldest_due(table)) as due, ages(oldest_blocked(table)) as blocked:
        found = scrape(Client())
        for age, name in (due, "ready"), (blocked, "blocked"):
            seconds = values(found[f"horsies_queue_oldest_{name}_seconds"], "queue")
            age |= {queue: value for (queue,), value in seconds.items()}

    states = {"ready": "due", "running": "active"} | {name: name for name in ("blocked", "scheduled", "retrying")}
    for gauge, state in states.items():
        of_queues = {queue: value for (queue,), value in values(found[f"horsies_queue_{gauge}"], "queue").items()}
        assert of_queues == counts_of(table, STATES[state]), gauge
    for family, condition in {"horsies_task_retries": "will_retry", "horsies_tasks": "NOT will_retry"}.items():
        counted = f"SELECT queue_name, task_name, COUNT(*) FROM {ATTEMPTS} WHERE {condition} GROUP BY 1, 2"
        pairs = Counter[tuple[str, str]]()
        for sample in found[family].samples:
            if sample.name == f"{family}_total":
                pairs[sample.labels["queue"], sample.labels["task"]] += int(sample.value)
        assert pairs == {(queue, task): count for queue, task, count in rows_of(counted, table)}
    waits = values(found["horsies_task_wait_seconds"], "queue", "task", suffix="_count")
    assert sum(waits.values()) == rows_of(f"SELECT COUNT(*) FROM {ATTEMPTS}", table)[0][0]
