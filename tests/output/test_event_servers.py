"""The events of tasks from real servers, to clients that come and go, while workers run the tasks."""

import asyncio
import http.client
import json
import os
import statistics
import threading
import time
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path

import pytest
from django.db import connection

from horsies_django.models import Task, TaskOutput
from tests.conftest import wait_until
from tests.output import jobs
from tests.output.event_stream import DAPHNE, GUNICORN, UVICORN, Event, Stream
from tests.output.test_events import open_to

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

with_daphne = pytest.mark.skipif(
    find_spec("daphne") is None and "REQUIRE_DAPHNE" not in os.environ, reason="daphne is missing"
)
on_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite shows no connections")

asgi = pytest.mark.parametrize("command", [UVICORN, pytest.param(DAPHNE, marks=with_daphne)], ids=["uvicorn", "daphne"])


@pytest.fixture
def streams():
    """Return a function that opens a stream; all of them are closed in the end."""
    opened = []

    def open_stream(address, path, **headers):
        opened.append(Stream(address, path, **headers))
        return opened[-1]

    yield open_stream
    for stream in opened:
        stream.close()


def outputs(events):
    return [(event.id, event.data["data"]) for event in events if event.name == "output"]


@asgi
def test_events_come_while_the_body_runs_and_the_end_is_the_last(serve, streams, worker, tmp_path, command):
    worker("--threads", "2")
    _, address = serve(*command)
    handle = jobs.reports_at_gates.send(str(tmp_path))
    stream = streams(address, open_to(handle))
    assert stream.status == 200
    assert stream.response.headers["Content-Type"] == "text/event-stream"

    assert stream.next() == Event("progress", {"done": 1, "total": 3, "message": "m"})
    (tmp_path / "0").touch()
    event = stream.next()
    assert (event.name, event.id) == ("output", "1")
    assert (event.data["attempt"], event.data["data"]) == (1, "one\ntwo\r\n\u2028three")
    assert datetime.fromisoformat(event.data["at"]) == TaskOutput.objects.get().at
    (tmp_path / "1").touch()

    assert stream.rest() == [
        Event("progress", {"done": 3, "total": 3, "message": ""}),
        Event("end", {"status": "COMPLETED"}, "end"),
    ]


@asgi
def test_a_reader_that_comes_back_loses_and_repeats_nothing(serve, streams, worker, tmp_path, command):
    worker("--threads", "2")
    _, address = serve(*command)
    handle = jobs.writes_at_gates.send(str(tmp_path), 5)
    got, last_id = [], ""

    for number in range(5):
        (tmp_path / str(number)).touch()
        stream = streams(address, open_to(handle), Last_Event_ID=last_id)
        got.append(stream.next())
        last_id = got[-1].id
        stream.close()
    end = streams(address, open_to(handle), Last_Event_ID=last_id)

    assert outputs(got) == [(str(number), f"line {number - 1}\n") for number in range(1, 6)]
    assert end.rest() == [Event("end", {"status": "COMPLETED"}, "end")]
    assert streams(address, open_to(handle), Last_Event_ID="end").status == 204


def test_under_wsgi_a_browser_that_comes_back_gets_everything_once(serve, streams, worker, tmp_path):
    worker("--threads", "2")
    _, address = serve(*GUNICORN)
    handle = jobs.writes_at_gates.send(str(tmp_path), 3)
    got, last_id = [], ""

    while (stream := streams(address, open_to(handle), Last_Event_ID=last_id)).status == 200:
        (tmp_path / str(len(got))).touch()
        got += stream.rest()
        last_id = got[-1].id if got else ""

    assert stream.status == 204
    assert outputs(got) == [(str(number), f"line {number - 1}\n") for number in range(1, 4)]
    assert [event.name for event in got] == ["output"] * 3 + ["end"]


def test_an_error_of_the_database_ends_the_stream_and_the_reader_can_come_back(serve, streams):
    site, address = serve(*UVICORN)
    handle = jobs.writes.send(["a"])
    stream = streams(address, open_to(handle))
    assert stream.block() == "retry: 2000\n"
    table = TaskOutput._meta.db_table
    with connection.schema_editor() as editor:
        editor.alter_db_table(TaskOutput, table, "horsies_away")
    try:
        assert stream.rest() == []
        site.wait_for(f"events end early task={handle.id} error=")
    finally:
        with connection.schema_editor() as editor:
            editor.alter_db_table(TaskOutput, "horsies_away", table)
    again = streams(address, open_to(handle))
    again.block()
    handle.cancel()

    assert again.rest() == [Event("end", {"status": "CANCELLED"}, "end")]


