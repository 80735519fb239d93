"""Values, errors and rows that are too large, of the wrong type, or damaged."""

import pytest
from django.db import connection

from horsies_django import ContractCode, OperationalCode, RetrievalCode, TaskHandle, TaskStatus
from horsies_django.models import Task, TaskAttempt
from tests.jobs import tasks
from tests.worker.lifecycle import jobs

pytestmark = pytest.mark.django_db

MEBIBYTE = 1024 * 1024


def limit_payloads(settings, size):
    backend = settings.TASKS["default"]
    settings.TASKS = {"default": {**backend, "OPTIONS": {**backend["OPTIONS"], "max_payload_bytes": size}}}


# Retry delays in the rows.


def delays_of(handles):
    rows = Task.objects.filter(pk__in=[handle.id for handle in handles])
    return [(row.next_retry_at - row.attempts.latest("attempt").finished_at).total_seconds() for row in rows]


def test_stored_retry_delays_follow_the_policy_with_jitter_and_cap(drain):
    with_jitter = jobs.fails_with_jitter.send_many({} for _ in range(60))
    without = jobs.fails_without_jitter.send_many({} for _ in range(5))
    growing = {retries: jobs.fails_with_growing_delays.send_many({} for _ in range(8)) for retries in range(6)}
    for retries, handles in growing.items():
        Task.objects.filter(pk__in=[handle.id for handle in handles]).update(retry_count=retries)

    drain()

    delays = delays_of(with_jitter)
    assert len(delays) == 60
    assert 74 < min(delays) < 98, "jitter makes some retries earlier"
    assert 102 < max(delays) < 130, "jitter makes some retries later"
    assert all(100 <= delay < 105 for delay in delays_of(without))
    for retries, handles in growing.items():
        planned = min(20 * 2**retries, 100)
        for delay in delays_of(handles):
            assert planned * 0.75 - 1 < delay < min(planned * 1.25, 100) + 5, retries


# Values that violate the return hint.


def test_a_value_that_violates_the_return_hint_is_a_return_type_mismatch(drain):
    bodies = [jobs.hinted_int, jobs.ahinted_int, jobs.hinted_result_of_int]
    bad = [body.send(value) for body in bodies for value in ("7", {"n": 7}, [7])]
    good = [body.send(7) for body in bodies]
    mixed, pure = jobs.hinted_list_of_str.send(["a", 1]), jobs.hinted_list_of_str.send(["a", "b"])

    drain()

    for handle in (*bad, mixed):
        assert handle.info().status == TaskStatus.FAILED
        assert handle.get(0).err.error_code == ContractCode.RETURN_TYPE_MISMATCH
    assert {"its hint says int" in handle.get(0).err.message for handle in bad} == {True}
    assert [handle.value(0) for handle in good] == [7, 7, 7]
    assert pure.value(0) == ["a", "b"]


def test_none_is_a_valid_result_for_any_return_hint(drain):
    handles = [jobs.unhinted.send(None), jobs.hinted_int.send(None)]

    drain()

    for handle in handles:
        assert handle.get(0).is_ok()
        assert handle.value(0) is None
        assert Task.objects.get(pk=handle.id).result == {"ok": None}


# Damaged rows.


def write_raw(handle, column, text):
    """Write a JSON text into a column unchanged."""
    key = handle.id if connection.vendor == "postgresql" else handle.id.hex
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE horsies_tasks SET {column} = %s WHERE id = %s", [text, key])


def test_a_task_with_damaged_arguments_fails_and_the_worker_continues(drain):
    damages = [("args", '{"0": 1}'), ("args", "7"), ("args", "null"), ("kwargs", "[]"), ("kwargs", '"b"')]
    pairs = [(tasks.add.send(1), tasks.add.send(2), damage) for damage in damages]
    for damaged, _, damage in pairs:
        write_raw(damaged, *damage)

    drain(threads=1)

    for damaged, sound, damage in pairs:
        assert damaged.get(0).err.error_code == OperationalCode.WORKER_SERIALIZATION_ERROR, damage
        assert TaskAttempt.objects.get(task_id=damaged.id).will_retry is False
        assert sound.value(0) == 3


def test_damaged_columns_do_not_stop_the_worker(drain):
    damages = [(column, text) for column in ("retry_policy", "metadata") for text in ("[]", "7", '"x"', '{"odd": 1}')]
    pairs = [(tasks.fail.send(), tasks.add.send(2), damage) for damage in damages]
    for damaged, _, damage in pairs:
        Task.objects.filter(pk=damaged.id).update(max_retries=3)
        write_raw(damaged, *damage)

    drain(threads=1)

    for damaged, sound, damage in pairs:
        assert damaged.get(0).err.error_code == OperationalCode.UNHANDLED_EXCEPTION, damage
        assert sound.value(0) == 3


