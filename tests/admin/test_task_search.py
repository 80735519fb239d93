"""The search of the task list: its terms, paths into arguments, masks, and messages about what is invalid."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from horsies_django.models import Task
from tests.admin import page_jobs
from tests.jobs import tasks

pytestmark = pytest.mark.django_db(transaction=True)

LIST = "/admin/horsies_django/task/"


def found(client, text, **query):
    response = client.get(LIST, {"q": text, **query})
    assert response.status_code == 200
    return {row.pk for row in response.context["cl"].result_list}


def shown_messages(client, text):
    return [str(message) for message in client.get(LIST, {"q": text}).context["messages"]]


def make(**columns):
    return Task.objects.create(task_name=tasks.noop.module_path, **columns).pk


@pytest.mark.slow
def test_a_path_finds_keyword_arguments_positions_and_parameters(staff):
    order = {"id": 42, "lines": [{"sku": "A-1"}, {"sku": "B-2"}], "is_paid": True, "note": None, "shop": "North Side"}
    by_name = tasks.identity.send(value=order).id
    by_position = tasks.identity.send(order | {"id": 43}).id
    tasks.identity.send(value={"id": 420, "lines": []})
    client = staff("view_task")

    expected = {
        "args.value.id:42": {by_name},
        "args.value.id:42.0": {by_name},
        'args.value.id:"42"': set(),  # the text, not the number
        "args.value.id:43": {by_position},
        "args.0.id:43": {by_position},
        "args.1.id:43": set(),
        "args.value.lines.sku:b-2": {by_name, by_position},
        "args.value.lines.1.sku:B-2": {by_name, by_position},
        "args.value.lines.0.sku:B-2": set(),
        "args.value.is_paid:true": {by_name, by_position},
        "args.value.note:null": {by_name, by_position},
        'args.value.shop:"north side"': {by_name, by_position},
        "args.value.shop:north": set(),
        'args.value.shop:"North Side" args.value.id:42 identity state:pending': {by_name},
        "args.value.id:42 state:failed": set(),
        "args.value.id:42 queue:emails": set(),
    }
    assert {text: found(client, text) for text in expected} == expected


@pytest.mark.once
def test_a_path_finds_values_in_rich_arguments(staff, settings):
    rich = {"$type": "dataclass", "class": "shop.Order", "value": {"total": {"$type": "decimal", "value": "9.50"}}}
    key = Task.objects.create(task_name=tasks.echo.module_path, kwargs={"value": rich}, typed_payload=True).pk

    assert found(staff("view_task"), "args.value.total:9.50") == {key}


@pytest.mark.slow
def test_a_path_finds_metadata(staff):
    acme = make(metadata={"tenant": "acme", "tags": ["urgent", "eu"], "token": "geheim"})
    make(metadata={"tenant": "other"})
    client = staff("view_task")

    assert found(client, "metadata.tenant:acme") == found(client, "metadata.tags:EU") == {acme}
    assert found(client, "metadata.token:geheim") == set()
    assert found(client, "args.tenant:acme") == set()


@pytest.mark.slow
def test_a_masked_path_finds_nothing_and_says_so(staff):
    page_jobs.log_in.send("ann", password="geheim")
    page_jobs.log_in.send("ann", "geheim")
    page_jobs.pay.send(5, iban="DE02")
    client = staff("view_task")

    for text in ("args.password:geheim", "args.1:geheim", "args.password:other", "args.iban:DE02"):
        assert found(client, text) == set()
        path = text.partition(":")[0]
        assert shown_messages(client, text) == [f"“{path}”: values that a mask hides are not searched."]
    assert shown_messages(client, "args.user:ann") == []


@pytest.mark.slow
@pytest.mark.once
def test_a_path_below_a_masked_value_finds_nothing(staff):
    page_jobs.log_in.send({"token": {"text": "geheim"}, "name": "ann"}, "x")
    client = staff("view_task")

    assert len(found(client, "args.user.name:ann")) == 1
    assert found(client, "args.user.token.text:geheim") == set()


@pytest.mark.slow
@pytest.mark.once
def test_the_arguments_of_an_unknown_task_are_not_searched(staff):
    Task.objects.create(task_name="gone.task", kwargs={"order": 42})
    client = staff("view_task")

    assert found(client, "args.order:42") == found(client, "args.nothing:42") == set()
    assert shown_messages(client, "args.nothing:42") == ["“args.nothing”: values that a mask hides are not searched."]


@pytest.mark.slow
def test_a_path_search_runs_the_same_statements_for_any_value(staff):
    page_jobs.log_in.send("ann", password="geheim")
    client = staff("view_task")
    client.get(LIST)

    statements = []
    for text in ("args.password:geheim", "args.password:nowhere"):
        with CaptureQueriesContext(connection) as queries:
            assert found(client, text) == set()
        statements.append(sum("horsies_tasks" in query["sql"] for query in queries))
        assert not any("geheim" in query["sql"] or "nowhere" in query["sql"] for query in queries)
    assert statements[0] == statements[1]


@pytest.mark.slow
@pytest.mark.once
def test_several_terms_must_all_match(staff):
    emails = make(queue_name="emails", status="FAILED", failed_at="2026-01-01T00:00Z", error_code="MINE")
    make(queue_name="emails")
    make(status="FAILED", failed_at="2026-01-01T00:00Z", error_code="MINE")
    client = staff("view_task")

    assert found(client, "noop queue:emails state:failed") == {emails}
    assert found(client, "error:mine queue:emails") == {emails}
    assert found(client, "jobs noop state:failed queue:emails") == {emails}
    assert found(client, "noop echo") == set()
    assert found(client, '"jobs noop"') == set()


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("colour:red", ["“colour:”", "state:", "args.path:", '"colour:red"']),
        ("noop state:lost", ["“state:lost”", "failed", "retrying"]),
        ("state.x:failed", ["“state.x:”", "no path"]),
        ("args..id:1", ["“args..id:”", "args.order.id:42"]),
        ("args.id:", ["“args.id:”", "no value"]),
        ("error:", ["“error:”", "no value"]),
        ('args.name:"North side', ["North", "closing quote"]),
        ("metadata:acme", ["“metadata:”", "metadata.tenant:acme"]),
        ("args:text", ["“args:”", "args.order.id:42"]),
        ("a" * 1_001, ["1000"]),
        ("a " * 21, ["20"]),
    ],
)
def test_an_invalid_term_finds_nothing_and_is_named(staff, text, names):
    make()
    client = staff("view_task", "cancel_task")

    (message,) = shown_messages(client, text)

    assert all(name in message for name in names), message
    assert found(client, text) == set()


@pytest.mark.once
def test_an_invalid_search_applies_an_action_to_no_task(staff):
    key = make()
    client = staff("view_task", "cancel_task")
    every = {"action": "cancel", "_selected_action": [str(key)], "select_across": "1", "index": "0"}

    response = client.post(f"{LIST}?q=state:lost", every)
    hidden = dict(response.context["hidden"]) if response.context else {}
    client.post(f"{LIST}?q=state:lost", every | hidden | {"confirmed": "1"})

    assert Task.objects.get(pk=key).status == "PENDING"


@pytest.mark.once
def test_a_search_is_escaped_in_its_message(staff):
    html = staff("view_task").get(LIST, {"q": "<b>x</b> bold:<b>y</b>"}).content.decode()

    assert "&lt;b&gt;y" in html
    assert "<b>y</b>" not in html


@pytest.mark.once
def test_the_help_text_names_each_qualifier(staff):
    from horsies_django.admin.lists.search import QUALIFIERS

    html = staff("view_task").get(LIST).content.decode()
    help_text = html.partition('id="searchbar_helptext"')[2].partition("</div>")[0]

    for qualifier in set(QUALIFIERS) - {"name"}:
        assert f"{qualifier}:" in help_text or f"{qualifier}." in help_text
