"""Readers that follow the output of tasks in workers of their own."""

import asyncio

import pytest
from asgiref.sync import async_to_sync

from horsies_django import TaskHandle, TaskStatus
from horsies_django.models import TaskOutput
from horsies_django.testing import drain
from tests.conftest import wait_until
from tests.output import jobs

pytestmark = pytest.mark.django_db(transaction=True)


async def collect(handle, after=0):
    return [chunk.data async for chunk in handle.follow(after)]


@async_to_sync  # sync code runs on this thread's connection
async def run(awaitable):
    return await asyncio.wait_for(awaitable, 60)


@pytest.mark.slow
def test_a_reader_follows_a_task_until_its_end(worker, tmp_path):
    worker("--threads", "2")
    handle = jobs.writes_at_gates.send(str(tmp_path), 3)

    async def read():
        seen = []
        (tmp_path / "0").touch()
        async for chunk in handle.follow():
            seen.append((chunk.sequence, chunk.data))
            # The next line is written once this one has come, so each came while the body ran.
            (tmp_path / str(len(seen))).touch()
        return seen

    assert run(read()) == [(1, "line 0\n"), (2, "line 1\n"), (3, "line 2\n")]
    assert handle.status() == TaskStatus.COMPLETED


@pytest.mark.slow
def test_a_reader_of_a_task_that_has_ended_gets_all_and_stops():
    handle = jobs.writes.send(list(range(2_500)))
    drain()

    assert run(collect(handle)) == list(range(2_500))
    assert run(collect(handle, 2_499)) == [2_499]
    assert run(collect(handle, 2_500)) == []


@pytest.mark.slow
def test_a_reader_gets_past_a_long_gap_where_the_database_has_refused_chunks():
    handle = jobs.writes.send(list(range(400)))
    drain()
    TaskOutput.objects.filter(task=handle.id, sequence__range=(21, 250)).delete()

    assert run(collect(handle)) == [*range(20), *range(250, 400)]


def test_a_reader_of_a_task_that_does_not_exist_stops():
    missing = TaskHandle("00000000-0000-7000-8000-000000000000")

    assert run(collect(missing)) == []


def test_a_bad_sequence_is_named_by_follow():
    handle = jobs.writes.send(["a"])

    with pytest.raises(ValueError, match="after is -1; allowed: the sequence of a chunk, or 0"):
        run(collect(handle, -1))


@pytest.mark.slow
def test_readers_at_different_places_each_get_what_they_lack(worker, tmp_path):
    worker("--threads", "2")
    handle = jobs.writes_at_gates.send(str(tmp_path), 4)
    for number in range(2):
        (tmp_path / str(number)).touch()
    wait_until(lambda: len(handle.output()) == 2)

    async def read():
        readers = [asyncio.create_task(collect(handle, after)) for after in (0, 1, 2)]
        for number in (2, 3):
            (tmp_path / str(number)).touch()
        return await asyncio.gather(*readers)

    lines = [f"line {number}\n" for number in range(4)]
    assert run(read()) == [lines, lines[1:], lines[2:]]
