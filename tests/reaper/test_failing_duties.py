"""A row or a duty that fails stops no other row or duty."""

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from horsies_django.core.compat import task_backends
from horsies_django.models import Heartbeat, Task
from horsies_django.models.transitions import BATCH
from horsies_django.reaper.batches import in_batches
from horsies_django.reaper.duties import DUTIES, run_pass
from tests.jobs import limited
from tests.reaper.conftest import WORK

pytestmark = pytest.mark.django_db(transaction=True)


def reap():
    return {report.duty: report for report in run_pass(task_backends["default"].config)}


@pytest.mark.slow
@pytest.mark.sqlite
@pytest.mark.parametrize("duty", WORK)
def test_a_row_that_refuses_changes_stops_no_other_row_or_duty(poison, caplog, duty):
    rows = WORK[duty](5)
    poison(rows[2])
    others = {name: make(2) for name, make in WORK.items() if name != duty}

    reports = reap()

    assert (reports[duty].count, reports[duty].error) == (4, "")
    assert all(reports[name].count == 2 for name in others)
    assert "batch failed rows=5: retried in halves" in caplog.text
    assert f"task can't be processed id={rows[2].pk}: skipped" in caplog.text
    assert Task.objects.get(pk=rows[2].pk).status == rows[2].status


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_limit_whose_task_refuses_changes_stops_no_other_limit(poison, caplog):
    blocked = {}
    for user in ("a", "b"):
        *released, blocked[user] = [limited.two_per_user.send(user).id for _ in range(3)]
        Task.objects.filter(pk__in=released).update(status="COMPLETED", completed_at=Now())
    poison(Task.objects.get(pk=blocked["a"]))

    report = reap()["released blocked tasks"]

    assert (report.count, report.error) == (1, "")
    assert Task.objects.get(blocked=True).pk == blocked["a"]
    assert "limit can't be checked key='tests.jobs.limited.two_per_user:a'" in caplog.text


def test_a_read_only_database_stops_a_duty_without_a_try_of_each_row(caplog):
    if connection.vendor != "postgresql":
        pytest.skip("SQLite has no such setting")
    WORK["expired overdue tasks"](3)
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
    try:
        reports = reap()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SET default_transaction_read_only = off")

    assert "read-only" in reports["expired overdue tasks"].error
    assert "batch failed" not in caplog.text


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("duty", WORK)
def test_a_duty_works_in_bounded_batches_until_nothing_is_left(duty):
    count = 2 * BATCH + 100
    WORK[duty](count)

    with CaptureQueriesContext(
        connection,
    ) as statements:
        report = reap()[duty]

    assert report.count == count
    assert not [row for row in statements if "OFFSET" in row["sql"]]
    limits = [row["sql"] for row in statements if f"LIMIT {BATCH}" in row["sql"] and "horsies_tasks" in row["sql"]]
    assert len(limits) >= 3
    assert reap()[duty].count == 0


@pytest.mark.slow
def test_rows_at_the_head_that_refuse_changes_do_not_block_the_rest(poison, caplog):
    rows = WORK["expired overdue tasks"](BATCH + 3)
    first = list(Task.objects.overdue().order_by("good_until").values_list("pk", flat=True)[:BATCH])
    for row in rows:
        if row.pk in set(first[:20]):
            poison(row)

    assert reap()["expired overdue tasks"].count == BATCH + 3 - 20
    assert caplog.text.count("task can't be processed") >= 20


def test_a_batch_of_which_every_row_refuses_changes_does_not_hide_the_rows_behind_it(poison):
    rows = sorted(WORK["expired overdue tasks"](5), key=lambda row: row.pk)
    for row in rows[:4]:
        poison(row)

    assert sum(in_batches(Task.objects.overdue().order_by("pk"), lambda rows: rows.expire(), size=2)) == 1

    assert Task.objects.get(status="EXPIRED").pk == rows[4].pk


def test_a_row_that_refuses_changes_costs_one_batch_two_statements_for_each_halving(poison):
    rows = sorted(WORK["expired overdue tasks"](64), key=lambda row: row.pk)
    poison(rows[5])

    with CaptureQueriesContext(connection) as statements:
        counts = list(in_batches(Task.objects.overdue().order_by("pk"), lambda rows: rows.expire(), size=16))

    assert counts == [15, 16, 16, 16]
    updates = [row["sql"] for row in statements if row["sql"].startswith('UPDATE "horsies_tasks"')]
    assert len(updates) <= 4 + 2 * 4 + 1, "four batches, two halves of each of four sizes, and one that fails the row"


@pytest.mark.parametrize("code", ["XX001", "0A000", "57014", "40001", "40P01"])
def test_a_row_that_always_ends_a_statement_with_an_error_of_the_server_stops_no_other_row(poison, code):
    if connection.vendor != "postgresql":
        pytest.skip("SQLite can't raise any SQLSTATE")
    rows = WORK["expired overdue tasks"](5)
    poison(rows[2], code)

    report = reap()["expired overdue tasks"]

    assert (report.count, report.error) == (4, "")


def test_a_stale_run_with_a_damaged_policy_is_not_retried(caplog):
    (row,) = WORK["recovered stale runs"](1)
    Task.objects.filter(pk=row.pk).update(max_retries=3, retry_policy={"nonsense": True})
    assert reap()["recovered stale runs"].count == 1
    row.refresh_from_db()
    assert (row.status, row.error_code) == ("FAILED", "WORKER_CRASHED")
    assert "damaged retry policy ignored" in caplog.text


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_failed_duty_is_reported_and_retried_in_the_next_pass(capsys):
    WORK["requeued stale claims"](1)
    WORK["expired overdue tasks"](1)
    table = Heartbeat._meta.db_table
    rename = "ALTER TABLE {} RENAME TO {}"
    with connection.cursor() as cursor:
        cursor.execute(rename.format(table, "elsewhere"))
    try:
        with pytest.raises(CommandError, match="A duty failed"):
            call_command("horsies_reaper", once=True, verbosity=0)
    finally:
        with connection.cursor() as cursor:
            cursor.execute(rename.format("elsewhere", table))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines if "stopped by" in line] == [
        "requeued stale claims",
        "recovered stale runs",
        "deleted old heartbeats",
    ]
    assert "expired overdue tasks: 1" in lines

    call_command("horsies_reaper", once=True, verbosity=0)
    assert "requeued stale claims: 1" in capsys.readouterr().out.splitlines()


def test_a_pass_with_nothing_to_do_is_one_statement_per_duty():
    reap()
    with CaptureQueriesContext(connection) as statements:
        reap()
    begins = [row["sql"] for row in statements if row["sql"].startswith(("BEGIN", "COMMIT", "SAVEPOINT"))]
    work = [row["sql"] for row in statements if row["sql"] not in begins]
    assert len(work) <= len(DUTIES), work
