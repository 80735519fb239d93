"""Messages, keys and reprs contain no sensitive value."""

import hashlib
import json
import subprocess
import sys

import pytest
from django.test import override_settings

from horsies_django import TaskError, TaskResult
from horsies_django.models import Limit, Task
from horsies_django.ops.inspector import tasks
from tests.conftest import ROOT
from tests.core.masking import jobs

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

PIN = "4711"

#: Columns that may hold the PIN: the values themselves, which are masked where they are shown.
VALUES = {"args", "kwargs", "result"}


def without_values(row):
    """Return all columns of a row but its values, as one text."""
    values = {field.name: getattr(row, field.name) for field in row._meta.concrete_fields}
    return " ".join(str(value) for name, value in values.items() if name not in VALUES)


@pytest.fixture
def drain():
    from django.core.management import call_command

    return lambda: call_command("horsies_worker", drain=True, verbosity=0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: jobs.check_pin.send(int(PIN)),
        lambda: jobs.check_pin.send(pin=[PIN]),
        lambda: jobs.takes_config.send({"deep": [{"password": PIN}]}),
        lambda: jobs.takes_config.send([{"api_key": {"x": PIN}}]),
    ],
)
def test_an_error_does_not_quote_a_sensitive_argument_of_a_wrong_type(call):
    with pytest.raises(TypeError, match=r"argument '\w+' is .*\*\*\*\*.*; allowed: str") as raised:
        call()

    assert PIN not in str(raised.value)


def test_an_error_quotes_an_argument_of_a_wrong_type_that_is_not_sensitive():
    with pytest.raises(TypeError, match=r"argument 'config' is \{'a': \[1, \(2,\)\]\} \(dict\); allowed: str"):
        jobs.takes_config.send({"a": [1, (2,)]})


def test_an_error_does_not_quote_a_sensitive_return_value_of_a_wrong_type(drain):
    handle = jobs.gives_text.send(PIN)
    drain()

    error = handle.get(timeout=0).err

    assert error.error_code == "RETURN_TYPE_MISMATCH"
    assert "(str); its hint says int" in error.message
    assert PIN not in error.message + error.exception["traceback"]
    assert PIN not in without_values(handle._rows().get().attempts.get())


@pytest.mark.slow
@pytest.mark.parametrize("job", [jobs.errs_with, jobs.errs_with_data])
def test_a_sensitive_error_value_is_masked_in_the_data_and_not_in_the_message(drain, job):
    handle = job.send(PIN)
    drain()

    error = handle.get(timeout=0).err
    shown = tasks().show(handle.id)

    assert PIN not in error.message
    assert PIN not in without_values(handle._rows().get().attempts.get())
    assert PIN not in str(shown.payload["result"])


def test_the_error_of_a_failing_schedule_masks_sensitive_arguments():
    from django.core.management import CommandError, call_command

    from horsies_django.models import Schedule

    schedule_row = Schedule.objects.create(
        name="daily pins",
        timing="every:60",
        task_name="tests.core.masking.jobs.check_pin",
        kwargs={"pin": int(PIN)},
        enabled=True,
        source="",
    )
    Schedule.objects.update(next_run_at="2020-01-01T00:00:00Z", next_slot_at="2020-01-01T00:00:00Z")
    with pytest.raises(CommandError):
        call_command("horsies_scheduler", once=True, verbosity=0)

    schedule_row.refresh_from_db()
    assert "argument 'pin' is ****" in schedule_row.last_error
    assert PIN not in schedule_row.last_error


@pytest.mark.slow
def test_a_limit_key_from_a_sensitive_argument_is_a_keyed_hash_after_its_scope():
    for job, given in [
        (jobs.limited_by_pin, PIN),
        (jobs.limited_by_callable, PIN),
        (jobs.limited_by_iban, {"iban": PIN}),
    ]:
        same, other = (
            [job.send(given)._rows().get().limit_key for _ in range(2)],
            job.send(
                {"iban": "x"} if isinstance(given, dict) else "other",
                **({"customer": 2} if job is jobs.limited_by_callable else {}),
            ),
        )

        assert same[0] == same[1] != other._rows().get().limit_key
        assert same[0].startswith(f"{job.module_path}:#")
        assert not any(PIN in without_values(row) for row in [*Task.objects.all(), *Limit.objects.all()])


def test_a_limit_key_from_an_argument_that_is_not_sensitive_stays_readable():
    handle = jobs.limited_by_customer.send(PIN, customer=7)

    assert handle._rows().get().limit_key == f"{jobs.limited_by_customer.module_path}:customer-7"


