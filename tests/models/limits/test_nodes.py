"""Limit keys of workflow nodes and batch calls."""

import pytest
from django.db import transaction

from horsies_django import Batch, InvalidWorkflow, Workflow, register_condition, task
from horsies_django.models import Limit, Task, WorkflowTask
from tests.conftest import wait_until
from tests.jobs import limited
from tests.jobs.models import Entry
from tests.models.limits.test_workers import at_most_two_ran_at_once, spans

pytestmark = pytest.mark.django_db(transaction=True)

TWO = "tests.jobs.limited.two_per_user"


@task
def keys(count: int) -> list[str]:
    return ["a"] * count


@task
def is_wanted(key: str = "a") -> bool:
    return True


@task(concurrency_key="{user:>{width}}", max_concurrency=2)
def padded(user: str, width: int = 3) -> None: ...


@task(max_concurrency=2)
def at_most_two(user: str, seconds: float = 0.02) -> str:
    limited.run_and_record("all", seconds)
    return user


def nodes(count, key="a", **options):
    return [
        limited.two_per_user.node(node_id=f"{key}{index}", **options)(user=key, seconds=0.02) for index in range(count)
    ]


def counts(key="a"):
    rows = Task.objects.filter(limit_key=f"{TWO}:{key}")
    return rows.released().count(), rows.blocked().count()


@pytest.mark.slow
@pytest.mark.sqlite
def test_workflow_nodes_respect_their_limit_key_and_all_run(drain):
    handle = Workflow("limited", [*nodes(5), *nodes(1, "b")]).start()
    assert (counts("a"), counts("b")) == ((2, 3), (1, 0))

    drain(threads=8)

    assert handle.get(timeout=0).is_ok()
    assert {key: len(ran) for key, ran in spans().items()} == {"a": 5, "b": 1}
    assert at_most_two_ran_at_once(spans()["a"], f"{TWO}:a")


@pytest.mark.slow
@pytest.mark.sqlite
def test_later_workflow_nodes_and_separate_calls_share_a_limit(worker):
    limited.two_per_user.send_many([{"user": "a", "seconds": 0.02}] * 6)
    first = limited.two_per_user.node(node_id="first")(user="b")
    handle = Workflow("limited", [first >> nodes(6)]).start()

    worker("--threads", "8", "--shutdown-timeout", "1")

    assert handle.get(timeout=60).is_ok()
    wait_until(lambda: Task.objects.completed().count() == 13)
    assert at_most_two_ran_at_once(spans()["a"], f"{TWO}:a")


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_drain_runs_limited_nodes_that_follow_another_node(drain):
    handle = Workflow("limited", [keys.node()(count=1) >> nodes(3)]).start()

    drain()

    assert handle.get(timeout=0).is_ok()


@pytest.mark.slow
@pytest.mark.sqlite
def test_map_items_respect_the_limit_of_their_task(drain):
    over = keys.node()(count=7)
    handle = Workflow("limited", [over, at_most_two.map(over=over, param="user")]).start()

    drain(threads=8)

    assert handle.get(timeout=0).is_ok()
    assert len(spans()["all"]) == 7
    assert at_most_two_ran_at_once(spans()["all"], f"{__name__}.at_most_two")


def test_a_limited_node_with_a_condition_runs_once_the_condition_holds(drain):
    wanted = is_wanted.node()()
    last = limited.two_per_user.node(waits_for=[wanted], run_when=yes)(user="a")
    handle = Workflow("limited", [wanted, last]).start()

    drain()

    assert handle.get(timeout=0).is_ok()
    assert Task.objects.get(limit_key=f"{TWO}:a").task_name == TWO


@register_condition
def yes(context):
    return True


