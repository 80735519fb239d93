"""A notification is only a hint to poll: any role that may connect can send any payload."""

from __future__ import annotations

import time
import uuid

import pytest
from django.db import connection

from horsies_django import TaskStatus
from horsies_django.db.notifications import REVOKED, WORKER_REQUEST
from horsies_django.db.postgres import CHANNEL, COMPLETIONS
from horsies_django.models import Task, Worker
from horsies_django.worker.listener import BURST, RATE, NotificationLimit
from tests.conftest import wait_until
from tests.database import count_commits
from tests.jobs import tasks

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL has NOTIFY"),
]

#: More than a worker acts on.
FLOOD = 20_000


def _notify(payloads, channel=CHANNEL):
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_notify(%s, payload)) FROM unnest(%s::text[]) AS payload", [channel, list(payloads)]
        )


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_forged_stop_notification_does_not_stop_a_worker(worker):
    process = worker("--no-reaper", "--no-scheduler")
    (row,) = Worker.objects.all()
    assert tasks.add.send(0).value(timeout=20) == 1  # it listens now

    _notify([WORKER_REQUEST + row.pk])

    assert tasks.add.send(1).value(timeout=20) == 2
    assert tasks.add.send(2).value(timeout=20) == 3
    assert process.process.poll() is None
    assert "asked to stop" not in process.output
    assert list(Worker.objects.values_list("pk", flat=True)) == [row.pk]

    Worker.objects.all().request_stop()

    assert process.wait(20) == 0
    assert "asked to stop" in process.output


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_worker_survives_malformed_notifications(worker):
    process = worker("--no-reaper", "--no-scheduler")
    malformed = [
        "",
        "?",
        "?waiting",
        "+",
        "=",
        "-",
        "~",
        "%",
        "#",
        "!",
        "!!",
        "=" + "é" * 3_000,
        "%" + "q" * 7_000,
        "\x01\x02",
    ]

    _notify(malformed)
    _notify([*malformed, "zz" * 3_000, "0" * 7], channel=COMPLETIONS)

    assert tasks.add.send(1).value(timeout=20) == 2
    assert process.process.poll() is None
    assert "Traceback" not in process.output


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_flood_of_notifications_causes_a_bounded_number_of_transactions(worker):
    process = worker("--no-reaper", "--no-scheduler")
    assert tasks.add.send(1).value(timeout=20) == 2
    before, began = count_commits(), time.monotonic()

    for start in range(0, FLOOD, 200):
        _notify(f"={uuid.uuid4()}" for _ in range(100))
        _notify(f"%{start}-{number}" for number in range(98))
        _notify([f"{WORKER_REQUEST}{key}" for key in Worker.objects.values_list("pk", flat=True)] + [REVOKED, "=*"])

    assert tasks.add.send(2).value(timeout=20) == 3
    own = FLOOD / 200 * 4 + 100
    wait_until(lambda: count_commits() > before + own, 20)
    seconds = time.monotonic() - began
    assert count_commits() - before < own + BURST + (RATE + 200) * (seconds + 1)
    assert process.process.poll() is None


@pytest.mark.slow
@pytest.mark.sqlite
def test_forged_completion_notifications_do_not_end_a_wait(worker, tmp_path):
    worker("--no-reaper", "--no-scheduler")
    gate = tmp_path / "gate"
    handle = tasks.hold.send("held", str(gate))
    wait_until(lambda: handle.status() == TaskStatus.RUNNING)

    for _ in range(200):
        _notify([handle.id.hex[-8:] * 100], channel=COMPLETIONS)
    assert handle.get(timeout=0.2).err.error_code == "WAIT_TIMEOUT"

    gate.touch()
    assert handle.value(timeout=20) == "held"
    assert Task.objects.get(pk=handle.id).attempt == 1


@pytest.mark.once
def test_notifications_that_lead_to_claims_are_not_limited():
    limit = NotificationLimit()

    for _ in range(FLOOD):
        assert limit.allows()
        limit.give_back()


@pytest.mark.once
def test_the_notification_limit_refuses_most_of_a_flood():
    limit = NotificationLimit()

    allowed = sum(limit.allows() for _ in range(FLOOD))

    assert BURST <= allowed < FLOOD / 10
    assert limit.is_first_refusal()
