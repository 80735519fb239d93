"""The parts of the benchmarks that need no peers."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import probe
from benchmarks.chart import svg
from benchmarks.measures.drains import drain
from benchmarks.options import QUICK_MEASURES, parsed
from benchmarks.processes import last_line, running
from benchmarks.registry import PEERS
from benchmarks.results import Results
from benchmarks.stage import Needs, PeerError, Stores, staged
from benchmarks.table import markdown
from benchmarks.venvs import InstallError, environment

OURS = PEERS["horsies-django-sqlite"]
NOWHERE = Stores(postgres=None, redis=None)


@pytest.fixture
def results() -> Results:
    found = Results({"cores": "2"}, {"rounds": 3})
    for peer, rates in {"rq": [120.0, 110.0, 130.0], "horsies-django": [9_000.0, 12_000.0, 10_000.0]}.items():
        found.versions[peer] = "1.0"
        for rate in rates:
            found.add("drain", peer, {"tasks/s": rate}, 2.5)
    found.fail("drain", "celery", "RuntimeError: no broker")
    return found


def test_the_fastest_stands_first_with_median_and_spread_and_the_others_beside_ours(results):
    rows = [line for line in markdown(results).splitlines() if line.startswith("| ") and "(" in line]

    assert "10,000 (9,000 … 12,000)" in rows[0]
    assert "120 (110 … 130)" in rows[1]
    assert "| 0.012 |" in rows[1].replace("  ", " ")


def test_a_peer_that_failed_is_in_the_table_with_its_reason(results):
    results.fail("install", "oban", "ERROR: needs another Python")

    assert "celery: RuntimeError: no broker" in markdown(results)
    assert "oban: ERROR: needs another Python" in markdown(results)


def test_the_chart_has_a_bar_for_each_that_was_measured(results):
    assert svg(results).count("<rect") == 2


def test_what_there_is_not_is_refused_by_name(capsys):
    with pytest.raises(SystemExit):
        parsed(["--only", "rq,sidekiq"])

    assert "no peer sidekiq" in capsys.readouterr().err


def test_quick_is_three_projects_and_what_is_asked_for_beside_it_wins():
    quick = parsed(["--quick"])

    assert {peer.module for peer in quick.peers} == {"ours", "pgqueuer", "procrastinate"}
    assert (quick.measures, quick.rounds) == (QUICK_MEASURES, 3)
    assert parsed(["--quick", "--rounds", "1", "--measure", "drain"]).rounds == 1


def test_the_probe_tells_when_each_body_began_and_which_began_twice(tmp_path, monkeypatch):
    probe.create(tmp_path / "probe", 3)
    monkeypatch.setenv(probe.VARIABLE, str(tmp_path / "probe"))
    for number in (2, 0, 0):
        probe.mark(number)
    reading = probe.Reading(tmp_path / "probe")

    assert reading.began(0, 3) == 2
    assert reading.at(2) < reading.at(0)
    assert reading.repeated(0, 3) == 1


def test_a_peer_that_pip_can_not_install_says_why(tmp_path):
    peer = replace(OURS, requirements=("-e", str(tmp_path / "nowhere")))

    with pytest.raises(InstallError, match="nowhere"):
        environment(peer, tmp_path)


def test_a_worker_that_ends_is_noticed_with_the_last_it_said(tmp_path):
    command = [sys.executable, "-c", "raise ValueError('no such queue')"]

    with running([command], {}, tmp_path, tmp_path / "log") as group:
        group.wait()
        with pytest.raises(RuntimeError, match="ValueError: no such queue"):
            group.check()
    assert last_line(tmp_path / "log") == "ValueError: no such queue"


def test_ours_is_drained_by_its_real_worker(tmp_path):
    with staged(OURS, Path(sys.executable), NOWHERE, Needs(slots=200, threads=4, logs=tmp_path)) as stage:
        figures = drain(stage, parsed(["--tasks", "200"]))

        assert figures["tasks"] == 200
        assert figures["began more than once"] == 0
        assert stage.call("left") == 0


def test_what_a_peer_raises_is_told_by_its_last_line(tmp_path):
    needs = Needs(slots=1, threads=1, logs=tmp_path)

    with (
        staged(OURS, Path(sys.executable), NOWHERE, needs) as stage,
        pytest.raises(PeerError, match="KeyError: 'nope'"),
    ):
        stage.call("send_many", first=0, count=1, body="nope")
