"""Ids are UUIDv7 that grow, whichever thread makes them."""

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Barrier, Lock

import pytest

from horsies_django.core.ids import uuid7, uuid7s
from horsies_django.models import Task


def test_an_id_has_the_version_and_variant_bits_of_rfc_9562():
    ids = [uuid7() for _ in range(1_000)]

    assert {one.version for one in ids} == {7}
    assert {one.variant for one in ids} == {uuid.RFC_4122}
    assert {str(one)[14] for one in ids} == {"7"}
    assert {str(one)[19] for one in ids} == set("89ab")


def test_the_first_48_bits_of_an_id_are_the_time_in_milliseconds():
    before = time.time_ns() // 1_000_000

    one = uuid7()

    assert before <= one.int >> 80 <= time.time_ns() // 1_000_000 + 1


def test_the_last_62_bits_of_an_id_are_random():
    ids = [uuid7() for _ in range(1_000)]

    tails = {one.int & (1 << 62) - 1 for one in ids}

    assert len(tails) == 1_000
    assert all({tail >> bit & 1 for tail in tails} == {0, 1} for bit in range(62))


def test_ids_of_several_threads_grow_in_the_order_of_their_creation():
    lock, start, made = Lock(), Barrier(8), []

    def work(_):
        start.wait(60)
        for _ in range(2_000):
            with lock:
                made.append(uuid7())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))

    assert len(made) == 16_000
    assert all(earlier < later for earlier, later in pairwise(made))


def test_concurrent_threads_never_share_an_id_and_each_threads_ids_grow():
    start = Barrier(8)

    def work(_):
        start.wait(60)
        return [uuid7() for _ in range(5_000)]

    with ThreadPoolExecutor(8) as pool:
        batches = list(pool.map(work, range(8)))

    assert all(earlier < later for batch in batches for earlier, later in pairwise(batch))
    stamps = {one.int >> 62 for batch in batches for one in batch}
    assert len(stamps) == 40_000


def test_ids_made_in_bulk_are_valid_and_sort_between_single_ids():
    before, many, after = uuid7(), uuid7s(5_000), uuid7()

    assert all(earlier < later for earlier, later in pairwise([before, *many, after]))
    assert {(one.version, one.variant) for one in many} == {(7, uuid.RFC_4122)}
    tails = {one.int & (1 << 62) - 1 for one in many}
    assert len(tails) == 5_000
    assert all({tail >> bit & 1 for tail in tails} == {0, 1} for bit in range(62))
    assert uuid7s(0) == []


def test_concurrent_threads_never_share_an_id_made_in_bulk():
    start = Barrier(4)

    def work(_):
        start.wait(60)
        return [one for _ in range(20) for one in (*uuid7s(500), uuid7())]

    with ThreadPoolExecutor(4) as pool:
        batches = list(pool.map(work, range(4)))

    assert all(earlier < later for batch in batches for earlier, later in pairwise(batch))
    stamps = {one.int >> 62 for batch in batches for one in batch}
    assert len(stamps) == 4 * 20 * 501


@pytest.mark.parametrize("step", [0, -1_000_000_000], ids=["stopped", "moves back"])
def test_ids_grow_while_the_clock_stops_or_moves_back(monkeypatch, step):
    now = time.time_ns()
    clock = iter(range(now, now + 10_000 * step, step)) if step else iter([now] * 10_000)
    monkeypatch.setattr(time, "time_ns", lambda: next(clock))

    ids = [uuid7() for _ in range(10_000)]

    assert all(earlier < later for earlier, later in pairwise(ids))
    assert {(one.version, one.variant) for one in ids} == {(7, uuid.RFC_4122)}


@pytest.mark.django_db
def test_the_database_sorts_ids_in_the_order_of_their_creation():
    made = [Task.objects.create(task_name="x").pk for _ in range(50)]

    found = list(Task.objects.order_by("pk").values_list("pk", flat=True))

    assert found == made
