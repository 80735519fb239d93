"""Tasks that a limit blocks: every page, command and metric shows them beside the due ones, and not among them."""

import json
import re
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import transaction
from django.utils.html import strip_tags

from horsies_django.core.compat import task_backends
from horsies_django.db.expressions import NowPlus
from horsies_django.models import Limit, Task, release_blocked
from horsies_django.ops.health import parse_checks, run_checks
from tests.extras.monitoring import TOKEN, scrape, values, with_metrics
from tests.jobs import limited, tasks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once, pytest.mark.slow]

LIST = "/admin/horsies_django/task/"
KEY = "tests.jobs.limited.two_per_user:shop"
HALF_AN_HOUR = 1_980.0


@pytest.fixture(autouse=True)
def _token(settings):
    settings.TASKS = with_metrics(settings.TASKS, token=TOKEN)


@pytest.fixture
def client(staff):
    return staff("view_task", "view_queue", "view_limit")


def block_28_tasks_beside_7_due_ones():
    limited.two_per_user.send_many([{"user": "shop"}] * 30)
    with transaction.atomic():
        Task.objects.claim("w", start=10)
    Task.objects.blocked().update(enqueued_at=NowPlus(-HALF_AN_HOUR))
    tasks.noop.send_many([{}] * 7)


def report(*args, **options):
    out = StringIO()
    call_command(*args, json=True, stdout=out, **options)
    return json.loads(out.getvalue())


def number_of_rows(client, url):
    return len(client.get(url).context["cl"].result_list)


def check(text):
    (result,) = run_checks(parse_checks([text]), task_backends["default"])
    return result.is_ok


def of_default(queues):
    return next(queue for queue in queues if queue["name"] == "default")


def shown(client):
    """Return the due and the blocked tasks by each page, command and metric."""
    overview = client.get("/admin/horsies_django/overview/").context
    tiles = {tile["key"]: tile for tile in overview["tiles"] if tile["key"] in ("due", "blocked")}
    (depth,) = (queue.depth for queue, *_ in overview["queues"] if queue.name == "default")
    (listed,) = client.get("/admin/horsies_django/queue/").context["cl"].result_list[:1]
    page = dict(client.get("/admin/horsies_django/queue/~default/change/").context["summary"])
    tabs = {tab.label: tab.count.number for tab in client.get(LIST).context["cl"].state_tabs if tab.count is not None}
    status, metrics = report("horsies_status"), scrape(client)
    counts, queue = status["counts"], of_default(status["queues"])
    commanded = of_default(report("horsies_queue", "list")["queues"])
    gauges = {name: values(metrics[f"horsies_queue_{name}"], "queue")["default",] for name in ("ready", "blocked")}
    return {
        "tiles": (tiles["due"]["count"].number, tiles["blocked"]["count"].number),
        "lists of the tiles": tuple(number_of_rows(client, tiles[key]["url"]) for key in ("due", "blocked")),
        "tabs": (tabs.get("Due"), tabs.get("Blocked", 0)),
        "queues of the overview": (depth.due, depth.blocked),
        "list of queues": (listed.metrics.depth.due, listed.metrics.depth.blocked),
        "page of the queue": tuple(int(_digits(page[name])) for name in ("due", "blocked")),
        "counts of the status": (counts["due"]["count"], counts["blocked"]["count"]),
        "queues of the status": (queue["due"], queue["blocked"]),
        "horsies_queue": (commanded["due"], commanded["blocked"]),
        "metrics": (gauges["ready"], gauges["blocked"]),
    }


def _digits(html):
    return strip_tags(str(html)).split()[0]


def test_every_page_command_and_metric_counts_28_blocked_tasks_beside_7_due_ones(client):
    block_28_tasks_beside_7_due_ones()

    found = shown(client)

    assert found == dict.fromkeys(found, (7, 28))


def test_the_age_of_the_oldest_blocked_task_is_checked_and_is_no_latency(client):
    block_28_tasks_beside_7_due_ones()

    queue = of_default(report("horsies_status")["queues"])
    metrics = scrape(client)
    page = client.get("/admin/horsies_django/queue/").content.decode()

    assert (check("oldest=60s"), check("oldest_blocked=30m"), check("oldest_blocked:default=1h")) == (True, False, True)
    assert queue["oldest_waits"] == pytest.approx(0, abs=60)
    assert queue["oldest_blocked_waits"] == pytest.approx(HALF_AN_HOUR, abs=60)
    (oldest,) = values(metrics["horsies_queue_oldest_blocked_seconds"], "queue").values()
    assert oldest == pytest.approx(HALF_AN_HOUR, abs=60)
    assert re.search(r"28 \(.*33 min", page)


def test_a_task_that_a_limit_has_blocked_for_long_counts_as_due_from_its_release(client):
    block_28_tasks_beside_7_due_ones()
    Limit.objects.filter(pk=KEY).override(max_concurrency=100, rate=None)
    release_blocked.release_all("default", [KEY])

    found = shown(client)

    assert found == dict.fromkeys(found, (35, 0))
    assert (check("oldest=60s"), check("oldest_blocked=0")) == (True, True)
    assert number_of_rows(client, f"{LIST}?trouble=late") == 0
