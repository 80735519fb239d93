"""Rows of a backend that was removed from the settings: pages show them, and actions run or say why they can't."""

import pytest
from django.contrib import admin

from horsies_django import Workflow, wait_for_event
from horsies_django.core.compat import BaseTaskBackend, InvalidTask
from horsies_django.models import Task, WorkflowTask
from horsies_django.models import Workflow as Row
from tests.admin.client import messages_of
from tests.admin.factories import create_rows
from tests.admin.test_permissions import Target, do, do_to_selected, named
from tests.ops.inspector.factories import make

pytestmark = [pytest.mark.django_db, pytest.mark.once]

ACTIONS = [(model, action) for model in (Task, Row) for action in admin.site._registry[model].admin_actions]
REMOVED = "Nothing of these backends gets an event, because TASKS no longer has them as a HorsiesBackend: gone."


@pytest.mark.slow
@pytest.mark.parametrize(("model", "action"), ACTIONS, ids=named)
@pytest.mark.parametrize("run", [do, do_to_selected], ids=named)
def test_no_action_fails_on_rows_of_a_removed_backend(admin_client, model, action, run):
    for row in create_rows(model):
        if not action.applies_to(row):
            continue
        for each in (Task, Row, WorkflowTask):
            each.objects.update(backend="gone")
        target = Target(model, row)

        assert admin_client.get(target.page).status_code == 200
        response = run(admin_client, target, action)

        assert response.status_code == 302
        assert messages_of(response)


def test_sending_an_event_skips_workflows_of_a_removed_backend(admin_client):
    handles = [Workflow("w", [wait_for_event("anything")]).start() for _ in range(2)]
    Row.objects.filter(pk=handles[0].id).update(backend="gone")
    action = next(action for action in admin.site._registry[Row].admin_actions if action.name == "send_event")
    removed, other = (Target(Row, Row.objects.get(pk=handle.id)) for handle in handles)

    assert messages_of(do(admin_client, removed, action)).endswith(REMOVED)
    both = {"_selected_action": [str(removed.row.pk), str(other.row.pk)], "action": "send_event", "index": "0"}
    response = admin_client.post(removed.list, both | {"confirmed": "1", "name": "anything", "payload": "1"})

    assert "Event sent to 1 workflow. 1 was skipped" in messages_of(response)
    assert messages_of(response).endswith(REMOVED)
    assert [handle.status() for handle in handles] == ["RUNNING", "COMPLETED"]


def test_sending_an_event_skips_tasks_of_a_removed_backend(admin_client):
    row = make("awaiting", backend="gone")
    action = next(action for action in admin.site._registry[Task].admin_actions if action.name == "send_event")

    assert messages_of(do(admin_client, Target(Task, row), action)).endswith(REMOVED)


@pytest.mark.parametrize("backend", ["gone", "foreign"])
def test_send_event_names_a_backend_that_is_removed_or_foreign(settings, backend):
    package = BaseTaskBackend.__module__.removesuffix(".base")
    settings.TASKS = settings.TASKS | {"foreign": {"BACKEND": f"{package}.dummy.DummyBackend"}}
    handle = Workflow("w", [wait_for_event("anything")]).start()
    Row.objects.update(backend=backend)

    with pytest.raises(InvalidTask, match=f"{backend}.*allowed: "):
        handle.send_event("anything")