@pytest.mark.slow
@pytest.mark.sqlite
def test_batch_calls_and_callbacks_respect_their_limits(drain):
    with Batch("limited", on_complete=at_most_two.node()(user="z")) as batch:
        batch.add_many(limited.two_per_user, [{"user": key, "seconds": 0.02} for key in "aaaaab"])
        batch.add(limited.two_per_user, "b")
    assert (counts("a"), counts("b")) == ((2, 3), (2, 0))

    drain(threads=8)

    assert batch.handle.get(timeout=0).unwrap() == [*"aaaaabb"]
    assert at_most_two_ran_at_once(spans()["a"], f"{TWO}:a")
    assert WorkflowTask.objects.get(node_id="on_complete").limit_key == f"{__name__}.at_most_two"
    assert len(spans()["all"]) == 1


@pytest.mark.slow
@pytest.mark.sqlite
def test_cancelling_or_pausing_a_workflow_frees_its_concurrency_slots_at_once():
    cancelled = Workflow("cancelled", nodes(2)).start()
    paused = Workflow("paused", nodes(2)).start()
    others = [limited.two_per_user.send("a").id for _ in range(2)]
    assert counts() == (2, 4)

    cancelled.cancel()
    assert counts() == (2, 2)
    assert not Task.objects.blocked().filter(workflow_id=paused.id).exists()

    paused.pause()
    assert counts() == (2, 0)
    assert set(Task.objects.released().values_list("pk", flat=True)) == set(others)

    paused.resume()
    assert counts() == (2, 2)


@pytest.mark.slow
@pytest.mark.sqlite
def test_nodes_that_a_pause_takes_from_a_worker_wait_for_a_concurrency_slot_after_the_resume(drain):
    handle = Workflow("limited", nodes(2)).start()
    with transaction.atomic():
        assert len(Task.objects.claim("worker", start=0, prefetch=2)) == 2
    handle.pause()
    others = [limited.two_per_user.send("a") for _ in range(2)]
    assert counts() == (2, 0)

    handle.resume()
    assert counts() == (2, 2)

    others[0].cancel()
    assert counts() == (2, 1)
    drain()
    assert handle.get(timeout=0).is_ok()


@pytest.mark.slow
@pytest.mark.sqlite
def test_a_retried_node_waits_for_a_concurrency_slot_again(drain):
    failing = limited.two_per_user.node(node_id="bad", retry_policy=None)(
        user="a", seconds=-1.0
    )  # time.sleep refuses it
    handle = Workflow("limited", [failing]).start()
    drain()
    assert handle.get(timeout=0).is_err()
    holders = [limited.two_per_user.send("a") for _ in range(2)]

    handle.retry()
    assert counts() == (2, 1)

    holders[0].cancel()
    assert counts() == (2, 0)


def test_a_workflow_start_creates_the_limits_of_its_later_nodes():
    for key in ("a", "b"):  # the second starts although the limit of its first node is there
        first = keys.node()(count=1)
        later = [limited.two_per_user.node(waits_for=[first])(user=user) for user in ("a", key)]
        Workflow("limited", [first, *later]).start()

    assert dict(Limit.objects.values_list("key", "max_concurrency")) == {f"{TWO}:a": 2, f"{TWO}:b": 2}


def test_a_limit_key_from_another_nodes_result_is_refused():
    first = keys.node()(count=1)
    refused = [
        (limited.two_per_user.node()(user=first), "tests.jobs.limited.two_per_user needs user"),
        (limited.two_per_user.map(over=first, param="user"), "tests.jobs.limited.two_per_user needs user"),
        (limited.one_per_user.node()(user=first), "tests.jobs.limited.one_per_user needs user"),
        (padded.node()(user="a", width=is_wanted.node()()), "padded needs width"),
    ]

    for node, message in refused:
        with pytest.raises(InvalidWorkflow, match=f"concurrency_key of .*{message}, known only when the call begins"):
            Workflow("limited", [first, node, *node.waits_for])
    assert not Entry.objects.exists()


def test_a_batch_refuses_a_call_with_an_invalid_limit_key():
    batch = Batch("limited")

    with pytest.raises(ValueError, match="allowed: 1 to 223 characters"):
        batch.add(limited.two_per_user, "x" * 300)