def test_the_stream_of_a_task_that_is_deleted_ends_and_is_not_found_again(serve, streams):
    _, address = serve(*UVICORN)
    handle = jobs.writes.send(["a"])
    stream = streams(address, open_to(handle))
    stream.block()
    Task.objects.all().delete()

    assert stream.rest() == []
    assert streams(address, open_to(handle)).status == 404


def test_a_server_that_stops_ends_its_streams(serve, streams):
    site, address = serve(*UVICORN, "--timeout-graceful-shutdown", "1")
    handle = jobs.writes.send(["a"])
    stream = streams(address, open_to(handle))
    stream.block()

    site.process.terminate()

    with pytest.raises(http.client.IncompleteRead):  # a browser comes back
        stream.response.read()
    site.process.wait(60)
    assert "Traceback" not in site.output


def connections():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT application_name FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        return sorted(name for (name,) in cursor.fetchall())


@on_postgresql
@asgi
def test_all_readers_share_one_connection_which_is_closed_when_they_have_gone(serve, streams, command):
    _, address = serve(*command)
    wait_until(lambda: "horsies waiter" not in connections())
    before = connections()
    handles = jobs.writes.send_many({"chunks": []} for _ in range(10))
    readers = [streams(address, open_to(handle)) for handle in handles for _ in range(5)]
    for reader in readers:
        reader.block()

    wait_until(lambda: connections() == sorted([*before, "horsies waiter"]), what=lambda: str(connections()))
    for reader in readers[5:]:
        reader.close()
    handles[0].cancel()

    assert [reader.rest() for reader in readers[:5]] == [[Event("end", {"status": "CANCELLED"}, "end")]] * 5
    # The thread that polls ends once nothing waits: the readers that went away have left nothing.
    wait_until(lambda: connections() == before, what=lambda: str(connections()))


@pytest.mark.nightly
def test_a_silent_stream_is_kept_alive(serve, streams):
    _, address = serve(*UVICORN)
    handle = jobs.writes.send(["a"])
    stream = streams(address, open_to(handle))

    assert [stream.block() for _ in range(3)] == ["retry: 2000\n", ": keep-alive\n", ": keep-alive\n"]
    handle.cancel()
    assert stream.next().name == "end"


def memory_and_threads(site):
    """Return the megabytes that a site keeps resident, and its threads."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{site.process.pid}/status").read_text().splitlines())
    return int(status["VmRSS"].split()[0]) // 1_024, int(status["Threads"])


class Readers(threading.Thread):
    """A thread that reads many streams at once.

    ``counts`` has the number of streams that have begun, then that of those that had their first chunk, and so on;
    ``delays`` the seconds from the write of each chunk to its arrival, and ``ends`` the last event of each stream.
    """

    def __init__(self, address, paths):
        super().__init__(daemon=True)
        self.address, self.paths = address.split(":"), paths
        self.counts, self.delays, self.ends = [0] * 100, [], []
        self.start()

    def run(self):
        asyncio.run(self.read_all())

    async def read_all(self):
        self.opening = asyncio.Semaphore(20)  # each request has a connection of its own until it streams
        await asyncio.gather(*map(self.read, self.paths))

    async def read(self, path):
        async with self.opening:
            reader, writer = await asyncio.open_connection(*self.address)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            while not (await reader.readline()).startswith(b"retry: "):
                pass
        self.counts[0] += 1
        number = 0
        while line := (await reader.readline()).decode():
            if line.startswith("data: "):
                data = json.loads(line[6:])
                if "at" not in data:
                    self.ends.append(data)
                    break
                self.delays.append(time.time() - datetime.fromisoformat(data["at"]).timestamp())
                number += 1
                self.counts[number] += 1
        writer.close()


@pytest.mark.nightly
@pytest.mark.parametrize("tasks", [1, 20])
def test_a_thousand_readers_of_one_process_get_every_event(serve, worker, tmp_path, tasks):
    worker("--threads", "20")
    site, address = serve(*UVICORN)
    measures = [memory_and_threads(site)]
    handles = jobs.writes_at_gates.send_many({"folder": str(tmp_path), "count": 10} for _ in range(tasks))
    readers = Readers(address, [open_to(handle) for handle in handles] * (1_000 // tasks))

    for number in range(10):
        wait_until(lambda: readers.counts[number] == 1_000, what=lambda: str(readers.counts))  # noqa: B023
        measures.append(memory_and_threads(site))
        if connection.vendor == "postgresql":
            assert connections().count("horsies waiter") == 1
            measures.append(len(connections()))
        (tmp_path / str(number)).touch()
    readers.join(60)

    percentiles = statistics.quantiles(readers.delays, n=100)
    print(f"{tasks=} {measures=} p50={percentiles[49]:.3f} p99={percentiles[98]:.3f} max={max(readers.delays):.3f} s")
    assert len(readers.delays) == 10_000
    assert readers.ends == [{"status": "COMPLETED"}] * 1_000
