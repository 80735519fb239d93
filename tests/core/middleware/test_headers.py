"""Headers: a task's own metadata, that of the call, and what middleware adds when the task is sent."""

from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.core.management import CommandError, call_command
from django.db.models.functions import Now
from django.utils import timezone, translation

from horsies_django import Batch, Workflow
from horsies_django.models import Schedule, Task, WorkflowTask
from horsies_django.schedules import dispatch
from tests.core.middleware import jobs, samples
from tests.enqueue.grouping import jobs as gathered

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


@pytest.fixture
def sender(middleware):
    """Make a language, a time zone and a tenant active."""
    middleware(*samples.WITH_HEADERS)
    token = samples.tenant.set("acme")
    with translation.override("de"), timezone.override("Asia/Tokyo"):
        yield
    samples.tenant.reset(token)


HEADERS = {"language": "de", "timezone": "Asia/Tokyo", "tenant": "acme"}


@pytest.mark.slow
@pytest.mark.once
def test_a_worker_restores_the_senders_language_time_zone_and_tenant(worker, sender):
    worker("--threads", "2", DJANGO_SETTINGS_MODULE="tests.core.middleware.settings")
    handles = [jobs.look.send(), jobs.alook.send(), jobs.alook_into_the_database.send()]
    flow = Workflow("headers", {"outer": jobs.look.node()(), "inner": jobs.Inner.node()()}).start()
    retried = jobs.look_at_the_second.send()

    assert [handle.value(timeout=30) for handle in handles] == [HEADERS] * 3
    results = flow.value(timeout=30)
    assert {name: result.ok for name, result in results.items()} == {"outer": HEADERS, "inner": HEADERS}
    assert retried.value(timeout=30) == HEADERS | {"metadata": HEADERS}


def test_calls_of_a_batch_and_of_a_group_carry_headers(sender):
    handle = gathered.three.send(key="a", value=1)
    with Batch("b", on_success=jobs.look) as batch:
        batch.add(jobs.look)
    batch.handle.add(jobs.look)

    nodes = WorkflowTask.objects.filter(workflow=batch.id, task_name__isnull=False)
    assert Task.objects.get(pk=handle.id).metadata == HEADERS
    assert list(nodes.values_list("metadata", flat=True)) == [HEADERS] * 3
    assert list(Task.objects.filter(workflow_id=batch.id).values_list("metadata", flat=True)) == [HEADERS] * 2


def test_the_headers_of_one_body_do_not_leak_into_the_next(drain, sender):
    outside = {"language": translation.get_language(), "timezone": timezone.get_current_timezone_name()}
    with translation.override("tr"), timezone.override("UTC"):
        turkish = jobs.look.send()
    plain = Task.objects.create(task_name=jobs.look.module_path)

    drain(threads=1)

    plain.refresh_from_db()
    assert turkish.value(0) == {"language": "tr", "timezone": "UTC", "tenant": "acme"}
    assert plain.result["ok"]["tenant"] == "public"
    assert outside == {"language": "de", "timezone": "Asia/Tokyo"}


@pytest.mark.parametrize(
    "send",
    [
        lambda: [jobs.look.send()],
        lambda: [async_to_sync(jobs.look.asend)()],
        lambda: [jobs.look.enqueue()],
        lambda: [async_to_sync(jobs.look.aenqueue)()],
        lambda: [jobs.look.schedule(60)],
        lambda: [jobs.look.using(run_after=timezone.now() + timedelta(hours=1)).enqueue()],
        lambda: jobs.look.send_many({} for _ in range(3)),
        lambda: async_to_sync(jobs.look.asend_many)({} for _ in range(3)),
        lambda: [jobs.look.with_options(unique_key="one").send()],
    ],
    ids=["send", "asend", "enqueue", "aenqueue", "schedule", "run_after", "send_many", "asend_many", "unique_key"],
)
def test_every_way_to_send_a_task_stores_its_headers(sender, send):
    sent = send()

    assert [Task.objects.get(pk=handle.id).metadata for handle in sent] == [HEADERS] * len(sent)


