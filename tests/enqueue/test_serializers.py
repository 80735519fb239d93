"""Serializing of values, results and errors, also of texts that no database accepts."""

import datetime
import decimal
import json
import uuid
import zoneinfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horsies_django import TaskHandle, TaskStatus
from horsies_django.core.compat import default_task_backend
from horsies_django.core.serialization import clean_text, decode, dumps, encode
from horsies_django.models import Task, TaskAttempt
from tests.enqueue import jobs
from tests.enqueue.jobs import Address, Person
from tests.naming import stable

RICH = {
    "default": {"BACKEND": "horsies_django.backend.HorsiesBackend", "QUEUES": [], "OPTIONS": {"serializer": "rich"}}
}
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=10)
KEYS = TEXTS | st.sampled_from(["$type", "value", "class", "", "$type "])
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=10,
)
OFFSETS = st.integers(-23 * 60, 23 * 60).map(lambda m: datetime.timezone(datetime.timedelta(minutes=m)))
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
    | st.datetimes()
    | st.datetimes(timezones=OFFSETS)
    | st.dates()
    | st.times()
    | st.times(timezones=OFFSETS)
    | st.timedeltas()
    | st.uuids()
    | st.decimals(allow_nan=False)
    | st.builds(Address, street=TEXTS, since=st.none() | st.dates())
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(KEYS, inner, max_size=4)
        | st.builds(
            Person,
            name=TEXTS,
            home=st.builds(Address, street=TEXTS, since=st.dates()),
            others=st.lists(inner, max_size=3),
        )
    ),
    max_leaves=12,
)

pytestmark = pytest.mark.once


def shape(value):
    """Return the value with the type of each part, because 1 == True == 1.0."""
    match value:
        case dict():
            return {key: shape(item) for key, item in value.items()}
        case list():
            return [shape(item) for item in value]
        case Person():
            return (Person, value.name, shape(value.home), shape(value.others))
        case Address():
            return (Address, value.street, shape(value.since))
        case decimal.Decimal() | datetime.datetime() | datetime.time():
            return (type(value), str(value))
    return (type(value), value)


def round_trip(value, *, typed):
    return decode(json.loads(dumps(encode(value, typed=typed, where="it"))), typed=typed)


