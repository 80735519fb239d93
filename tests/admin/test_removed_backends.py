"""Rows of a backend that the settings have no more: they are shown, and a verb does what it can or says why not."""

import pytest
from django.contrib import admin
from django.contrib.messages import get_messages

from horsies_django import Workflow, wait_for_event
from horsies_django.core.compat import BaseTaskBackend, InvalidTask
from horsies_django.models import Task, WorkflowTask
from horsies_django.models import Workflow as Row
from tests.admin.factories import made
from tests.admin.test_permissions import Place, do, do_to_selected, named

pytestmark = [pytest.mark.django_db, pytest.mark.once]

VERBS = [(model, verb) for model in (Task, Row) for verb in admin.site._registry[model].admin_actions]
GONE = "No event can be sent to workflows whose backend is no HorsiesBackend of TASKS any more: gone."


def told(answer):
    return " ".join(str(message) for message in get_messages(answer.wsgi_request))


@pytest.mark.slow
@pytest.mark.parametrize(("model", "verb"), VERBS, ids=named)
@pytest.mark.parametrize("way", [do, do_to_selected], ids=named)
def test_no_verb_breaks(admin_client, model, verb, way):
    for row in made(model):
        if not verb.applies_to(row):
            continue
        for each in (Task, Row, WorkflowTask):
            each.objects.update(backend="gone")
        where = Place(model, row)

        assert admin_client.get(where.page).status_code == 200
        answer = way(admin_client, where, verb)

        assert answer.status_code == 302
        assert told(answer)


def test_an_event_says_that_the_backend_is_gone_and_reaches_the_others(admin_client):
    handles = [Workflow("w", [wait_for_event("anything")]).start() for _ in range(2)]
    Row.objects.filter(pk=handles[0].id).update(backend="gone")
    verb = next(verb for verb in admin.site._registry[Row].admin_actions if verb.name == "send_event")
    gone, other = (Place(Row, Row.objects.get(pk=handle.id)) for handle in handles)

    assert told(do(admin_client, gone, verb)).endswith(GONE)
    both = {"_selected_action": [str(gone.row.pk), str(other.row.pk)], "action": "send_event", "index": "0"}
    answer = admin_client.post(gone.list, both | {"confirmed": "1", "name": "anything", "payload": "1"})

    assert "1 workflow was sent the event. 1 was left alone" in told(answer)
    assert told(answer).endswith(GONE)
    assert [handle.status() for handle in handles] == ["RUNNING", "COMPLETED"]


@pytest.mark.parametrize("backend", ["gone", "foreign"])
def test_in_python_the_event_is_refused_by_name(settings, backend):
    package = BaseTaskBackend.__module__.removesuffix(".base")
    settings.TASKS = settings.TASKS | {"foreign": {"BACKEND": f"{package}.dummy.DummyBackend"}}
    handle = Workflow("w", [wait_for_event("anything")]).start()
    Row.objects.update(backend=backend)

    with pytest.raises(InvalidTask, match=f"{backend}.*allowed: "):
        handle.send_event("anything")