@pytest.mark.parametrize("job", [jobs.unique_by_pin, jobs.unique_by_text, jobs.unique_by_callable])
def test_a_unique_key_from_a_sensitive_argument_cannot_be_guessed(job):
    first, second, other = job.send(PIN), job.send(PIN), job.send("0815")

    key = first._rows().get().unique_key
    assert second.replayed
    assert second.id == first.id != other.id
    assert PIN not in key
    path = job.module_path
    for guess in (f"pin-{PIN}", f'{path} {{"pin":"{PIN}"}}', PIN):
        assert hashlib.sha256(guess.encode()).hexdigest()[:32] not in key


@pytest.mark.parametrize("job", [jobs.gathered_by_pin, jobs.gathered_by_callable])
def test_a_group_key_does_not_contain_a_sensitive_argument(job):
    first, second, other = job.send(pin=PIN), job.send(pin=PIN), job.send(pin="0815")
    later = job.schedule(60, pin=PIN)

    assert first.id == second.id != other.id
    assert later.id != first.id
    assert PIN not in first._rows().get().group_key


def test_an_error_about_a_key_does_not_quote_a_sensitive_argument():
    with pytest.raises(ValueError, match=r"concurrency_key of .* gave \*{20}; allowed: 1 to ") as raised:
        jobs.too_long_a_key.send(PIN)

    assert PIN not in str(raised.value)
    with pytest.raises(ValueError, match="key of a call is a str of 400 characters") as raised:
        jobs.gathered_by_pin.send(pin=PIN * 100)
    assert PIN not in str(raised.value)


@pytest.mark.slow
def test_keyed_hashes_are_the_same_in_every_process_with_the_same_secret_key():
    script = """
import django, json; django.setup()
from horsies_django.core.mask import keyed_hash
print(json.dumps([keyed_hash("limit", "a"), keyed_hash("unique", "a"), keyed_hash("limit", "b")]))
"""
    from horsies_django.core.mask import keyed_hash

    here = [keyed_hash("limit", "a"), keyed_hash("unique", "a"), keyed_hash("limit", "b")]
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "/usr/bin:/bin", "DJANGO_SETTINGS_MODULE": "tests.settings"},
    )
    with override_settings(SECRET_KEY="another"):
        elsewhere = keyed_hash("limit", "a")

    assert json.loads(done.stdout) == here
    assert len({*here, elsewhere}) == 4


@pytest.mark.slow
def test_reprs_of_results_handles_and_errors_contain_no_value(drain):
    handle = jobs.check_pin.send(PIN)
    failed = jobs.errs_with_data.send(PIN)
    drain()

    shown = [
        repr(found)
        for one in (handle, failed)
        for found in (one, one.get(timeout=0), one.info(), one.get(timeout=0).err)
    ]
    result = jobs.check_pin.get_result(str(handle.id))
    shown += [repr(result), f"{result}", repr(TaskResult(ok=PIN)), repr(TaskError(error_code="A", data=PIN))]

    assert not any(PIN in text for text in shown), shown
    assert "TaskResult(ok=<str>)" in shown
    assert result.return_value == handle.value() == PIN


def test_reprs_of_calls_claims_and_tasks_contain_no_value():
    from horsies_django.middleware import TaskCall
    from horsies_django.models.claims import ClaimedTask

    facts = {"task_name": "a.b", "queue_name": "q", "priority": 0, "attempt": 1, "max_attempts": 1, "enqueued_at": None}
    carried = {"args": (PIN,), "kwargs": {"pin": PIN}, "metadata": {"pin": PIN}}
    call = TaskCall(
        id=None, task=jobs.check_pin, workflow_id=None, body=lambda: None, outcome_of=None, **facts, **carried
    )
    claim = ClaimedTask(*[PIN if name in carried else 0 for name in ClaimedTask._fields])
    job = jobs.check_pin.with_options(metadata={"pin": PIN})

    assert PIN not in repr(call) + repr(claim) + repr(job)


def test_the_inspector_shows_no_value_of_an_unknown_task():
    row = Task.objects.create(
        task_name="gone.away.task",
        args=[PIN],
        kwargs={"harmless": PIN, f"name{PIN}": 1},
        metadata={"harmless": PIN},
        checkpoint=[PIN],
        result={"ok": PIN},
    )

    (listed,) = tasks().list()
    shown = tasks().show(row.pk)

    assert PIN not in str(listed) + str(listed.as_json()) + str(shown) + str(shown.as_json())


def test_the_stored_message_of_a_database_error_leaves_out_the_rows_values(drain):
    from django.db import DatabaseError, connection

    from horsies_django.db.errors import primary_message

    if connection.vendor != "postgresql":
        pytest.skip("SQLite quotes no values; runs with the tests on PostgreSQL")
    row = Task.objects.create(task_name="a.b", args=[PIN])
    with pytest.raises(DatabaseError) as raised:
        Task.objects.filter(pk=row.pk).update(status=None)

    assert PIN in str(raised.value)
    assert PIN not in primary_message(raised.value)
    assert "null value in column" in primary_message(raised.value)