@pytest.mark.once
def test_the_metadata_of_a_call_overrides_that_of_its_task(sender):
    plain = jobs.labelled.send()
    overridden = jobs.labelled.with_options(metadata={"shown": "call"}).send()
    cleared = jobs.labelled.with_options(metadata=None).send()
    many = jobs.labelled.with_options(metadata={"shown": "calls"}).send_many([{}])

    stored = [Task.objects.get(pk=handle.id).metadata for handle in (plain, overridden, cleared, *many)]
    own = {"team": "billing"}
    assert stored == [
        HEADERS | own | {"shown": "task"},
        HEADERS | own | {"shown": "call"},
        HEADERS,
        HEADERS | own | {"shown": "calls"},
    ]
    assert jobs.labelled.metadata == {"team": "billing", "shown": "task"}


FORGED = {"tenant": "other"}


@pytest.mark.parametrize(
    "send",
    [
        lambda: jobs.look.with_options(metadata=FORGED).send(),
        lambda: async_to_sync(jobs.look.with_options(metadata=FORGED).asend)(),
        lambda: jobs.look.with_options(metadata=FORGED).enqueue(),
        lambda: jobs.look.with_options(metadata=FORGED).schedule(60),
        lambda: jobs.look.with_options(metadata=FORGED).send_many([{}]),
        lambda: jobs.forging.send(),
        lambda: jobs.forging.send_many([{}]),
        lambda: gathered.three.with_options(metadata=FORGED).send(key="a", value=1),
        lambda: Workflow("w", [jobs.look.node(metadata=FORGED)()]).start(),
        lambda: Workflow("w", [jobs.forging.node()()]).start(),
    ],
    ids="send asend enqueue schedule send_many task task_many gathered node node_of_task".split(),
)
def test_metadata_with_the_key_of_a_header_is_rejected(sender, send):
    with pytest.raises(ValueError, match=r"metadata has the key 'tenant'; allowed: other keys; .* reserves"):
        send()

    assert not Task.objects.exists()
    assert not WorkflowTask.objects.exists()


@pytest.mark.parametrize(("key", "value"), [("language", "fr"), ("timezone", "UTC")])
def test_metadata_with_a_reserved_key_is_rejected_even_if_no_header_is_sent(middleware, key, value):
    middleware(*samples.WITH_HEADERS)

    with (
        translation.override(None),
        timezone.override(timezone.get_fixed_timezone(60)),
        pytest.raises(ValueError, match=f"metadata has the key '{key}'.*Middleware'"),
    ):
        jobs.look.with_options(metadata={key: value}).send()

    assert not Task.objects.exists()


@pytest.mark.slow
def test_headers_override_the_metadata_of_subworkflow_nodes(drain, sender):
    Workflow("w", [jobs.Forging.node()()]).start()

    drain()

    assert Task.objects.get(task_name=jobs.forging.module_path).metadata == HEADERS


def test_the_enqueue_command_names_a_reserved_metadata_key(sender):
    with pytest.raises(CommandError, match="metadata has the key 'tenant'"):
        call_command("horsies_task", "enqueue", jobs.forging.module_path)

    assert not Task.objects.exists()


@pytest.mark.once
def test_a_schedule_with_a_reserved_metadata_key_is_rejected_and_not_sent(sender, admin_client):
    columns = {"timing": "every:60", "task_name": jobs.look.module_path, "options": {"metadata": FORGED}}
    with pytest.raises(ValidationError, match="metadata has the key 'tenant'"):
        Schedule(name="typed", **columns).full_clean()
    row = Schedule.objects.create(name="stored", **columns)

    with pytest.raises(ValueError, match="metadata has the key 'tenant'"):
        dispatch.run_now(row)

    assert not Task.objects.exists()


@pytest.mark.once
def test_reserved_headers_must_be_a_collection_of_names(middleware):
    middleware("reserving_a_text")

    with pytest.raises(ImproperlyConfigured, match="has reserved_headers 'tenant'; allowed: a collection of names"):
        jobs.look.with_options(metadata={"x": 1}).send()


@pytest.mark.once
def test_a_task_result_shows_headers_and_metadata(sender):
    assert jobs.labelled.enqueue().task.metadata == HEADERS | {"team": "billing", "shown": "task"}


@pytest.mark.slow
def test_each_node_has_the_headers_sent_with_its_workflow(drain, sender):
    several = jobs.several.node(metadata={"own": 1})()
    each = jobs.one_of.map(over=several)
    workflow = Workflow("made before", [several, each, jobs.Inner.node()()])
    with translation.override("tr"):
        handle = workflow.start()

    drain()

    rows = Task.objects.filter(workflow_id=handle.id).exclude(task_name__contains=".engine_tasks.")
    started_with = HEADERS | {"language": "tr"}
    by_name = {(row.task_name.rpartition(".")[2], tuple(sorted(row.metadata.items()))) for row in rows}
    own = tuple(sorted((started_with | {"own": 1}).items()))
    plain = tuple(sorted(started_with.items()))
    assert by_name == {("several", own), ("one_of", plain), ("look", plain)}


