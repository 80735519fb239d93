"""Of any number of reapers, one at a time does a pass."""

import signal
import threading
import time
from itertools import pairwise

import pytest
from django.db import connection

from horsies_django.models import Lease, Task
from tests.conftest import wait_until
from tests.reaper.conftest import WORK

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_lease_has_one_holder_for_its_interval():
    assert Lease.objects.acquire("t", "one", 60) == 0
    assert 50 < Lease.objects.acquire("t", "two", 60) <= 60
    assert 50 < Lease.objects.acquire("t", "one", 60) <= 60
    assert Lease.objects.renew("t", "one")
    assert not Lease.objects.renew("t", "two")


def test_a_lease_that_is_not_renewed_is_free_after_the_interval_of_the_next_holder():
    assert Lease.objects.acquire("t", "one", 60) == 0
    assert Lease.objects.acquire("t", "two", 0) == 0
    assert not Lease.objects.renew("t", "one")


def test_of_eight_that_acquire_at_once_one_succeeds():
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


def passes(limit):
    """The holders and times of the passes that begin, until there are ``limit``."""
    seen = []

    def look():
        lease = Lease.objects.filter(name="reaper:default").first()
        if lease and (not seen or lease.renewed_at != seen[-1][1]):
            seen.append((lease.holder, lease.renewed_at))
        return len(seen) >= limit

    wait_until(look, limit=40)
    return seen


@pytest.mark.slow
def test_four_reapers_make_one_pass_an_interval(manage):
    interval = 1.0
    for _ in range(4):
        manage("horsies_reaper", "--interval", str(interval), "-v0")
    passes(1)
    since = time.monotonic()
    # The lease is renewed before each duty, all of them within milliseconds: passes are told by the pauses between.
    moments = [at for _, at in passes(30)]
    seconds = time.monotonic() - since
    begun = 1 + sum(1 for one, two in pairwise(moments) if (two - one).total_seconds() > 0.5)
    assert begun <= seconds / interval + 2


@pytest.mark.slow
def test_a_holder_that_dies_is_missed_for_one_interval(manage):
    interval = 2.0
    first = manage("horsies_reaper", "--interval", str(interval), "-v0")
    holder = wait_until(lambda: Lease.objects.filter(name="reaper:default").values_list("holder", flat=True).first())
    second = manage("horsies_reaper", "--interval", str(interval), "-v1")
    wait_until(lambda: Lease.objects.get().holder == holder and second.process.poll() is None)
    first.signal(signal.SIGKILL)
    first.wait()
    died = time.monotonic()
    (row,) = WORK["expired overdue tasks"](1)

    wait_until(lambda: Task.objects.get(pk=row.pk).status == "EXPIRED", limit=30)

    assert Lease.objects.get().holder != holder
    assert time.monotonic() - died < interval + 8  # and the time that the second took to start, on a busy machine