@pytest.mark.slow
@given(VALUES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_rich_value_round_trips_with_its_type(value):
    decoded = round_trip(value, typed=True)

    assert shape(decoded) == shape(value)


@pytest.mark.slow
@given(PLAIN)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_plain_value_round_trips_in_both_serializers(value):
    plain, typed = round_trip(value, typed=False), round_trip(value, typed=True)

    assert shape(plain) == shape(typed) == shape(value)


@pytest.mark.django_db
@given(VALUES.filter(lambda value: "e+" not in str(value)))
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.slow
def test_any_rich_value_round_trips_through_a_row(value):
    row = Task(task_name="x", args=[encode(value, typed=True, where="it")], typed_payload=True)

    row.save()
    row.refresh_from_db()

    assert decode(row.args[0], typed=True) == value


@given(st.text(st.sampled_from("\0\ud800\udfffé\\ux0") | st.characters(), max_size=60), st.integers(1, 40))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_clean_text_returns_storable_text_and_keeps_the_end(text, limit):
    cleaned = clean_text(text, limit)

    cleaned.encode()
    assert "\0" not in cleaned
    if len(text) <= limit:
        assert cleaned == text or "\0" in text or any("\ud800" <= one <= "\udfff" for one in text)
    else:
        assert f"{len(text) - limit} characters left out" in cleaned
        assert cleaned.endswith(clean_text(text[-limit:], limit))


RICH_VALUES = [
    datetime.datetime(2026, 3, 29, 2, 30, tzinfo=datetime.UTC),
    datetime.datetime(2026, 3, 29, 2, 30),
    datetime.datetime(2026, 7, 1, 12, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    datetime.date(1, 1, 1),
    datetime.time(23, 59, 59, 999999),
    datetime.timedelta(days=-1, microseconds=1),
    uuid.UUID(int=2**128 - 1),
    decimal.Decimal("1.10"),
    decimal.Decimal("-Infinity"),
    Address("Elm", datetime.date(2020, 2, 29)),
    Person("Ann", Address("Elm"), [{"$type": uuid.UUID(int=1)}]),
    {"$type": "date", "value": "a trap"},
    {"$type": {"$type": "dict"}},
    {"value": {"class": "x"}},
]


@pytest.mark.slow
def test_rich_values_reach_the_body_and_the_result(drain, settings):
    settings.TASKS = RICH
    positional = [jobs.identity.send(value) for value in RICH_VALUES]
    by_keyword = [jobs.identity.send(value=value) for value in RICH_VALUES]

    drain()

    assert [handle.value(0) for handle in positional] == RICH_VALUES
    assert [handle.value(0) for handle in by_keyword] == RICH_VALUES
    assert [shape(handle.info().result.ok) for handle in by_keyword[7:9]] == [shape(one) for one in RICH_VALUES[7:9]]


@pytest.mark.slow
def test_rich_values_round_trip_as_the_data_of_an_error(drain, settings):
    settings.TASKS = RICH
    handles = [jobs.fail_with.send(value) for value in RICH_VALUES]

    drain()

    assert [handle.get(0).err.data for handle in handles] == RICH_VALUES
    assert handles[0].get(0).err.error_code == "MINE"


@pytest.mark.parametrize("name", ["$type", "value", "class"])
def test_an_argument_name_is_never_read_as_a_type_tag(drain, settings, name):
    settings.TASKS = RICH
    handle = jobs.anything.send(**{name: "date"})

    drain()

    assert handle.value(0) == {"args": [], "kwargs": {name: "date"}}


def test_a_row_is_read_as_rich_only_if_the_row_and_the_backend_are_rich(drain, settings):
    before, tagged = settings.TASKS, {"$type": "date", "value": "2020-01-01"}
    plain = jobs.identity.send(tagged)
    settings.TASKS = RICH
    typed = jobs.identity.send(datetime.date(2020, 1, 1))

    drain()

    assert (plain.value(0), TaskHandle(typed.id).value(0)) == (tagged, datetime.date(2020, 1, 1))
    settings.TASKS = before
    assert TaskHandle(typed.id).value(0) == default_task_backend.get_result(str(typed.id)).return_value == tagged


@pytest.mark.django_db
@pytest.mark.parametrize("value", [*RICH_VALUES[:10], {1, 2}, object(), 5j], ids=stable)
def test_the_json_serializer_refuses_non_json_values_and_suggests_rich(value):
    with pytest.raises(TypeError) as caught:
        jobs.identity.send(value)

    assert "argument 'value'" in str(caught.value)
    assert '"serializer": "rich"' in str(caught.value)
    assert not Task.objects.exists()


@pytest.mark.parametrize("value", [{1, 2}, object(), 5j, jobs.Outer, jobs.Outer.Inner(), Address], ids=stable)
def test_the_rich_serializer_refuses_values_that_a_worker_cannot_rebuild(value):
    with pytest.raises(TypeError) as caught:
        encode([value], typed=True, where="it")

    assert "Unsupported type" in str(caught.value)
    assert "it[0]" in str(caught.value)


def test_dict_keys_become_text_as_in_json_dumps():
    value = {7: "a", None: "b", True: "c", 2.5: "d", b"e": "f"}

    stored = encode(value, typed=False, where="it")

    assert stored == {"7": "a", "null": "b", "true": "c", "2.5": "d", "e": "f"}


@pytest.mark.parametrize("typed", [False, True])
def test_dict_keys_that_become_the_same_text_are_refused(typed):
    value = {1: "first", "1": "second"}

    with pytest.raises((TypeError, ValueError), match="it"):
        encode(value, typed=typed, where="it")


# Results.


@pytest.mark.slow
@pytest.mark.parametrize("typed", [False, True])
def test_a_hostile_result_fails_only_its_own_task(drain, settings, typed):
    if typed:
        settings.TASKS = RICH
    bad = {name: jobs.give_hostile.send(name) for name in jobs.HOSTILE}
    good = jobs.identity.send("fine")

    drain(threads=1)

    codes = {name: handle.get(0).err.error_code for name, handle in bad.items()}
    assert codes == dict.fromkeys(jobs.HOSTILE, "WORKER_SERIALIZATION_ERROR")
    assert good.value(0) == "fine"
    assert TaskAttempt.objects.count() == len(bad) + 1


@pytest.mark.slow
def test_a_deeply_nested_result_is_stored_or_fails_its_task(drain):
    handles = {
        depth: jobs.give_nested.send(depth) for depth in (50, 200, 400, 600, 800, 900, 930, 950, 960, 970, 1_500)
    }

    drain(threads=1)

    results = {depth: handle.get(0) for depth, handle in handles.items()}
    for depth, result in results.items():
        if result.is_ok():
            assert result.ok == jobs.nested(depth)
        else:
            assert depth > 100
            assert result.err.error_code == "WORKER_SERIALIZATION_ERROR"
    assert results[50].is_ok()
    assert results[1_500].err.message == "Unsupported value: the return value is nested too deeply."
    assert max(len(attempt.traceback.splitlines()) for attempt in TaskAttempt.objects.all()) < 20


@pytest.mark.parametrize(
    "value", [10**4_000, 2**64, 10**100, 0.1, 5e-324, "", [], {}, False, "\U0010ffff\u2028"], ids=ascii
)
def test_an_extreme_result_is_returned_unchanged(drain, value):
    handle = jobs.identity.send([value])

    drain()

    assert handle.value(0) == [value]


# Errors.


@pytest.mark.slow
@pytest.mark.parametrize("job", [jobs.raise_text, jobs.return_text], ids=["raised", "returned"])
def test_an_error_text_is_stored_as_far_as_the_database_accepts_it(drain, job):
    handles = {name: job.send(name) for name in jobs.TEXTS}
    good = jobs.identity.send("fine")

    drain(threads=1)

    assert good.value(0) == "fine"
    for name, handle in handles.items():
        info, text = handle.info(), jobs.TEXTS[name]
        error, attempt = info.result.err, TaskAttempt.objects.get(task=handle.id)
        assert info.status == TaskStatus.FAILED
        assert info.error_code == error.error_code == ("MINE" if job is jobs.return_text else "UNHANDLED_EXCEPTION")
        assert error.message == attempt.error_message == clean_text(text)
        for written in (error.message, attempt.traceback):
            assert "\0" not in written
            written.encode()
            assert len(written) < 400_000
        if "\0" not in text and "\ud800" not in text and len(text) < 1_000:
            assert error.message == text


@pytest.mark.slow
def test_a_task_with_any_text_as_its_error_code_ends_failed(drain):
    handles = {name: jobs.return_code.send(name) for name in jobs.TEXTS}

    drain(threads=1)

    for name, handle in handles.items():
        code = handle.info().error_code
        assert handle.status() == TaskStatus.FAILED
        assert 0 < len(code) <= 100
        assert "\0" not in code
        assert handle.get(0).err.error_code == code, name


@pytest.mark.parametrize("name", ["text", "name", "module"])
def test_an_exception_with_an_unstorable_class_or_text_fails_only_its_task(drain, name):
    bad, good = jobs.raise_class.send(name), jobs.identity.send("fine")

    drain(threads=1)

    assert good.value(0) == "fine"
    assert (bad.status(), bad.get(0).err.error_code) == (TaskStatus.FAILED, "UNHANDLED_EXCEPTION")
    assert TaskAttempt.objects.get(task=bad.id).outcome == "FAILED"
