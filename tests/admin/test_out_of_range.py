"""Dates and numbers out of range: forms report them, and no page fails."""

import pytest
from django.urls import reverse

from horsies_django.core.queue_policy import COLUMNS
from horsies_django.models import Queue, Schedule, Task
from tests.jobs import tasks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

ADD = "/admin/horsies_django/schedule/add/"
PREVIEW = "/admin/horsies_django/schedule/preview/"
FORM_DATA = {
    "name": "typed",
    "task_name": tasks.noop.module_path,
    "workflow_name": "",
    "args": "[]",
    "kwargs": "{}",
    "timing": "every:300",
    "timezone": "Europe/Berlin",
    "catch_up": "LATEST",
    "max_catch_up_runs": "10",
    "overlap": "ALLOW",
    "jitter": "0",
    "options": "{}",
    "backend": "default",
    "start_at_0": "",
    "start_at_1": "",
    "end_at_0": "",
    "end_at_1": "",
}
HUGE = ("1e308", "-1e308", "1e309", "9" * 400)
DATES = [
    {f"{name}_0": day, f"{name}_1": time}
    for name in ("start_at", "end_at")
    for day, time in (
        ("0001-01-01", "00:00"),
        ("9999-12-31", "23:59:59"),
        ("1899-12-31", "00:00"),
        ("2026-02-30", "0:00"),
    )
]
NUMBERS = [
    {name: template % number}
    for number in HUGE
    for name, template in (
        ("jitter", "%s"),
        ("max_catch_up_runs", "%s"),
        ("timing", "every:%s"),
        ("timing", "cron:%s * * * *"),
        ("options", '{"good_for": %s}'),
        ("options", '{"timeout": %s}'),
        ("options", '{"priority": %s}'),
        ("options", '{"retention": %s}'),
    )
]


@pytest.mark.slow
@pytest.mark.parametrize("zone", ["Europe/Berlin", pytest.param("America/New_York", marks=pytest.mark.nightly)])
def test_schedule_forms_reject_values_out_of_range(admin_client, settings, zone):
    settings.TIME_ZONE = zone
    kept = Schedule(name="kept", task_name=tasks.noop.module_path, timing="every:300")
    kept.save()
    page = reverse("admin:horsies_django_schedule_change", args=[kept.pk])

    for values in DATES + (NUMBERS if zone == "Europe/Berlin" else []):
        for address, name in ((ADD, "typed"), (page, "kept")):
            response = admin_client.post(address, FORM_DATA | {"name": name} | values)
            assert response.status_code == 200, values
            assert response.context["errors"], values
        assert admin_client.get(PREVIEW, FORM_DATA | values).status_code == 200, values

    kept.refresh_from_db()
    assert (kept.start_at, kept.end_at, kept.jitter, kept.timing, kept.options) == (None, None, 0, "every:300", {})
    assert Schedule.objects.count() == 1


def test_a_date_error_names_the_allowed_years(admin_client):
    response = admin_client.post(ADD, FORM_DATA | {"start_at_0": "9999-12-31", "start_at_1": "23:59:59"})

    assert response.context["adminform"].form.errors["start_at"] == ["The year is 9999; allowed: from 1900 to 9997."]
    preview = admin_client.get(PREVIEW, FORM_DATA | {"start_at_0": "9999-12-31", "start_at_1": "23:59:59"})
    assert "The year is 9999; allowed: from 1900 to 9997." in preview.content.decode()


@pytest.mark.parametrize("name", [*COLUMNS])
def test_the_queue_form_rejects_numbers_out_of_range(admin_client, name):
    for number in HUGE:
        value = f"{number}/s" if name == "rate_limit" else number
        response = admin_client.post("/admin/horsies_django/queue/add/", {"name": "q", name: value})
        assert (response.status_code, Queue.objects.count()) == (200, 0), value


@pytest.mark.parametrize("number", HUGE)
def test_the_move_form_rejects_a_priority_out_of_range(admin_client, number):
    handle = tasks.noop.send()
    address = reverse("admin:horsies_django_task_do", args=[handle.id, "move"])

    assert admin_client.post(address, {"confirmed": "1", "priority": number}).status_code == 200
    assert Task.objects.get(pk=handle.id).priority == 0


@pytest.mark.parametrize(
    "sent", [{"sent_from": "0001-01-01"}, {"sent_to": "9999-12-31T23:59:59"}, {"sent_from": "1e308"}]
)
def test_a_list_with_a_sent_filter_out_of_range_is_empty(admin_client, sent):
    tasks.noop.send()

    response = admin_client.get("/admin/horsies_django/task/", sent)

    assert response.status_code == 200
    assert not response.context["cl"].result_list
