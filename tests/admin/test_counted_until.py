"""Pages, commands and metrics say up to when attempts are counted while the reaper is behind."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import call_command
from django.db import connection
from django.urls import reverse
from django.utils.timezone import localtime

from horsies_django.core.compat import task_backends
from horsies_django.models import ErrorGroup, TaskAttempt
from horsies_django.ops.metrics.history import lag_query, rollup_clock
from horsies_django.reaper.rollup import roll_up
from tests.extras.monitoring import TOKEN, scrape, values, with_metrics
from tests.jobs import tasks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

LAG = timedelta(minutes=12)


def roll():
    """Roll up all attempts."""
    for _ in roll_up(task_backends["default"].config):
        pass


def fail(drain, ago):
    """Let a task fail, so long ago; return when."""
    handle = tasks.fail.send()
    drain()
    ended = datetime.now(UTC) - ago
    TaskAttempt.objects.filter(task=handle.id).update(finished_at=ended)
    return ended


@pytest.fixture
def pages(admin_client):
    """Return a function that reads the text of each page with numbers from roll-ups."""

    def read():
        groups = [
            reverse("admin:horsies_django_errorgroup_change", args=[group.pk]) for group in ErrorGroup.objects.all()
        ]
        addresses = [
            reverse("admin:horsies_django_overview_changelist"),
            reverse("admin:horsies_django_errorgroup_changelist"),
            reverse("admin:horsies_django_task_names"),
            reverse("admin:horsies_django_task_name", args=[tasks.fail.module_path]),
            reverse("admin:horsies_django_queue_changelist"),
            reverse("admin:horsies_django_queue_change", args=["~default"]),
            *groups,
        ]
        return {address: re.sub("<[^>]*>", "", admin_client.get(address).content.decode()) for address in addresses}

    return read


def test_each_page_with_counted_attempts_says_up_to_when_if_the_reaper_is_behind(pages, drain):
    fail(drain, timedelta(hours=1))
    roll()
    ended = fail(drain, LAG)
    fail(drain, timedelta(minutes=2))

    behind = pages()
    roll()
    caught_up = pages()

    words = rf"Attempts are counted up to {localtime(ended):%H:%M}: the reaper is 1\d min behind\."
    assert [address for address, text in behind.items() if len(re.findall(words, text)) != 1] == []
    assert [address for address, text in caught_up.items() if "are counted up to" in text] == []


def test_a_reaper_with_a_long_interval_is_behind_after_two_of_them(pages, settings, drain):
    options = settings.TASKS["default"]["OPTIONS"]
    recovery = options["recovery"] | {"check_interval_ms": 400_000}
    settings.TASKS = {"default": settings.TASKS["default"] | {"OPTIONS": options | {"recovery": recovery}}}
    fail(drain, LAG)
    in_time = pages()
    TaskAttempt.objects.update(finished_at=datetime.now(UTC) - timedelta(minutes=15))
    behind = pages()

    assert [address for address, text in in_time.items() if "are counted up to" in text] == []
    assert [address for address, text in behind.items() if "are counted up to" not in text] == []


def test_a_page_without_counted_failures_claims_no_more_than_that(pages, drain):
    fail(drain, LAG)

    for address, text in pages().items():
        assert "No failures." not in text
        if "errorgroup" in address or "overview" in address:
            assert "No failures counted." in text


def test_the_status_and_the_metrics_say_how_far_the_reaper_is_behind(client, settings, capsys, drain):
    settings.TASKS = with_metrics(settings.TASKS, token=TOKEN)
    fail(drain, LAG)

    def told():
        call_command("horsies_status")
        report = capsys.readouterr().out
        call_command("horsies_status", json=True)
        lag = json.loads(capsys.readouterr().out)["reaper"]["rollup_lag"]
        return report, lag, values(scrape(client)["horsies_rollup_lag_seconds"])[()]

    report, lag, gauge = told()
    assert "throughput, failures and percentiles are counted up to 1" in report
    assert lag == pytest.approx(720, abs=60)
    assert gauge == pytest.approx(720, abs=60)

    roll()
    report, *numbers = told()
    assert "counted up to" not in report
    assert numbers == [0, 0]


def test_the_lag_is_read_by_an_index(drain):
    if connection.vendor != "postgresql":
        pytest.skip("reads a plan of PostgreSQL")
    fail(drain, LAG)
    (first,) = TaskAttempt.objects.all()
    TaskAttempt.objects.bulk_create(
        TaskAttempt(
            task_id=first.task_id, attempt=number, outcome="FAILED", due_at=first.due_at, started_at=first.started_at,
            finished_at=first.finished_at,
        )
        for number in range(2, 3_000)
    )  # fmt: skip
    roll()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE horsies_task_attempts")
        statement = lag_query("default")
        cursor.execute(f"EXPLAIN {statement.sql}", statement.params)
        plan = "\n".join(line for (line,) in cursor.fetchall())

    assert rollup_clock("default").lag == 0
    assert "Seq Scan on horsies_task_attempts" not in plan, plan
