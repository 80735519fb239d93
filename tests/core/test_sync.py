"""Primitives that wake a waiting thread, from signal handlers and from other threads."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from horsies_django.core.sync import Mailbox, StopEvent

pytestmark = pytest.mark.once

#: The signal arrives at any point of the wait, its start and its end included.
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
print("all received")
"""


@pytest.mark.slow
def test_a_signal_handler_can_wake_the_wait_that_it_interrupts() -> None:
    """With threading.Event this deadlocks within some ten thousand rounds."""
    done = subprocess.run([sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, timeout=60)

    assert (done.stdout, done.stderr) == ("all received\n", "")


def test_a_stop_event_wakes_every_waiting_thread() -> None:
    stop = StopEvent()
    woken: list[bool] = []
    threads = [threading.Thread(target=lambda: woken.append(stop.wait(20))) for _ in range(5)]
    for thread in threads:
        thread.start()

    stop.set()

    for thread in threads:
        thread.join(20)
    assert woken == [True] * 5
    assert stop.wait(0)


def test_waiting_for_a_stop_event_that_is_never_set_times_out() -> None:
    stop = StopEvent()
    began = time.monotonic()

    assert not stop.wait(0.02)

    assert time.monotonic() - began >= 0.02
    assert not stop.is_set


def test_a_mailbox_delivers_each_item_once_in_its_senders_order() -> None:
    mailbox: Mailbox[tuple[int, int]] = Mailbox()

    def send(sender: int) -> None:
        for turn in range(2_000):
            mailbox.put((sender, turn))

    threads = [threading.Thread(target=send, args=(sender,)) for sender in range(4)]
    for thread in threads:
        thread.start()
    taken: list[tuple[int, int]] = []
    deadline = time.monotonic() + 30
    while len(taken) < 8_000 and time.monotonic() < deadline:
        taken += mailbox.take(1e-6)  # timeouts that expire between two steps

    for thread in threads:
        thread.join(20)
    assert not mailbox
    for sender in range(4):
        assert [turn for origin, turn in taken if origin == sender] == list(range(2_000))


def test_a_stale_wake_up_does_not_cut_a_mailbox_wait_short() -> None:
    mailbox: Mailbox[int] = Mailbox()
    mailbox.put(1)
    assert mailbox.take(1) == [1]  # taken without a wait, so its wake-up is still pending
    timer = threading.Timer(0.05, mailbox.put, [2])
    timer.start()

    assert mailbox.take(20) == [2]

    timer.join(20)
    assert mailbox.take(0) == []