@pytest.mark.once
def test_no_headers_are_sent_without_a_language_or_a_named_time_zone(middleware):
    middleware(*samples.WITH_HEADERS[:2])
    translation.deactivate_all()
    try:
        with timezone.override(timezone.get_fixed_timezone(90)):
            handle = jobs.look.send()
    finally:
        translation.deactivate()

    assert Task.objects.get(pk=handle.id).metadata is None


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        (
            "Odd",
            TypeError,
            r"headers\(\) of middleware '[\w.]+.samples.Odd' gave 'language'; allowed: a dict",
        ),
        ("Unstorable", TypeError, r"Unsupported type: <class 'set'> in metadata\['some'\]"),
        ("Huge", ValueError, "metadata is too large"),
        ("missing", ImproperlyConfigured, "middleware 'tests.core.middleware.samples.missing' can't be imported"),
    ],
)
@pytest.mark.once
def test_invalid_headers_are_rejected_and_leave_no_row(middleware, name, kind, message):
    middleware(name)

    for send in (
        jobs.look.send,
        jobs.look.enqueue,
        lambda: jobs.look.send_many([{}]),
        Workflow("w", jobs.look.node()()).start,
    ):
        with pytest.raises(kind, match=message):
            send()

    assert not Task.objects.exists()


@pytest.mark.once
def test_metadata_has_a_size_limit():
    huge = jobs.look.with_options(metadata={"much": "x" * 20_000_000})

    with pytest.raises(ValueError, match="metadata is too large: 20,000,011 bytes"):
        huge.send()


@pytest.mark.parametrize("stored", [None, 3, ["language"], {"language": 5, "timezone": None}], ids=repr)
def test_a_task_with_invalid_stored_metadata_runs_without_headers(drain, middleware, stored):
    middleware(*samples.WITH_HEADERS)
    row = Task.objects.create(task_name=jobs.look.module_path, metadata=stored)
    other = Task.objects.create(task_name=jobs.ametadata.module_path, metadata=stored, is_async=True)

    drain()

    row.refresh_from_db()
    other.refresh_from_db()
    assert row.result["ok"]["tenant"] == "public"
    assert other.result == {"ok": stored if isinstance(stored, dict) else {}}


def test_a_context_has_the_metadata_without_any_middleware(drain):
    handle = jobs.ametadata.with_options(metadata={"trace": 1}).send()

    drain()

    assert handle.value(0) == {"trace": 1}


@pytest.mark.once
def test_a_group_has_the_headers_of_the_call_that_opened_it(sender):
    first = jobs.gathered.send(item=1)
    with translation.override("tr"):
        second = jobs.gathered.send(item=2)
        (third,) = jobs.gathered.send_many([{"item": 3}])

    assert first.id == second.id == third.id
    assert Task.objects.get(pk=first.id).metadata == HEADERS


@pytest.mark.once
def test_a_schedule_run_by_hand_has_its_metadata_and_the_callers_headers(sender):
    row = Schedule.objects.create(
        name="nightly",
        timing="every:60",
        task_name=jobs.labelled.module_path,
        options={"metadata": {"shown": "schedule"}},
    )

    handle = dispatch.run_now(row)

    stored = Task.objects.get(pk=handle.id)
    assert (stored.schedule_id, stored.metadata) == (row.pk, HEADERS | {"team": "billing", "shown": "schedule"})


@pytest.mark.slow
def test_a_deferred_group_call_keeps_its_headers_and_only_its_group_runs_middleware(drain, middleware):
    middleware("outer", *samples.WITH_HEADERS)
    with translation.override("de"):
        deferred = gathered.three.schedule(60, key="a", value=1)
    Task.objects.update(enqueued_at=Now(), run_after=Now())

    drain()
    gathered.three.send_many([{"key": "a", "value": value} for value in (2, 3)])
    drain()

    group = Task.objects.get(pk=deferred.value(timeout=0))
    assert (group.result, group.metadata) == ({"ok": [1, 2, 3]}, Task.objects.get(pk=deferred.id).metadata)
    assert group.metadata["language"] == "de"
    assert [call.id for call in samples.calls] == [group.pk]
