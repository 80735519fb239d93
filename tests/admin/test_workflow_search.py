"""The search of the workflow list for inputs."""

import pytest

from horsies_django import Workflow as Definition
from horsies_django.ops.keyset import scan
from tests.admin import page_jobs
from tests.jobs import tasks

pytestmark = pytest.mark.django_db(transaction=True)

LIST = "/admin/horsies_django/workflow/"


def start(name, *nodes, **options):
    return Definition(name, list(nodes), **options).start().id


def listed(client, text, **query):
    response = client.get(LIST, {"q": text, **query})
    assert response.status_code == 200
    return [row.pk for row in response.context["cl"].result_list]


@pytest.mark.slow
def test_workflows_are_found_by_the_input_of_their_nodes(staff):
    order = {"id": 42, "customer": "Miller & Sons"}
    first = start("orders", tasks.noop.node()(), tasks.echo.node()(value=order))
    second = start("refunds", tasks.echo.node()(value=order | {"id": 43}))
    start("others", tasks.echo.node()(value={"id": 420}))
    client = staff("view_workflow")

    assert listed(client, "args.value.id:42") == [first]
    by_customer = 'args.value.customer:"miller & sons"'
    assert listed(client, by_customer) == [second, first]
    assert listed(client, f"refunds {by_customer}") == listed(client, f"{by_customer} args.value.id:43") == [second]
    assert listed(client, "args.value.customer:nobody") == []


def test_masked_input_is_not_found(staff):
    key = start("logins", page_jobs.log_in.node()(user="ann", password="geheim"))
    client = staff("view_workflow")

    assert listed(client, "args.user:ann") == [key]
    assert listed(client, "args.password:geheim") == []
    messages = client.get(LIST, {"q": "args.password:geheim"}).context["messages"]
    assert [str(one) for one in messages] == ["“args.password”: values that a mask hides are not searched."]


@pytest.mark.once
def test_an_invalid_term_is_named(staff):
    start("orders", tasks.noop.node()())
    client = staff("view_workflow")

    response = client.get(LIST, {"q": "state:failed"})

    assert listed(client, "state:failed") == []
    assert "“state:”" in str(*response.context["messages"])


@pytest.mark.slow
def test_an_input_search_reads_a_fixed_number_of_workflows_and_continues(staff, monkeypatch):
    monkeypatch.setattr(scan, "MAX_FILTERED", 3)
    oldest = start("orders", tasks.echo.node()(value="needle"))
    for _number in range(4):
        start("orders", tasks.noop.node()())
    client = staff("view_workflow")

    first = client.get(LIST, {"q": "args.value:needle"})
    second = client.get(LIST + first.context["cl"].older_url)

    assert not first.context["cl"].result_list
    assert "Searched back to" in first.content.decode()
    assert [row.pk for row in second.context["cl"].result_list] == [oldest]


@pytest.mark.once
def test_the_unique_key_of_an_unfinished_workflow_may_look_like_terms(staff):
    key = start("orders", tasks.noop.node()(), unique_key="order:42 state:new")
    client = staff("view_workflow")

    assert listed(client, "order:42 state:new") == listed(client, 'key:"order:42 state:new"') == [key]
    assert listed(client, "key:other") == []
    assert listed(client, str(key)) == [key]
