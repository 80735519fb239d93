"""Only one of several reapers makes a pass at a time."""

import itertools
import signal
import threading
import time
from itertools import pairwise
from types import SimpleNamespace

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from horsies_django.core.backends import config_of
from horsies_django.models import Lease, Task
from horsies_django.reaper import loop
from horsies_django.reaper.duties import DUTIES
from horsies_django.reaper.loop import Reaper
from horsies_django.signals import task_expired
from tests.conftest import wait_until
from tests.reaper.conftest import WORK

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_lease_has_one_holder_for_its_interval():
    assert Lease.objects.acquire("t", "one", 60) == 0
    assert 50 < Lease.objects.acquire("t", "two", 60) <= 60
    assert 50 < Lease.objects.acquire("t", "one", 60) <= 60
    assert Lease.objects.renew("t", "one")
    assert not Lease.objects.renew("t", "two")


def test_an_unrenewed_lease_is_free_after_the_interval_of_the_next_holder():
    assert Lease.objects.acquire("t", "one", 60) == 0
    assert Lease.objects.acquire("t", "two", 0) == 0
    assert not Lease.objects.renew("t", "one")


def test_one_of_eight_concurrent_acquires_succeeds():
    won, barrier = [], threading.Barrier(8)

    def take(name):
        barrier.wait(20)
        try:
            if Lease.objects.acquire("t", name, 60) == 0:
                won.append(name)
        finally:
            connection.close()

    threads = [threading.Thread(target=take, args=(f"number {n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(won) == 1
    assert Lease.objects.get().holder == won[0]


def renewals(limit):
    """Return the holders and times of the next ``limit`` renewals of the lease."""
    seen = []

    def look():
        lease = Lease.objects.filter(name="reaper:default").first()
        if lease and (not seen or lease.renewed_at != seen[-1][1]):
            seen.append((lease.holder, lease.renewed_at))
        return len(seen) >= limit

    wait_until(look, limit=40)
    return seen


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_reaper_rests_between_two_passes():
    passes = []

    def note(line):
        passes.append(line)
        if len(passes) == 2:
            reaper.stop()

    reaper = Reaper(config_of("default"), "default", 0.3, note)
    with CaptureQueriesContext(connection) as statements:
        reaper.run()

    probes = [one for one in statements if 'SET "probing_since" = COALESCE' in one["sql"]]
    assert 2 <= len(probes) <= 6, "it rests at least until the lease is free again"


def renewals_of_a_pass():
    reaper = Reaper(config_of("default"), "default", 60, lambda _: reaper.stop())
    with CaptureQueriesContext(connection) as statements:
        reaper.run()
    return sum('SET "renewed_at"' in one["sql"] for one in statements)


def test_a_short_pass_that_finds_nothing_does_not_renew_the_lease():
    assert renewals_of_a_pass() == 0


def test_a_long_pass_renews_the_lease_after_a_tenth_of_its_interval(monkeypatch):
    times = itertools.count(step=2.0)
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: next(times)))

    # It reads the clock before each duty, and after each renewal: in each third one, 6 s are over.
    assert renewals_of_a_pass() == pytest.approx(len(DUTIES) / 3, abs=1)


def test_a_pass_renews_the_lease_after_a_duty_that_processed_rows():
    WORK["expired overdue tasks"](1)

    assert renewals_of_a_pass() == 1


@pytest.mark.parametrize("event", ["a stop", "the loss of the lease"])
def test_a_pass_ends_with_the_duty_that_runs_at(event):
    passes = []

    def interrupt(**_):
        if event == "a stop":
            reaper.stop()
        else:
            Lease.objects.filter(name="reaper:default").update(holder="another")

    def note(line):
        passes.append(line)
        reaper.stop()

    WORK["expired overdue tasks"](1)
    (kept,) = WORK["deleted ended tasks"](1)
    reaper = Reaper(config_of("default"), "default", 60, note)
    task_expired.connect(interrupt)
    try:
        reaper.run()
    finally:
        task_expired.disconnect(interrupt)

    assert passes == ["reaper pass: expired overdue tasks: 1"]
    assert Task.objects.filter(pk=kept.pk).exists()


@pytest.mark.slow
def test_four_reapers_make_one_pass_per_interval(manage):
    interval = 1.0
    for _ in range(4):
        manage("horsies_reaper", "--interval", str(interval), "-v0")
    renewals(1)
    since = time.monotonic()
    # A pass that finds nothing takes milliseconds: a longer pause between two renewals separates two passes.
    moments = [at for _, at in renewals(6)]
    seconds = time.monotonic() - since
    begun = 1 + sum(1 for one, two in pairwise(moments) if (two - one).total_seconds() > 0.5)
    assert begun <= seconds / interval + 2


@pytest.mark.slow
def test_another_reaper_takes_over_after_the_holder_is_killed(manage):
    interval = 2.0
    first = manage("horsies_reaper", "--interval", str(interval), "-v0")
    holder = wait_until(lambda: Lease.objects.filter(name="reaper:default").values_list("holder", flat=True).first())
    manage("horsies_reaper", "--interval", str(interval), "-v0")
    first.signal(signal.SIGKILL)
    first.wait()
    (row,) = WORK["expired overdue tasks"](1)

    wait_until(lambda: Task.objects.get(pk=row.pk).status == "EXPIRED")

    assert Lease.objects.get().holder != holder
