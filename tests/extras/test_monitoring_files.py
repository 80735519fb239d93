"""The dashboard and the alert rules of docs/monitoring use metrics that exist."""

import json
import re
import shutil
import subprocess

import pytest
import yaml
from django.db import connection  # noqa: F401  # conditions of skipif

from horsies_django.core.histogram import BOUNDS
from horsies_django.extras.prometheus import render
from horsies_django.extras.prometheus.worker_server import WorkerCollector
from horsies_django.models import Lease
from horsies_django.schedules.scheduler import Scheduler
from horsies_django.worker.config import WorkerConfig
from horsies_django.worker.figures import SupervisorFigures
from tests.conftest import ROOT
from tests.extras.monitoring import TOKEN, families, scrape, with_metrics
from tests.extras.test_queue_metrics import ended, options, roll

pytestmark = pytest.mark.django_db(transaction=True)

FOLDER = ROOT / "docs" / "monitoring"
ALERTS = FOLDER / "alerts.yaml"
PAGE = (ROOT / "docs" / "monitoring.md").read_text()


def names_in(text):
    return set(re.findall(r"\bhorsies_\w+", text))


def rules():
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    return group["rules"]


def dashboard():
    return json.loads((FOLDER / "dashboard.json").read_text())


@pytest.fixture
def exported(client, settings):
    """Return the type of each exported family, of the queue and of a worker."""
    settings.TASKS = with_metrics(settings.TASKS, token=TOKEN)
    ended(1)
    roll()
    Scheduler(options(), "default")._fire_next()
    Lease.objects.acquire("reaper:default", "here", 30)
    Lease.objects.acquire("reaper:default", "here", 30)
    text, _ = render(WorkerCollector(SupervisorFigures(WorkerConfig.of("default"))), "")
    return {family.name: family for family in (*scrape(client).values(), *families(text.decode()).values())}


def sample_names(exported):
    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
    return {f"{name}{suffix}" for name, family in exported.items() for suffix in suffixes.get(family.type, [""])}


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="it has more metrics")
def test_every_metric_of_the_dashboard_and_the_alerts_is_exported(exported):
    used = names_in("\n".join(rule["expr"] for rule in rules()))
    used |= names_in("\n".join(expression for panel in dashboard()["panels"] for expression in expressions(panel)))

    assert len(used) > 20
    assert used - sample_names(exported) == set()


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="it has more metrics")
def test_the_page_has_every_metric_with_its_type_and_its_labels(exported):
    documented = {}
    for line in PAGE.splitlines():
        if re.match(r"\| `horsies_", line):
            names, kind, labels, _ = (cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|"))
            for name in names_in(names):
                documented[name.removesuffix("_total")] = (kind, tuple(sorted(filter(None, labels.split(", ")))))

    assert {name: kind for name, (kind, _) in documented.items()} == {
        name: family.type for name, family in exported.items()
    }
    for name, family in exported.items():
        for sample in family.samples:
            assert tuple(sorted(set(sample.labels) - {"le"})) == documented[name][1]


def test_names_and_labels_follow_the_conventions(exported):
    for name, family in exported.items():
        assert name.startswith("horsies_")
        assert family.documentation
        assert not re.search(r"_(ms|millis|minutes|hours|mb|kb|percent)\b", name)
        assert {label for sample in family.samples for label in sample.labels} <= {
            *("queue", "task", "outcome", "worker"),
            "le",
        }
        if name.endswith("_wait_seconds"):
            assert len(family.samples) == len(BOUNDS) + 3


def expressions(panel):
    return [target["expr"] for target in panel.get("targets", [])]


def test_the_dashboard_lets_its_user_choose_the_data_source():
    board = dashboard()

    assert {"name": "datasource", "type": "datasource"}.items() <= board["templating"]["list"][0].items()
    assert "id" not in board
    for panel in board["panels"]:
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert expressions(panel)
    places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in board["panels"]}) == len(places)


def test_every_alert_says_how_severe_it_is_and_what_to_do():
    assert len({rule["alert"] for rule in rules()}) == len(rules()) >= 8
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert {"summary", "description"} == set(rule["annotations"])
        assert re.fullmatch(r"\d+m", rule["for"])


@pytest.mark.once
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: it is in Debian's prometheus")
def test_promtool_accepts_the_alerts_and_the_metrics(client, settings):
    settings.TASKS = with_metrics(settings.TASKS, token=TOKEN)
    checked = subprocess.run(["promtool", "check", "rules", ALERTS], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr

    ended(1)
    roll()
    content = client.get("/horsies/metrics", headers={"Authorization": f"Bearer {TOKEN}"}).content
    linted = subprocess.run(["promtool", "check", "metrics"], input=content, capture_output=True)
    assert (linted.returncode, linted.stderr) == (0, b""), linted
