"""What wakes who waits: rung from signal handlers and from other threads."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from horsies_django.core.sync import Mailbox, StopEvent

pytestmark = pytest.mark.once

#: The signal comes at any point of the wait, of its begin and of its end.
_INTERRUPTED = """
import random, signal
from horsies_django.core import sync

chance = random.Random(1)
sync.MAX_WAIT = 0.001
for _ in range(5_000):
    stop, mailbox = sync.StopEvent(), sync.Mailbox()
    signal.signal(signal.SIGALRM, lambda *_: (stop.set(), mailbox.put(1)))
    signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 3e-5))
    taken = []
    while not taken:
        taken = mailbox.take(0.001)
    assert taken == [1] and stop.wait(20)
    stop = sync.StopEvent()
    signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 3e-5))
    assert stop.wait(20)
print("all heard")
"""


def test_a_signal_handler_may_ring_whatever_it_interrupts() -> None:
    """With threading.Event this stands still within some ten thousand turns."""
    done = subprocess.run([sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, timeout=60)

    assert (done.stdout, done.stderr) == ("all heard\n", "")


def test_every_waiter_is_told_to_stop() -> None:
    stop = StopEvent()
    heard: list[bool] = []
    threads = [threading.Thread(target=lambda: heard.append(stop.wait(20))) for _ in range(5)]
    for thread in threads:
        thread.start()

    stop.set()

    for thread in threads:
        thread.join(20)
    assert heard == [True] * 5
    assert stop.wait(0)


def test_a_stop_that_nobody_says_is_waited_for_in_vain() -> None:
    stop = StopEvent()
    began = time.monotonic()

    assert not stop.wait(0.02)

    assert time.monotonic() - began >= 0.02
    assert not stop.is_set


def test_all_that_was_put_in_is_taken_once_and_in_each_ones_order() -> None:
    mailbox: Mailbox[tuple[int, int]] = Mailbox()

    def fill(number: int) -> None:
        for turn in range(2_000):
            mailbox.put((number, turn))

    threads = [threading.Thread(target=fill, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    taken: list[tuple[int, int]] = []
    deadline = time.monotonic() + 30
    while len(taken) < 8_000 and time.monotonic() < deadline:
        taken += mailbox.take(1e-6)  # times that run out between two steps

    for thread in threads:
        thread.join(20)
    assert not mailbox
    for number in range(4):
        assert [turn for whose, turn in taken if whose == number] == list(range(2_000))


def test_an_old_ring_does_not_cut_a_wait_short() -> None:
    mailbox: Mailbox[int] = Mailbox()
    mailbox.put(1)
    assert mailbox.take(1) == [1]  # taken without a wait: it still rings
    timer = threading.Timer(0.05, mailbox.put, [2])
    timer.start()

    assert mailbox.take(20) == [2]

    timer.join(20)
    assert mailbox.take(0) == []
