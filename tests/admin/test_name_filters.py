"""The filters by queue, task, error code and exact priority: every known name, in one statement."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from horsies_django.models import Rollup, Task
from horsies_django.ops.metrics import tasks as metrics_of_tasks
from tests.jobs import tasks

pytestmark = pytest.mark.django_db(transaction=True)

LIST = "/admin/horsies_django/task/"


def rollup(hours=1, *, task="shop.send", queue="emails", code="", count=1, span="H"):
    start = timezone.now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=hours)
    outcome = "FAILED" if code else "COMPLETED"
    return Rollup(
        span=span, start=start, task_name=task, queue_name=queue, outcome=outcome, error_code=code, count=count
    )


def choices_of(client, parameter, **query):
    """Return the links of a filter with their attempts, and the names that its text box completes."""
    listed = client.get(LIST, query).context["cl"]
    (spec,) = [spec for spec in listed.filter_specs if getattr(spec, "parameter_name", "") == parameter]
    *links, form = spec.choices(listed)
    return {link["display"]: link.get("count") for link in links}, form


@pytest.mark.slow
def test_each_filter_knows_the_names_of_the_roll_ups_with_their_attempts(staff):
    Rollup.objects.bulk_create(
        [
            rollup(task="shop.send", queue="emails", count=5),
            rollup(hours=2, task="shop.send", queue="emails", count=7),
            rollup(hours=30, task="shop.send", queue="emails", count=100),
            rollup(task="shop.pay", queue="money", code="CARD_DECLINED", count=3),
            rollup(hours=24 * 30, task="shop.monthly", queue="reports", code="LATE", count=9),
            rollup(hours=24 * 40, task="shop.forgotten", queue="old", count=9),
            rollup(task="horsies_django.workflows.engine_tasks.wake", queue="emails", count=2),
        ]
    )
    client = staff("view_task")

    by_task, form = choices_of(client, "task_name")
    by_queue, _form = choices_of(client, "queue_name")
    by_code, codes = choices_of(client, "error_code")

    assert (by_task["shop.send"], by_task["shop.pay"]) == (12, 3)
    assert {"shop.send", "shop.monthly", tasks.noop.module_path} <= set(form["names"])
    assert not {"shop.forgotten", "horsies_django.workflows.engine_tasks.wake"} & set(form["names"])
    assert {"emails": 14, "money": 3, "reports": 0, "default": 0}.items() <= by_queue.items()
    assert "old" not in by_queue
    assert by_code["CARD_DECLINED"] == 3
    assert {"LATE", "UNHANDLED_EXCEPTION"} <= set(codes["names"])


def test_names_of_rare_tasks_come_from_the_totals(staff, monkeypatch):
    monkeypatch.setattr(metrics_of_tasks, "MAX_ROLLUPS", 5)
    often = [rollup(hours=hours, task="shop.often") for hours in range(1, 20)]
    Rollup.objects.bulk_create(
        [*often, rollup(hours=300, task="shop.rare"), rollup(hours=90_000, task="shop.rarest", span="T")]
    )

    _links, form = choices_of(staff("view_task"), "task_name")

    assert {"shop.often", "shop.rarest"} <= set(form["names"])
    assert "shop.rare" not in form["names"]  # only the newest roll-ups are read


@pytest.mark.once
def test_many_names_are_completed_in_a_text_box_and_some_are_left_out(staff, monkeypatch):
    from horsies_django.admin.lists import name_filters

    monkeypatch.setattr(name_filters, "MAX_NAMES", 100)
    Rollup.objects.bulk_create([rollup(task=f"shop.task_{number:03}", count=number) for number in range(150)])
    client = staff("view_task")

    links, form = choices_of(client, "task_name", task_name="shop.task_001", priority="high")
    html = client.get(LIST).content.decode()

    assert len(links) == 12  # All, the selected one, and the ten most frequent
    assert list(links)[:3] == ["All", "shop.task_001", "shop.task_149"]
    assert len(form["names"]) == 100
    assert form["left_out"] >= 50
    assert form["value"] == "shop.task_001"
    assert form["others"] == [("priority", "high")]
    assert '<option value="shop.task_149">' in html
    assert "more names are not offered" in html


def test_a_typed_name_finds_its_tasks_even_if_it_is_not_offered(staff):
    key = Task.objects.create(task_name="shop.old", queue_name="typo").pk
    client = staff("view_task")

    for query in ({"task_name": "shop.old"}, {"queue_name": "typo"}):
        listed = client.get(LIST, query).context["cl"]
        assert [row.pk for row in listed.result_list] == [key]
        assert listed.descriptions[-1].endswith(next(iter(query.values())))


@pytest.mark.slow
def test_all_names_are_read_in_one_statement(staff):
    client = staff("view_task")
    client.get(LIST)

    with CaptureQueriesContext(connection) as queries:
        client.get(LIST)

    assert sum("horsies_rollups" in query["sql"] for query in queries) == 1


@pytest.mark.once
@pytest.mark.parametrize(
    ("given", "selected", "expected"),
    [
        ("42", "42", {42}),
        ("-100", "-100", {-100}),
        ("+42", "42", {42}),
        ("0", "normal", {0}),
        ("high", "high", {42, 100}),
        ("43", "43", set()),
        ("101", None, set()),
        ("-+5", None, set()),
        ("x", None, set()),
    ],
)
def test_tasks_are_filtered_by_an_exact_priority(staff, given, selected, expected):
    for priority in (-100, 0, 42, 100):
        Task.objects.create(task_name=tasks.noop.module_path, priority=priority)

    listed = staff("view_task").get(LIST, {"priority": given}).context["cl"]
    (spec,) = [spec for spec in listed.filter_specs if getattr(spec, "parameter_name", "") == "priority"]

    assert {row.priority for row in listed.result_list} == expected
    assert spec.selected == selected
    assert len(listed.descriptions) >= 1  # the list says that it is filtered, by whatever value
