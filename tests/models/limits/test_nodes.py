"""Limits by key of what workflows and batches run."""

import pytest

from horsies_django import Batch, InvalidWorkflow, Workflow, register_condition, task
from horsies_django.models import Limit, Task, WorkflowTask, release_blocked
from tests.conftest import wait_until
from tests.jobs import limited
from tests.jobs.models import Entry
from tests.models.limits.test_workers import spans, two_at_once

pytestmark = pytest.mark.django_db(transaction=True)

TWO = "tests.jobs.limited.two_of"


@task
def keys(count: int) -> list[str]:
    return ["a"] * count


@task
def is_wanted(key: str = "a") -> bool:
    return True


@task(concurrency_key="{who:>{width}}", max_concurrency=2)
def padded(who: str, width: int = 3) -> None: ...


@task(max_concurrency=2)
def at_most_two(who: str, seconds: float = 0.02) -> str:
    limited.ran("all", seconds)
    return who


def nodes(count, key="a", **options):
    return [limited.two_of.node(node_id=f"{key}{place}", **options)(who=key, seconds=0.02) for place in range(count)]


def counts(key="a"):
    rows = Task.objects.filter(limit_key=f"{TWO}:{key}")
    return rows.released().count(), rows.blocked().count()


def test_nodes_wait_at_the_gate_of_their_key_and_all_of_them_run(drain):
    handle = Workflow("limited", [*nodes(5), *nodes(1, "b")]).start()
    assert (counts("a"), counts("b")) == ((2, 3), (1, 0))

    drain(threads=8)

    assert handle.get(timeout=0).is_ok()
    assert {key: len(ran) for key, ran in spans().items()} == {"a": 5, "b": 1}
    assert two_at_once(spans()["a"], f"{TWO}:a")


def test_nodes_that_begin_later_and_calls_from_elsewhere_share_the_places(worker):
    limited.two_of.send_many([{"who": "a", "seconds": 0.02}] * 6)
    first = limited.two_of.node(node_id="first")(who="b")
    handle = Workflow("limited", [first >> nodes(6)]).start()

    worker("--threads", "8", "--shutdown-timeout", "1")

    assert handle.get(timeout=60).is_ok()
    wait_until(lambda: Task.objects.completed().count() == 13)
    assert two_at_once(spans()["a"], f"{TWO}:a")


def test_nodes_that_begin_once_others_have_ended_are_let_in_by_the_worker_that_ended_those(drain):
    handle = Workflow("limited", [keys.node()(count=1) >> nodes(3)]).start()

    drain()

    assert handle.get(timeout=0).is_ok()


def test_the_items_of_a_map_have_the_limit_of_their_task(drain):
    over = keys.node()(count=7)
    handle = Workflow("limited", [over, at_most_two.map(over=over, param="who")]).start()

    drain(threads=8)

    assert handle.get(timeout=0).is_ok()
    assert len(spans()["all"]) == 7
    assert two_at_once(spans()["all"], f"{__name__}.at_most_two")


def test_a_node_with_a_condition_comes_to_its_gate_once_that_lets_it_run(drain):
    wanted = is_wanted.node()()
    last = limited.two_of.node(waits_for=[wanted], run_when=yes)(who="a")
    handle = Workflow("limited", [wanted, last]).start()

    drain()

    assert handle.get(timeout=0).is_ok()
    assert Task.objects.get(limit_key=f"{TWO}:a").task_name == TWO


@register_condition
def yes(context):
    return True


def test_the_calls_of_a_batch_and_its_callbacks_keep_to_their_limits(drain):
    with Batch("limited", on_complete=at_most_two.node()(who="z")) as batch:
        batch.add_many(limited.two_of, [{"who": key, "seconds": 0.02} for key in "aaaaab"])
        batch.add(limited.two_of, "b")
    assert (counts("a"), counts("b")) == ((2, 3), (2, 0))

    drain(threads=8)

    assert batch.handle.get(timeout=0).unwrap() == [*"aaaaabb"]
    assert two_at_once(spans()["a"], f"{TWO}:a")
    assert WorkflowTask.objects.get(node_id="on_complete").limit_key == f"{__name__}.at_most_two"
    assert len(spans()["all"]) == 1


def test_a_workflow_that_is_cancelled_or_paused_gives_its_places_back_at_once():
    cancelled = Workflow("cancelled", nodes(2)).start()
    paused = Workflow("paused", nodes(2)).start()
    others = [limited.two_of.send("a").id for _ in range(2)]
    assert counts() == (2, 4)

    cancelled.cancel()
    assert counts() == (2, 2)
    assert not Task.objects.blocked().filter(workflow_id=paused.id).exists()

    paused.pause()
    assert counts() == (2, 0)
    assert set(Task.objects.released().values_list("pk", flat=True)) == set(others)

    paused.resume()
    assert counts() == (2, 2)


def test_a_node_that_is_retried_waits_for_a_place_again(drain):
    failing = limited.two_of.node(node_id="bad", retry_policy=None)(who="a", seconds=-1.0)  # which time.sleep refuses
    handle = Workflow("limited", [failing]).start()
    drain()
    assert handle.get(timeout=0).is_err()
    holders = [limited.two_of.send("a") for _ in range(2)]

    handle.retry()
    assert counts() == (2, 1)

    holders[0].cancel()
    assert counts() == (2, 0)


def test_what_the_code_says_of_a_limit_counts_also_for_nodes_that_begin_later():
    Limit.objects.create(key=f"{TWO}:a", max_concurrency=5)

    Workflow("limited", [keys.node()(count=1) >> nodes(1)]).start()

    assert Limit.objects.get(key=f"{TWO}:a").max_concurrency == 2


def test_nodes_whose_code_says_no_limit_any_more_leave_that_of_others_as_it_is():
    keys = [str(place) for place in range(release_blocked.MAX_INLINE_KEYS + 5)]
    handle = Workflow("limited", [limited.two_of.node(node_id=key)(who=key) for key in keys]).start()
    release_blocked.release_all("default", Limit.objects.values_list("pk", flat=True))
    handle.pause()
    WorkflowTask.objects.update(task_name=f"{__name__}.is_wanted")

    handle.resume()

    assert set(Limit.objects.values_list("max_concurrency", flat=True)) == {2}


def test_a_key_of_what_another_node_gives_is_refused():
    first = keys.node()(count=1)
    refused = [
        (limited.two_of.node()(who=first), "tests.jobs.limited.two_of needs who"),
        (limited.two_of.map(over=first, param="who"), "tests.jobs.limited.two_of needs who"),
        (limited.one_of.node()(who=first), "tests.jobs.limited.one_of needs who"),
        (padded.node()(who="a", width=is_wanted.node()()), "padded needs width"),
    ]

    for node, said in refused:
        with pytest.raises(InvalidWorkflow, match=f"concurrency_key of .*{said}, known only when the call begins"):
            Workflow("limited", [first, node, *node.waits_for])
    assert not Entry.objects.exists()


def test_a_call_of_a_batch_without_a_good_key_is_refused_where_it_is_added():
    batch = Batch("limited")

    with pytest.raises(ValueError, match="allowed: 1 to 229 characters"):
        batch.add(limited.two_of, "x" * 300)