def test_a_damaged_result_is_returned_as_an_error_not_raised(drain):
    handle = tasks.add.send(1)
    drain()

    for text in ('{"neither": 1}', "[]", '"text"', '{"err": 5}', '{"err": {"message": "no code"}}'):
        write_raw(handle, "result", text)
        fresh = TaskHandle(handle.id)
        assert fresh.get(0).err.error_code == OperationalCode.RESULT_DESERIALIZATION_ERROR, text
        assert fresh.info().status == TaskStatus.COMPLETED
    Task.objects.update(result=None)
    assert TaskHandle(handle.id).get(0).err.error_code == RetrievalCode.RESULT_NOT_AVAILABLE


def test_a_task_with_an_unknown_name_fails_and_the_worker_continues(worker):
    process = worker("--threads", "1")
    names = [
        "tests.worker.lifecycle.jobs.gone",
        "tests.no_such_module.task",
        "tests.worker.lifecycle.jobs.wait_for",
        "",
        "…",
    ]
    rows = [
        Task.objects.create(task_name=name, max_retries=3, retry_policy={"auto_retry_for": ["*"]}) for name in names
    ]
    good = tasks.add.send(1)

    assert good.value(timeout=20) == 2
    for row in rows:
        assert TaskHandle(row.pk).get(timeout=20).err.error_code == OperationalCode.WORKER_RESOLUTION_ERROR, row
        assert row.attempts.get().will_retry is False
    assert process.process.poll() is None


# Large values.


def test_arguments_and_results_of_a_mebibyte_are_stored(worker):
    worker()

    inwards = jobs.length.send("ä" * MEBIBYTE)
    outwards = tasks.large.send(MEBIBYTE)

    assert inwards.value(timeout=20) == MEBIBYTE
    assert outwards.value(timeout=20) == "x" * MEBIBYTE


def test_arguments_and_results_over_max_payload_bytes_are_refused(drain, settings):
    limit_payloads(settings, 100_000)

    with pytest.raises(ValueError, match="max_payload_bytes"):
        jobs.length.send("x" * 100_001)
    outwards = tasks.large.send(100_001)
    drain()

    error = outwards.get(0).err
    assert error.error_code == OperationalCode.WORKER_SERIALIZATION_ERROR
    assert "max_payload_bytes" in error.message
    assert Task.objects.count() == 1


def test_an_error_text_of_ten_mebibytes_is_truncated_before_it_is_stored(drain, settings):
    limit_payloads(settings, MEBIBYTE)
    handles = [body.send(10 * MEBIBYTE) for body in (jobs.fail_with_long_error, jobs.return_long_error)]

    drain()

    for handle in handles:
        row = Task.objects.get(pk=handle.id)
        attempt = row.attempts.get()
        assert row.status == TaskStatus.FAILED
        assert len(attempt.error_message) < 100_000
        assert len(attempt.traceback) < 100_000
        assert len(str(row.result)) < 300_000
    assert handles[0].get(0).err.message.endswith("the end")


@pytest.mark.slow
def test_a_task_with_thousands_of_attempts_can_run_again(drain):
    handle = tasks.flaky.send("many", 1)
    drain()
    row = Task.objects.get(pk=handle.id)
    first = row.attempts.earliest("attempt")
    TaskAttempt.objects.bulk_create(
        TaskAttempt(
            task_id=row.pk,
            attempt=number,
            outcome=first.outcome,
            due_at=first.due_at,
            started_at=first.started_at,
            finished_at=first.finished_at,
            error_message="x" * 1_000,
        )
        for number in range(3, 2_003)
    )
    Task.objects.update(attempt=2_002, status=TaskStatus.PENDING, completed_at=None, retry_count=0)

    drain()

    assert handle.info().attempt == 2_003
    assert TaskAttempt.objects.count() == 2_003


# Characters that databases refuse.


@pytest.mark.parametrize(
    "text", ["a\0b", "\ud800", {"\0": 1}, [{"deep": "\udfff"}]], ids=["NUL", "surrogate", "key", "deep"]
)
def test_unstorable_characters_are_refused_by_send(text):
    with pytest.raises(ValueError, match=r"NUL|surrogate"):
        tasks.identity.send(text)
    with pytest.raises(ValueError, match=r"NUL|surrogate"):
        tasks.echo.send(key=text)

    assert not Task.objects.exists()


def test_unusual_but_valid_texts_are_returned_unchanged(drain):
    texts = ["😀", "\x01\x1f", "\u2028", "'; DROP TABLE horsies_tasks; --", "\\u0000", "%s %%"]
    pairs = [(tasks.identity.send(text), tasks.fail.send(text), text) for text in texts]

    drain()

    for good, bad, text in pairs:
        assert good.value(0) == text
        assert bad.get(0).err.message == text
        assert TaskAttempt.objects.get(task_id=bad.id).error_message == text
