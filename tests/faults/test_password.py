"""The password of the workers' role is changed while they run."""

from __future__ import annotations

import time
from pathlib import Path

import psycopg
import pytest

from horsies_django.models import TaskAttempt, Worker
from tests.chaos.cluster import Cluster
from tests.conftest import wait_until
from tests.faults import jobs
from tests.faults.load import RECOVERY, Load
from tests.faults.network import Proxy
from tests.jobs import tasks
from tests.jobs.models import Entry

pytestmark = pytest.mark.slow

REFUSED = 'password authentication failed for user "app"'


class Role:
    """A role that has to give its password, which a test changes."""

    def __init__(self, own: Cluster, proxy: Proxy) -> None:
        self._own, self._proxy = own, proxy
        hba = Path(own.folder, "pg_hba.conf")
        hba.write_text(f"local all app scram-sha-256\n{hba.read_text()}")
        self._run("CREATE ROLE app LOGIN PASSWORD 'old'", "SELECT pg_reload_conf()")
        self._run(*(f"GRANT ALL ON ALL {kind} IN SCHEMA public TO app" for kind in ("TABLES", "SEQUENCES")))

    def url(self, password: str) -> str:
        """Return the URL with which clients use the role."""
        return f"postgresql://app:{password}@{self._proxy.address}:{self._proxy.port}/postgres"

    def change(self, password: str) -> None:
        """Change the password. Connections stay open."""
        self._run(f"ALTER ROLE app PASSWORD '{password}'")

    def end_connections(self) -> None:
        """End the role's connections, as a restart of the server does."""
        self._run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")

    def _run(self, *statements: str) -> None:
        with psycopg.connect(self._own.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)


@pytest.fixture
def role(own_cluster: Cluster, proxy: Proxy) -> Role:
    return Role(own_cluster, proxy)


def attempts(handle):
    return list(TaskAttempt.objects.filter(task=handle.id).order_by("pk").values_list("attempt", "outcome"))


@pytest.mark.nightly
def test_workers_wait_while_their_password_is_wrong(role, start, effects_file, gate):
    options = ["horsies_worker", "--threads", "4", "--no-reaper"]
    workers = [start(*options, DATABASE_URL=role.url("old"), **RECOVERY) for _ in range(2)]
    reaper = start("horsies_reaper", DATABASE_URL=role.url("old"), **RECOVERY)
    start(*options, "--queues", "fresh", DATABASE_URL=role.url("old"), **RECOVERY)
    held = [jobs.hold.send(f"held {number}", str(gate)) for number in range(4)]
    wait_until(lambda: Entry.objects.count() == len(held), what="the bodies have begun")
    assert tasks.noop.with_options(queue_name="fresh").send().get(timeout=60).is_ok()

    with Load(role.url("old")) as load:
        role.change("new")
        load.wait_for_more()
        assert not load.in_doubt
        # Open connections live on, so workers go on to claim. But a body that opens a connection fails.
        assert REFUSED in jobs.write.with_options(queue_name="fresh").send("written").get(timeout=60).err.message

        began = time.time()
        role.end_connections()
        late = start(*options, DATABASE_URL=role.url("old"), **RECOVERY)
        for process in (*workers, reaper, late):
            wait_until(lambda process=process: process.output.count(REFUSED) > 2, what="the process is refused")
        gate.touch()
        over = time.time()
        role.change("old")
        load.wait_for_more()
        assert [handle.value(timeout=60) for handle in held] == [f"held {number}" for number in range(len(held))]
        wait_until(lambda: "worker ready" in late.output, what="the late worker works")
        load.end("a wrong password", began, over).check()

    assert {tuple(attempts(handle)) for handle in held} == {((1, "COMPLETED"),)}


def test_a_worker_that_stops_before_its_connections_end_stores_its_results(role, start, effects_file, tmp_path):
    """One that stops later can't, and the policies of its tasks decide."""
    options, later = ["horsies_worker", "--threads", "4", "--shutdown-timeout", "1"], {"queue_name": "later"}
    gates = [str(tmp_path / name) for name in ("in time", "too late")]
    in_time = start(*options, "--exclude-queues", "later", DATABASE_URL=role.url("old"), **RECOVERY)
    too_late = start(*options, "--queues", "later", "--no-reaper", DATABASE_URL=role.url("old"), **RECOVERY)
    stored = jobs.hold.send("stored", gates[0])
    once = jobs.hold.with_options(**later).send("once", gates[1])
    again = jobs.hold_again.with_options(**later).send("again", gates[1])
    wait_until(lambda: Entry.objects.count() == 3, what="the bodies have begun")

    with Load(role.url("old")) as load:
        began = time.time()
        role.change("new")
        in_time.signal()
        Path(gates[0]).touch()
        wait_until(lambda: Worker.objects.count() == 1, what="the first worker has left")
        assert attempts(stored) == [(1, "COMPLETED")]

        role.end_connections()
        wait_until(lambda: REFUSED in too_late.output, what="the worker is refused")
        too_late.signal()
        Path(gates[1]).touch()
        too_late.wait()
        load.use(role.url("new"))
        over = time.time()
        start(*options, DATABASE_URL=role.url("new"), **RECOVERY)
        assert once.get(timeout=60).err.error_code == "WORKER_CRASHED"
        assert again.value(timeout=60) == "again"
        load.wait_for_more()
        load.end("a restart with a new password", began, over).check()

    assert (attempts(once), attempts(again)) == ([(1, "WORKER_FAILURE")], [(1, "WORKER_FAILURE"), (2, "COMPLETED")])
    assert Entry.objects.filter(key="again").count() == 2
