"""The admin masks the sensitive values of tasks."""

import json

import pytest
from django.urls import reverse

from horsies_django import task
from horsies_django.core.compat import InvalidTask
from horsies_django.models import Task
from tests.admin import page_jobs as jobs
from tests.admin.client import html_of, log_in, text_of

pytestmark = [pytest.mark.django_db, pytest.mark.once]

STARS = "********************"


@pytest.fixture
def staff(client):
    return log_in(client, "view_task")


def page_and_download(client, handle, part):
    """Return the page and the download of a value, which must mask the same."""
    return html_of(client, handle) + text_of(client, handle, part)


@pytest.mark.parametrize(
    ("sent", "part", "shown"),
    [
        (lambda: jobs.log_in.send("ann", "geheim"), "args", ["ann", STARS]),
        (lambda: jobs.log_in.send("ann", password="geheim"), "kwargs", {"password": STARS}),
        (lambda: jobs.unlock.send("ann", "geheim", "geheim2"), "args", ["ann", STARS, STARS]),
        (lambda: jobs.unlock.send("ann", api_token="geheim"), "kwargs", {"api_token": STARS}),
        (lambda: jobs.in_context.send("geheim"), "args", [STARS]),
        (lambda: jobs.pay.send(3, "geheim"), "args", [3, STARS]),
        (lambda: jobs.pay.send(3, iban="geheim"), "kwargs", {"iban": STARS}),
        (lambda: jobs.pay.send({"deep": [{"iban": "geheim", "n": 1}]}), "args", [{"deep": [{"iban": STARS, "n": 1}]}]),
        (lambda: jobs.send_reminder.send("geheim@x.y", note="plain"), "args", [STARS]),
        (lambda: jobs.log_in.send([{"a": {"SECRET": {"geheim": 1}}}], 1), "args", [[{"a": {"SECRET": STARS}}], STARS]),
    ],
)
def test_arguments_are_masked_by_name_at_any_depth(staff, sent, part, shown):
    handle = sent()

    assert "geheim" not in page_and_download(staff, handle, part)
    assert json.loads(text_of(staff, handle, part)) == shown


@pytest.mark.parametrize("options", [{"queue_name": "q"}, {"timeout": 3}])
def test_a_copy_of_a_task_keeps_its_sensitive_names(options):
    assert jobs.pay.with_options(**options).sensitive == {"iban", "result"}
    assert jobs.pay.using(priority=3).sensitive == {"iban", "result"}
    assert hash(task(sensitive=["a"])(jobs.broken))


def test_results_metadata_and_checkpoints_are_masked(staff):
    handle = jobs.pay.send(1)
    values = {"password": "geheim", "plain": "open", "iban": "geheim"}
    Task.objects.filter(pk=handle.id).update(result={"ok": values}, metadata=values, checkpoint=[values])

    html = html_of(staff, handle)

    assert "geheim" not in html
    assert "open" in html
    assert json.loads(text_of(staff, handle, "result")) == STARS  # the task declares its whole result as sensitive
    assert json.loads(text_of(staff, handle, "checkpoint")) == [{"password": STARS, "plain": "open", "iban": STARS}]


def test_error_data_is_masked_and_error_messages_are_not(staff):
    handle = jobs.log_in.send("ann", "x")
    error = {"error_code": "NO", "message": "wrong for ann", "data": {"token": "geheim"}, "exception": None}
    Task.objects.filter(pk=handle.id).update(result={"err": error}, error_code="NO")

    html = page_and_download(staff, handle, "result")

    assert "geheim" not in html
    assert "wrong for ann" in html


def test_a_sensitive_hook_that_raises_masks_the_value_and_is_logged(staff, caplog):
    handle = jobs.with_failing_hook.send("geheim")

    assert "geheim" not in page_and_download(staff, handle, "args")
    assert "no idea" in caplog.text


@pytest.mark.parametrize(
    "name",
    [
        *("gone.away.task", "tests.admin.page_jobs.NOT_A_TASK", ""),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("tests.admin.page_jobs.missing", "<b>", "..")),
    ],
)
def test_all_values_of_an_unknown_task_are_masked(staff, name):
    values = {"metadata": {"a": "geheim"}, "checkpoint": ["geheim"], "result": {"ok": "geheim"}}
    row = Task.objects.create(task_name=name, args=["geheim"], kwargs={"harmless": "geheim"}, **values)

    for part in ("args", "kwargs", "metadata", "checkpoint", "result"):
        assert "geheim" not in page_and_download(staff, row, part)
        assert json.loads(text_of(staff, row, part)) == STARS


def test_the_projects_exception_reporter_filter_decides_what_is_masked(staff, settings):
    from django.views import debug

    settings.DEFAULT_EXCEPTION_REPORTER_FILTER = "tests.admin.test_masking.ReporterFilter"
    debug.get_default_exception_reporter_filter.cache_clear()
    try:
        handle = jobs.log_in.send({"shy": "geheim", "password": "now open"}, "open")
        assert json.loads(text_of(staff, handle, "args")) == [{"shy": "hush", "password": "now open"}, "open"]
    finally:
        debug.get_default_exception_reporter_filter.cache_clear()


class ReporterFilter:
    def cleanse_setting(self, key, value):
        return "hush" if key == "shy" else value


@pytest.mark.parametrize(
    "sensitive", ["iban", b"iban", 3, None, {"iban": True}, [3], [""], ["iban", None], pytest.param("", id="empty")]
)
def test_the_task_decorator_rejects_an_invalid_value_of_sensitive(sensitive):
    with pytest.raises(InvalidTask, match=r"sensitive is .*; allowed: a collection of names"):
        task(sensitive=sensitive)(jobs.broken)


def test_a_sensitive_hook_cannot_be_a_coroutine_function():
    async def hook(name, value):
        return False

    with pytest.raises(InvalidTask, match="no coroutine function"):
        task(sensitive=hook)(jobs.broken)


@pytest.mark.parametrize(("part", "value"), [("args", "geheim"), ("kwargs", ["geheim"]), ("kwargs", "geheim")])
def test_arguments_of_an_unexpected_shape_are_masked(staff, part, value):
    handle = jobs.pay.send(1)
    Task.objects.filter(pk=handle.id).update(**{part: value})

    assert "geheim" not in page_and_download(staff, handle, part)
    assert "geheim" not in staff.get(reverse("admin:horsies_django_task_changelist")).content.decode()
