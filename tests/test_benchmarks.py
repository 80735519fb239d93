"""The parts of the benchmarks that need no peers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest
from django.db import connection

from benchmarks import probe
from benchmarks.__main__ import main, store
from benchmarks.chart import svg
from benchmarks.command_line import QUICK_MEASURES, parse
from benchmarks.commits import export_package
from benchmarks.curve_chart import curve_svg
from benchmarks.driver import send_on_time
from benchmarks.estimate import estimate
from benchmarks.harness import HarnessConfig, PeerError, Stores, open_harness
from benchmarks.measures import loads, long_transactions
from benchmarks.measures.catalog import MEASURES
from benchmarks.measures.drains import drain, floor
from benchmarks.measures.loads import Load
from benchmarks.measures.neighbours import neighbour
from benchmarks.measures.orms import orm
from benchmarks.measures.workflows import run_workflow
from benchmarks.processes import last_error_line, run_workers
from benchmarks.registry import CHECKOUT, PEERS
from benchmarks.results import Results
from benchmarks.runs import install_peers, turns
from benchmarks.servers import Postgres, ServerError, redis
from benchmarks.table import markdown
from benchmarks.venvs import DONE, InstallError, ensure_venv, venv_path
from tests.conftest import database_url

OURS = PEERS["horsies-django-sqlite"]
NOWHERE = Stores(postgres=None, redis=None)

pytestmark = pytest.mark.once


@pytest.fixture
def results() -> Results:
    found = Results({"cores": "2"}, {"rounds": 3})
    for peer, rates in {"rq": [120.0, 110.0, 130.0], "horsies-django": [9_000.0, 12_000.0, 10_000.0]}.items():
        found.versions[peer] = "1.0"
        for rate in rates:
            found.add("drain", peer, {"tasks/s": rate}, 2.5)
    found.fail("drain", "celery", "RuntimeError: no broker")
    return found


def test_the_table_has_the_fastest_first_with_median_spread_and_ratio(results):
    rows = [line for line in markdown(results).splitlines() if line.startswith("| ") and "(" in line]

    assert "10,000 (9,000 … 12,000)" in rows[0]
    assert "120 (110 … 130)" in rows[1]
    assert "| 0.012 |" in rows[1].replace("  ", " ")


def test_the_table_names_a_failed_peer_with_its_reason(results):
    results.fail("install", "oban", "ERROR: needs another Python")

    assert "celery: RuntimeError: no broker" in markdown(results)
    assert "oban: ERROR: needs another Python" in markdown(results)


def test_the_chart_has_a_bar_for_each_measured_peer(results):
    assert svg(results).count("<rect") == 2


def test_the_table_leaves_out_waits_from_the_call_which_are_stored():
    found = Results({}, {})
    found.add("load", "horsies-django", {"400/s p99 ms": 3.5, "400/s p99 ms from call": 4.5}, 20)

    assert "400/s p99 ms" in markdown(found)
    assert "from call" not in markdown(found)
    assert "from call" in json.dumps(found.as_json())


def test_a_table_with_many_metrics_has_a_row_for_each():
    found = Results({}, {})
    for peer in ("oban", "horsies-django"):
        found.add("load", peer, {f"{rate}/s p99 ms": rate / 100 for rate in range(100, 2_100, 100)}, 20)

    rows = [line.split("|") for line in markdown(found).splitlines() if "/s p99 ms" in line]
    assert len(rows) == 20
    assert [cell.strip() for cell in rows[3]] == ["", "400/s p99 ms", "4", "4", ""]


def test_the_chart_of_curves_has_hollow_points_where_senders_were_too_slow(tmp_path):
    found = Results({}, {})
    assert curve_svg(found) is None
    for peer, sent in {"horsies-django": 99.0, "oban": 80.0}.items():
        found.add("curve", peer, {"100/s p50 ms": 1.0, "100/s p99 ms": 2.0, "100/s sent/s": sent}, 20)
    store(tmp_path / "run", found)

    drawn = (tmp_path / "run.curve.svg").read_text()
    assert drawn.count("<polyline") == 4
    assert drawn.count('class="hollow"/>') == 2
    assert ">oban</text>" in drawn


def test_senders_that_are_late_send_all_tasks_at_once_and_each_only_its_own():
    numbers: list[int] = []
    module = SimpleNamespace(send=numbers.append)

    for sender in range(3):
        called_at, returned_at = send_on_time(module, 100, 40, 0.0, 400.0, 20, sender, 3)
        assert len(called_at) == len(returned_at) == len(range(sender, 40, 3))

    assert numbers[:3] == [100, 103, 106]
    assert sorted(numbers) == list(range(100, 140))


def test_a_sender_that_is_late_sends_nothing_after_the_end_of_a_measure():
    numbers: list[int] = []

    sent = send_on_time(SimpleNamespace(send=numbers.append), 0, 40, 0.0, 400.0, 1, 0, 1, until=time.monotonic() - 1)

    assert (sent, numbers) == ([[], []], [])


def test_a_percentile_is_the_value_that_this_share_does_not_exceed():
    assert loads.percentile(range(1, 101), 99) == 99
    assert loads.percentile(range(1, 101), 50) == 50
    assert loads.percentile([4.0, 7.0], 99) == 7


def test_only_peers_that_run_hundreds_of_tasks_a_second_are_measured_under_load():
    names = {peer.name for _, peer in turns(parse(["--measure", "load,curve"]))}

    assert {"horsies-django", "horsies-django-8", "pgqueuer", "pgqueuer-100", "graphile", "dramatiq"} <= names
    assert not names & {"django-tasks-db", "django-ox", "dj-queue", "django-q2", "horsies", "rq", "huey-sqlite"}


def test_an_unknown_peer_is_rejected_by_name(capsys):
    with pytest.raises(SystemExit):
        parse(["--only", "rq,sidekiq"])

    assert "no peer sidekiq" in capsys.readouterr().err


def test_the_quick_flag_measures_three_projects_and_other_flags_override_it():
    quick = parse(["--quick"])

    assert {peer.module for peer in quick.peers} == {"ours", "pgqueuer", "procrastinate"}
    assert (quick.measures, quick.rounds) == (QUICK_MEASURES, 3)
    assert parse(["--quick", "--rounds", "1", "--measure", "drain"]).rounds == 1


def test_the_measure_that_takes_minutes_runs_only_if_it_is_named():
    assert set(MEASURES) - set(parse([]).measures) == {"long", "retention"}
    assert {peer.module for _, peer in turns(parse(["--measure", "long"]))} == {"ours", "pgqueuer", "awa"}


def test_rates_take_more_rounds_than_counts_unless_a_number_is_given():
    assert MEASURES["drain"].rounds_for(parse([])) > MEASURES["cost"].rounds_for(parse([]))
    assert {measure.rounds_for(parse(["--rounds", "2"])) for measure in MEASURES.values()} == {2}


def test_every_measure_runs_once_before_any_runs_again():
    names = [name for name, _ in turns(parse(["--only", "oban", "--measure", "drain,sleep,idle"]))]

    assert names == ["drain", "sleep", "idle", "drain", "sleep", "drain"]


def test_a_variant_of_a_peer_runs_only_measures_in_which_it_differs():
    measured = set(turns(parse(["--only", "pgqueuer,pgqueuer-100", "--measure", "drain,enqueue", "--rounds", "1"])))

    assert {(name, peer.name) for name, peer in measured} == {
        ("drain", "pgqueuer"),
        ("drain", "pgqueuer-100"),
        ("enqueue", "pgqueuer"),
    }


def test_this_package_as_of_an_earlier_commit_takes_part_only_if_one_is_named():
    without = {peer.name for _, peer in turns(parse(["--measure", "drain"]))}
    named = {peer.name for _, peer in turns(parse(["--measure", "drain", "--before", "HEAD"]))}

    assert named - without == {"horsies-django-before"}


def test_a_peer_may_take_part_in_one_measure_alone():
    options = parse(["--only", "celery,celery-django", "--measure", "drain,orm", "--rounds", "1"])

    assert {(name, peer.name) for name, peer in turns(options)} == {("drain", "celery"), ("orm", "celery-django")}


def test_the_expected_duration_of_a_run_comes_from_stored_results(tmp_path, results):
    store(tmp_path / "2026-01-01", results)
    options = parse(["--only", "rq,horsies-django", "--measure", "drain", "--rounds", "12"])

    assert estimate(turns(options), tmp_path) == "about 1 minutes (drain 1.0)"
    assert "no stored result for 24 turns" in estimate(turns(options), tmp_path / "nowhere")


def test_a_slow_peer_gets_fewer_turns_unless_it_is_measured_in_depth(tmp_path, results):
    results.seconds["drain"] = {"rq": [40.0], "horsies-django": [40.0], "oban": []}
    store(tmp_path / "2026-01-01", results)
    options = parse(["--only", "rq,horsies-django", "--measure", "drain", "--rounds", "5"])

    assert estimate(turns(options), tmp_path) == "about 4 minutes (drain 4.0)"


def test_an_interrupted_run_stores_its_results_so_far(tmp_path, results):
    results.interrupted = True
    store(tmp_path / "run", results)

    assert {path.name for path in tmp_path.iterdir()} == {"run.json", "run.md", "run.svg"}
    assert (tmp_path / "run.md").read_text().startswith("# Benchmarks, interrupted before the end")
    assert json.loads((tmp_path / "run.json").read_text())["seconds"]["drain"]["rq"] == [2.5, 2.5, 2.5]


def test_peers_that_need_redis_are_left_out_with_a_reason_if_it_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    left_out = Results({}, {})
    with redis(True) as url:
        options = parse(["--only", "rq,celery,dramatiq,huey-redis", "--folder", str(tmp_path)])
        pythons = install_peers(options, Stores(None, url), left_out)

    assert not pythons
    assert set(left_out.failures["install"]) == {"rq", "celery", "dramatiq", "huey-redis"}
    assert "rq: it needs Redis, and no redis-server was found" in capsys.readouterr().err
    assert "rq: it needs Redis" in markdown(left_out)


def test_a_peer_on_node_is_left_out_with_a_reason_if_node_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    left_out = Results({}, {})
    options = parse(["--only", "graphile", "--folder", str(tmp_path)])

    assert not install_peers(options, NOWHERE, left_out)
    assert "graphile: it needs Node.js, and no node and npm were found" in capsys.readouterr().err
    assert "graphile: it needs Node.js" in markdown(left_out)


def test_peers_that_take_part_in_no_chosen_measure_are_reported(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--only", "rq", "--measure", "sqlite"])

    assert main() == 1
    assert "none of these peers takes part" in capsys.readouterr().err


def test_an_unreachable_server_is_reported_in_one_line(monkeypatch, capsys, tmp_path):
    url = f"postgresql://me@/postgres?host={tmp_path}"
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--only", "oban", "--database-url", url, "--folder", str(tmp_path)])

    assert main() == 1
    assert "no usable server: connection" in capsys.readouterr().err


@pytest.fixture
def server(django_db_setup):
    if connection.vendor != "postgresql":
        pytest.skip("needs PostgreSQL")
    server = Postgres(database_url())
    yield server
    server.close()


def databases(server):
    with psycopg.connect(server.url) as session:
        return {name for (name,) in session.execute("SELECT datname FROM pg_database")}


@pytest.mark.slow
def test_a_kept_database_can_be_copied_and_is_dropped_at_the_end(server):
    name = "horsies_django_benchmark_test"
    with server.database(name) as url, psycopg.connect(url, autocommit=True) as left_open:
        left_open.execute("CREATE TABLE kept AS SELECT 1 AS number")
        server.save_snapshot(name, "one")
        for _ in range(2):
            server.restore_snapshot(name, "one")
            with psycopg.connect(url, autocommit=True) as copy:
                assert copy.execute("SELECT number FROM kept").fetchall() == [(1,)]
                copy.execute("DROP TABLE kept")
        assert server.has_snapshot(name, "one")
        assert {name, f"{name}_one"} <= databases(server)
    server.close()

    assert not {name, f"{name}_one"} & {*databases(server)}


def test_a_role_that_may_not_create_databases_is_rejected_with_the_fix(server):
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute("CREATE ROLE horsies_benchmark_guest LOGIN PASSWORD 'a/b c'")
        try:
            url = server.url.replace(f"//{admin.info.user}", "//horsies_benchmark_guest:a%2Fb%20c", 1)
            with pytest.raises(ServerError, match="ALTER ROLE horsies_benchmark_guest CREATEDB"):
                Postgres(url)
        finally:
            admin.execute("DROP ROLE horsies_benchmark_guest")


def test_the_url_of_a_server_is_completed_from_the_environment(server, monkeypatch):
    with psycopg.connect(server.url) as session:
        info = session.info
        left_out = {"PGUSER": info.user, "PGHOST": info.host, "PGPORT": str(info.port)}
        for name, value in left_out.items():
            monkeypatch.setenv(name, value)
        whole = Postgres(f"postgresql:///{info.dbname}")
    whole.close()
    for name in left_out:
        monkeypatch.delenv(name)

    assert databases(whole)


def test_the_probe_records_when_each_body_began_and_which_began_twice(tmp_path, monkeypatch):
    probe.create(tmp_path / "probe", 3)
    monkeypatch.setenv(probe.VARIABLE, str(tmp_path / "probe"))
    for number in (2, 0, 0):
        probe.mark(number)
    reader = probe.ProbeReader(tmp_path / "probe")

    assert reader.count_started(0, 3) == 2
    assert reader.started_at(2) < reader.started_at(0)
    assert reader.count_repeated(0, 3) == 1


@pytest.mark.skipif(not shutil.which("node"), reason="needs Node.js")
def test_bodies_on_node_are_recorded_in_the_same_way_by_the_same_clock(tmp_path, monkeypatch):
    probe.create(tmp_path / "probe", 3)
    monkeypatch.setenv(probe.VARIABLE, str(tmp_path / "probe"))
    program = f"import {{ mark }} from '{CHECKOUT}/benchmarks/node/probe.mjs'; for (const n of [2, 0, 0]) mark(n)"
    before = time.monotonic()
    subprocess.run([shutil.which("node"), "--input-type=module", "--eval", program], check=True)
    reader = probe.ProbeReader(tmp_path / "probe")

    assert before < reader.started_at(2) < reader.started_at(0) < time.monotonic()
    assert reader.count_started(0, 3) == 2
    assert reader.count_repeated(0, 3) == 1


@pytest.mark.nightly
@pytest.mark.slow
def test_a_peer_that_pip_cannot_install_is_reported_with_the_reason(tmp_path):
    peer = replace(OURS, requirements=("-e", str(tmp_path / "nowhere")))

    with pytest.raises(InstallError, match="nowhere"):
        ensure_venv(peer, tmp_path)


@pytest.mark.nightly
@pytest.mark.slow
def test_an_unknown_commit_is_reported_with_the_reason(tmp_path):
    options = parse(["--before", "no-such-commit", "--folder", str(tmp_path)])

    with pytest.raises(InstallError, match="no-such-commit"):
        export_package(options)


@pytest.mark.slow
@pytest.mark.nightly
def test_a_failed_renewal_keeps_the_old_environment(tmp_path):
    peer = replace(OURS, requirements=("-e", str(tmp_path / "nowhere")))
    venv_dir = venv_path(peer, tmp_path)
    venv_dir.mkdir(parents=True)
    (venv_dir / DONE).write_text("of old")

    with pytest.raises(InstallError):
        ensure_venv(peer, tmp_path, renew=True)

    assert ensure_venv(peer, tmp_path) == venv_dir / "bin" / "python"
    assert (venv_dir / DONE).read_text() == "of old"
    assert list(venv_dir.parent.iterdir()) == [venv_dir]


def test_a_worker_that_exits_is_reported_with_its_last_line(tmp_path):
    command = [sys.executable, "-c", "raise ValueError('no such queue')"]

    with run_workers([command], {}, tmp_path, tmp_path / "log") as group:
        group.wait()
        with pytest.raises(RuntimeError, match="ValueError: no such queue"):
            group.raise_if_exited()
    assert last_error_line(tmp_path / "log") == "ValueError: no such queue"


@pytest.mark.slow
def test_our_worker_drains_the_tasks_of_a_benchmark(tmp_path):
    with open_harness(
        OURS, Path(sys.executable), NOWHERE, HarnessConfig(max_tasks=200, threads=4, logs=tmp_path)
    ) as harness:
        figures = drain(harness, parse(["--tasks", "200"]))

        assert figures["tasks"] == 200
        assert figures["began more than once"] == 0
        assert harness.call("count_unfinished") == 0


@pytest.mark.slow
def test_bare_loops_drain_the_tasks_of_a_benchmark_with_the_statement_of_a_worker(server, tmp_path):
    options = parse(["--tasks", "300", "--processes", "2"])
    config = HarnessConfig(MEASURES["floor"].max_tasks(options), threads=4, logs=tmp_path)
    stores = Stores(postgres=server, redis=None)
    with open_harness(PEERS["horsies-django"], Path(sys.executable), stores, config) as harness:
        figures = floor(harness, options)

    assert figures["tasks/s of bare loops"] > 0
    assert figures["share of bare loops"] == figures["tasks/s"] / figures["tasks/s of bare loops"]


@pytest.mark.slow
def test_tasks_sent_on_a_timetable_by_several_processes_all_begin_once(tmp_path):
    even, bursts = Load("even", 200, 20), Load("bursts ×2", 400, 20, senders=2, burst=10)
    config = HarnessConfig(loads.count_tasks([even, bursts]), threads=4, logs=tmp_path)
    with open_harness(OURS, Path(sys.executable), NOWHERE, config) as harness:
        figures = loads.load(harness, parse(["--processes", "1"]), [even, bursts])

        assert harness.probe.count_started(0, config.max_tasks) == config.max_tasks == 60
        assert figures["began more than once"] == 0
        for each in (even, bursts):
            assert 0 <= figures[loads.p50(each)] <= figures[loads.p99(each)] < figures[f"{each.label} p99 ms from call"]
            assert figures[loads.sent(each)] > 0


@pytest.mark.nightly
def test_transactions_of_another_application_are_timed_beside_our_drain(server, tmp_path):
    options = parse(["--tasks", "500"])
    config = HarnessConfig(MEASURES["neighbour"].max_tasks(options), threads=4, logs=tmp_path)
    stores = Stores(postgres=server, redis=None)
    with open_harness(PEERS["horsies-django"], Path(sys.executable), stores, config) as harness:
        figures = neighbour(harness, options)

        assert harness.call("count_unfinished") == 0
    assert figures["transactions"] > 0
    assert figures["p50 ms"] <= figures["p99 ms"]
    assert figures["dead tuples/task"] >= 1
    assert figures["WAL bytes/task"] > 0


@pytest.mark.nightly
@pytest.mark.slow
def test_tasks_sent_beside_long_transactions_all_begin_once_though_a_worker_is_restarted(server, tmp_path, monkeypatch):
    monkeypatch.setattr(long_transactions, "RATE", 50)
    options = parse(["--long-minutes", "0.1", "--folder", str(tmp_path)])
    config = HarnessConfig(MEASURES["long"].max_tasks(options), threads=4, logs=tmp_path)
    stores = Stores(postgres=server, redis=None)
    with open_harness(PEERS["horsies-django-8"], Path(sys.executable), stores, config) as harness:
        figures = MEASURES["long"].run(harness, options)

        assert harness.probe.count_started(0, config.max_tasks) == config.max_tasks
    assert figures["began more than once"] == 0
    assert 0 < figures["p50 ms"] <= figures["p99 ms"]
    assert figures["tables at the start, MiB"] < figures["tables at the end, MiB"]
    lines = next((tmp_path / "results").glob("*-django-8.csv")).read_text().splitlines()
    snapshots = [int(line.split(",")[5]) for line in lines[1:]]
    assert (snapshots[0], snapshots[-1]) == (0, 1)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_drain_whose_backlog_never_runs_out_begins_each_task_once_while_others_are_deleted(server, tmp_path):
    options = parse(["--long-minutes", "0.2", "--folder", str(tmp_path)])
    config = HarnessConfig(MEASURES["retention"].max_tasks(options), threads=4, logs=tmp_path)
    stores = Stores(postgres=server, redis=None)
    with open_harness(PEERS["horsies-django-8"], Path(sys.executable), stores, config) as harness:
        figures = MEASURES["retention"].run(harness, options)

    assert figures["began more than once"] == 0
    assert figures["first tenth, tasks/s"] >= 0
    assert figures["at the end, MiB"] <= figures["at most, MiB"]
    assert len(next((tmp_path / "results").glob("*-retention-*.csv")).read_text().splitlines()) > 1


@pytest.mark.nightly
def test_the_bodies_of_the_measure_orm_save_their_rows_at_both_settings(server, tmp_path):
    options = parse(["--tasks", "100"])
    config = HarnessConfig(MEASURES["orm"].max_tasks(options), threads=4, logs=tmp_path)
    stores = Stores(postgres=server, redis=None)
    with open_harness(PEERS["horsies-django-8"], Path(sys.executable), stores, config) as harness:
        figures = orm(harness, options)

        assert harness.call("count_saves") == config.max_tasks
    assert {tuple(name.split(", ")[:2]) for name in figures} == {
        (kind, settings) for kind in ("functions", "coroutines") for settings in ("defaults", "recommended")
    }


@pytest.mark.nightly
def test_our_worker_runs_the_workflows_of_a_benchmark_to_their_end(tmp_path):
    config = HarnessConfig(max_tasks=31, threads=4, logs=tmp_path)
    with open_harness(OURS, Path(sys.executable), NOWHERE, config) as harness, harness.workers(1) as (group, _):
        for shape, bodies in {"chain": 30, "fan": 31, "map": 31}.items():
            durations = run_workflow(harness, group, shape, 30)

            assert 0 < durations.start < durations.total
            assert (harness.probe.count_started(0, 31), harness.probe.count_repeated(0, 31)) == (bodies, 0)
            assert harness.call("count_running_workflows") == 0


def test_four_peers_take_part_in_the_workflow_measure():
    names = {peer.name for _, peer in turns(parse(["--measure", "workflows"]))}

    assert names == {"horsies-django", "horsies", "horsies-tuned", "celery"}


@pytest.mark.slow
def test_an_exception_of_a_peer_is_reported_with_its_last_line(tmp_path):
    config = HarnessConfig(max_tasks=1, threads=1, logs=tmp_path)

    with (
        open_harness(OURS, Path(sys.executable), NOWHERE, config) as harness,
        pytest.raises(PeerError, match="KeyError: 'nope'"),
    ):
        harness.call("send_many", first=0, count=1, body="nope")
