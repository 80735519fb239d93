"""The query parameters of lists: only their own filters and search, and none that reveals masked values."""

import re
from secrets import token_hex

import pytest
from django.contrib import admin
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from horsies_django.admin.tasks.admin import TaskAdmin
from horsies_django.models import Heartbeat, Limit, Queue, Schedule, Task, Worker, Workflow
from tests.admin import page_jobs
from tests.admin.factories import create_rows
from tests.jobs import tasks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once, pytest.mark.slow]

LISTED = (Task, Workflow, Schedule, Queue, Worker, Heartbeat, Limit)
SECRET = "geheim"

#: Lookups that could reveal values, by list.
LOOKUPS = {
    "task": (
        "kwargs__password__startswith",
        "kwargs__password",
        "kwargs__regex",
        "kwargs__icontains",
        "args__0__startswith",
        "args__contains",
        "result__ok__startswith",
        "metadata__x__startswith",
        "checkpoint__x",
        "task_name__regex",
        "task_name__startswith",
        "status__regex",
        "attempt",
        "attempts__error_message__startswith",
        "sent_at__year",
        "pk__in",
        "id__gte",
    ),
    "workflow": ("result__ok__password__startswith", "result__icontains", "error__regex", "tasks__result__ok"),
    "schedule": (
        "kwargs__password__startswith",
        "args__regex",
        "options__icontains",
        "name__regex",
        "last_error__regex",
    ),
    "queue": ("name__regex", "name", "paused"),
    "worker": ("hostname__regex", "id__startswith"),
    "heartbeat": ("task__kwargs__password__startswith", "task__kwargs__regex", "hostname__regex", "role"),
    "limit": ("key__regex", "key__startswith"),
}


def list_of(model):
    return reverse(f"admin:horsies_django_{model._meta.model_name}_changelist")


@pytest.mark.parametrize("model", LISTED)
def test_a_lookup_that_is_not_a_filter_of_the_list_is_rejected(staff, model):
    name = model._meta.model_name
    create_rows(model)
    client = staff(f"view_{name}")

    for lookup in LOOKUPS[name]:
        with CaptureQueriesContext(connection) as captured:
            status = client.get(list_of(model), {lookup: "(a+)+$"}).status_code
        assert status == 400, lookup
        assert not any("(a+)+$" in query["sql"] for query in captured), lookup


@pytest.mark.nightly
@pytest.mark.parametrize("model", LISTED)
def test_a_list_rejects_lookups_of_all_columns_except_its_own_filters(staff, model):
    name = model._meta.model_name
    client = staff(f"view_{name}")
    declared = admin.site.get_model_admin(model).list_filter
    own = {parameter for one in declared for parameter in getattr(one, "parameter_names", (one.parameter_name,))}

    for field in model._meta.get_fields():
        for lookup in ("", "__exact", "__startswith", "__regex", "__isnull", "__in"):
            if (parameter := f"{field.name}{lookup}") not in own:
                assert client.get(list_of(model), {parameter: "x"}).status_code == 400, parameter


@pytest.mark.parametrize("model", LISTED)
def test_every_filter_that_a_list_offers_can_be_chosen(staff, model):
    create_rows(model)
    client = staff(f"view_{model._meta.model_name}")
    listed = client.get(list_of(model)).context["cl"]

    for spec in listed.filter_specs:
        for choice in spec.choices(listed):
            if "query_string" in choice:
                assert client.get(list_of(model) + choice["query_string"]).status_code == 200, choice


def test_an_action_with_a_forbidden_lookup_changes_nothing(staff):
    handle = page_jobs.log_in.send("ann", password=SECRET)
    client = staff("view_task", "cancel_task")

    response = client.post(
        list_of(Task) + "?kwargs__password__startswith=g",
        {"action": "cancel", "_selected_action": [str(handle.id)], "index": "0"},
    )

    assert response.status_code == 400
    assert handle.status() == "PENDING"


def test_a_projects_own_list_filters_allow_only_their_lookups(rf, admin_user):
    class ProjectTaskAdmin(TaskAdmin):
        list_filter = ("backend", ("queue_name", admin.AllValuesFieldListFilter))
        date_hierarchy = "sent_at"

    request = rf.get("/")
    request.user = admin_user
    project_admin = ProjectTaskAdmin(Task, admin.site)

    for lookup in ("backend", "backend__exact", "backend__isnull", "queue_name", "sent_at__year", "sent_at__day"):
        assert project_admin.lookup_allowed(lookup, "x", request), lookup
    for lookup in ("backend__regex", "queue_name__startswith", "status__exact", "kwargs__a", "sent_at__regex"):
        assert not project_admin.lookup_allowed(lookup, "x", request), lookup


# The search.


def test_a_search_of_arguments_runs_the_same_queries_for_any_text(staff):
    page_jobs.log_in.send("ann", password=SECRET)
    page_jobs.log_in.send("ann", "x")
    client = staff("view_task")
    client.get(list_of(Task))

    statements = {}
    for text in ("xxxxxx", SECRET, "geheix"):
        with CaptureQueriesContext(connection) as queries:
            client.get(list_of(Task), {"q": f"args.user:{text}"})
        statements[text] = [
            re.sub(r"_django_curs_\w+", "", query["sql"]) for query in queries if "horsies_tasks" in query["sql"]
        ]

    assert statements["xxxxxx"] == statements["geheix"]
    assert not any(text in sql for text, found in statements.items() for sql in found)


def test_a_search_does_equal_work_for_a_masked_text_and_a_missing_text(staff):
    page_jobs.with_recording_hook.send_many([{"number": number, "note": SECRET} for number in range(20)])
    client = staff("view_task")

    counts = []
    for text in (SECRET, "nowhere"):
        page_jobs.checked_names.clear()
        with CaptureQueriesContext(connection) as queries:
            assert not client.get(list_of(Task), {"q": f"args.note:{text}"}).context["cl"].result_list
        counts.append((len(page_jobs.checked_names), len(queries)))

    assert counts[0] == counts[1]
    assert counts[0][0] >= 20


@pytest.mark.parametrize("term", [f"args.password:{SECRET}", "args.user:ann", "kwargs__password", "log_in", ""])
def test_autocomplete_finds_no_more_than_the_list(staff, term):
    page_jobs.log_in.send("ann", password=SECRET)
    tasks.noop.send()
    client = staff("view_task")
    source = {"app_label": "horsies_django", "model_name": "taskattempt", "field_name": "task"}

    response = client.get(reverse("admin:autocomplete"), source | {"term": term})

    listed = client.get(list_of(Task), {"q": term}).context["cl"].result_list
    assert [one["id"] for one in response.json()["results"]] == [str(row.pk) for row in listed]


def test_a_search_skips_large_arguments(staff):
    small, _large = (tasks.echo.send(value="needle", more=token_hex(size)) for size in (10, 40_000))
    client = staff("view_task")

    listed = client.get(list_of(Task), {"q": "args.value:needle"}).context["cl"]

    assert [row.pk for row in listed.result_list] == [small.id]
