"""Wrong arguments are refused by name, and nothing is inserted."""

import re
import string

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horsies_django import task
from horsies_django.models import Task
from tests.enqueue import jobs

pytestmark = pytest.mark.once

SENDS = {
    "send": lambda job, args, kwargs: job.send(*args, **kwargs),
    "asend": lambda job, args, kwargs: async_to_sync(job.asend)(*args, **kwargs),
    "schedule": lambda job, args, kwargs: job.schedule(5, *args, **kwargs),
    "enqueue": lambda job, args, kwargs: job.enqueue(*args, **kwargs),
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("method", SENDS)
@pytest.mark.parametrize(
    ("args", "kwargs", "named"),
    [
        ((), {}, "'a'"),
        ((), {"b": 1}, "'a'"),
        ((1,), {"d": 4}, "'d'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"a": 2}, "'a'"),
    ],
    ids=str,
)
def test_missing_unknown_and_extra_arguments_are_refused_by_name(method, args, kwargs, named):
    with pytest.raises(TypeError) as caught:
        SENDS[method](jobs.triple, args, kwargs)

    assert named in str(caught.value)
    assert "tests.enqueue.jobs.triple(a, b=2, *, c=3)" in str(caught.value)
    assert Task.objects.count() == 0


@pytest.mark.django_db
@pytest.mark.parametrize("hostile", jobs.HOSTILE)
@pytest.mark.parametrize(
    ("send", "named"),
    [
        (lambda value: jobs.triple.send(value), "argument 'a'"),
        (lambda value: jobs.triple.send(1, value), "argument 'b'"),
        (lambda value: jobs.triple.send(1, c=[0, {"x": value}]), "argument 'c'"),
        (lambda value: jobs.anything.send(1, 2, value), "argument 'args[2]'"),
        (lambda value: jobs.anything.send(extra=value), "argument 'extra'"),
        (lambda value: jobs.with_context.send(1, value), "argument 'b'"),
        (lambda value: jobs.triple.send_many([{"a": 1}, {"a": 1, "b": value}]), "argument 'b'"),
    ],
    ids=["first", "second", "deep", "star", "keyword", "context", "many"],
)
def test_a_hostile_value_is_refused_with_the_name_of_its_parameter(send, named, hostile):
    value = jobs.HOSTILE[hostile]()

    with pytest.raises((TypeError, ValueError)) as caught:
        send(value)

    assert named in str(caught.value)
    assert Task.objects.count() == 0


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["\0", "a\0b", "\ud800", "a\udfff"], ids=ascii)
def test_a_hostile_argument_name_is_refused_and_the_transaction_stays_usable(name):
    with transaction.atomic():
        with pytest.raises((TypeError, ValueError), match="argument"):
            jobs.anything.send(**{name: 1})

        kept = jobs.anything.send(good=1)

    assert Task.objects.get().pk == kept.id


@pytest.mark.django_db
def test_refused_arguments_leave_the_callers_transaction_usable():
    with transaction.atomic():
        for value in (float("nan"), "\0", "\ud800", object()):
            with pytest.raises((TypeError, ValueError)):
                jobs.identity.send(value)

        kept = jobs.identity.send(1)

    assert Task.objects.get().pk == kept.id


@pytest.mark.django_db
def test_a_call_cannot_pass_the_context():
    with pytest.raises(TypeError, match="'context'"):
        jobs.with_context.send(1, context=2)
    with pytest.raises(TypeError, match="'a'"):
        jobs.with_context.send()

    assert Task.objects.count() == 0


@pytest.mark.slow
def test_positional_and_keyword_arguments_reach_the_body(drain):
    calls = [
        (jobs.triple.send(1), [1, 2, 3]),
        (jobs.triple.send(1, 5, c=6), [1, 5, 6]),
        (jobs.triple.send(b=8, a=7), [7, 8, 3]),
        (jobs.with_context.send(4, b=5), [1, 4, 5]),
        (jobs.anything.send(1, [2], task=3, args=4), {"args": [1, [2]], "kwargs": {"task": 3, "args": 4}}),
    ]

    drain()

    assert [handle.value(0) for handle, _ in calls] == [expected for _, expected in calls]


def test_a_keyword_may_have_the_name_of_a_parameter_of_any_function_on_its_way_to_the_body(drain):
    kwargs = dict.fromkeys(["self", "cls", "function", "fn", "func", "args", "task", "execution", "call", "loop"], 1)
    jobs.anything.send(**kwargs)
    jobs.aanything.send(**kwargs)
    jobs.anything.enqueue_on_commit(**kwargs)
    Task.objects.filter(pk=jobs.anything.send(**kwargs).id).update(is_async=True)  # a coroutine when it was sent

    drain()

    assert [task.result for task in Task.objects.all()] == [{"ok": {"args": [], "kwargs": kwargs}}] * 4


def test_a_keyword_that_only_a_wrapper_takes_reaches_it(drain):
    calls = [
        (jobs.ticketed.send(1, ticket="t"), ["t", 1, 2]),
        (jobs.ticketed.enqueue(1, 5), [None, 1, 5]),
        (jobs.ticketed.send_many([{"a": 3, "ticket": "m"}])[0], ["m", 3, 2]),
        (jobs.ticketed_mapping.send({"x": 1}, ticket="t"), ["t", {"x": 1}]),
    ]

    drain()

    assert [Task.objects.get(pk=sent.id).result["ok"] for sent, _ in calls] == [expected for _, expected in calls]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("args", "kwargs", "named"),
    [((), {"ticket": "t"}, "'a'"), ((1, 2, 3), {}, "too many positional arguments")],
    ids=str,
)
def test_the_function_that_is_wrapped_says_which_arguments_are_missing_or_too_many(args, kwargs, named):
    with pytest.raises(TypeError, match=named):
        jobs.ticketed.send(*args, **kwargs)

    assert Task.objects.count() == 0


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("value", "path"),
    [
        ([1, {"x": float("nan")}], "argument 'value'[1]['x']"),
        ({"a": {"b": ["fine", "\0"]}}, "argument 'value'['a']['b'][1]"),
        ([[{"\ud800": 1}]], "a key of argument 'value'[0][0]"),
    ],
    ids=ascii,
)
def test_the_error_gives_the_path_to_the_hostile_part_of_a_value(value, path):
    with pytest.raises(ValueError, match=re.escape(path)):
        jobs.identity.send(value)

    assert Task.objects.count() == 0


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["self", "task", "args", "kwargs", "delay_or_eta", "backend", "context"])
def test_a_task_argument_may_have_the_name_of_a_parameter_of_send(name):
    jobs.anything.send(**{name: 1})
    jobs.anything.schedule(60, **{name: 1})
    jobs.anything.send_many([{name: 1}])

    rows = Task.objects.all()

    assert [row.kwargs for row in rows] == [{name: 1}] * 3


@pytest.mark.django_db
def test_changing_an_argument_after_the_send_does_not_change_the_row():
    value = {"list": [1]}

    jobs.identity.send(value)
    value["list"].append(2)

    assert Task.objects.get().args == [{"list": [1]}]


@pytest.mark.django_db
@pytest.mark.parametrize(
    "value", [10**4_000, -(10**4_000), 2**64, -(2**63) - 1, 10**308], ids=lambda v: f"{len(str(v))}"
)
def test_a_huge_integer_is_stored_to_the_last_digit(value):
    jobs.identity.send(value)

    row = Task.objects.get()

    assert row.args == [value]


@pytest.mark.parametrize("depth", [50, 200, 450, 700, 950, 5_000])
def test_a_deeply_nested_value_is_refused_by_name_or_returned_unchanged(drain, depth):
    value = jobs.nested(depth)
    try:
        handle = jobs.identity.send(value)
    except (TypeError, ValueError) as error:
        handle, message = None, str(error)

    drain()

    if handle is None:
        assert "argument 'value'" in message
        assert depth > 100
        assert Task.objects.count() == 0
    else:
        assert handle.get(0).ok == value


# Any text or value is refused by name or stored unchanged.

HOSTILE_CHARACTERS = st.sampled_from("\0\ud800\udfff\udbff\U0010ffff'\"\\{}%\x7f\x1f\ufffe\u2028") | st.characters()
HOSTILE_TEXTS = st.text(HOSTILE_CHARACTERS, max_size=8)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**30, max_value=10**60)
    | st.floats(max_value=1e15, min_value=-1e15)
    | st.sampled_from([float("nan"), float("inf"), float("-inf")])
    | HOSTILE_TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(HOSTILE_TEXTS, inner, max_size=4),
    max_leaves=8,
)


def is_storable(value):
    """Whether a value must be accepted, computed independently of the library."""
    match value:
        case str():
            return not any(one == "\0" or 0xD800 <= ord(one) <= 0xDFFF for one in value)
        case float():
            return value - value == 0
        case dict():
            return all(is_storable(key) and is_storable(item) for key, item in value.items())
        case list():
            return all(map(is_storable, value))
    return True


@pytest.mark.slow
@pytest.mark.django_db
@given(value=VALUES, by_name=st.booleans())
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_value_is_refused_by_name_or_stored_unchanged(value, by_name):
    before = Task.objects.count()
    args, kwargs = ([], {"value": value}) if by_name else ([value], {})

    if not is_storable(value):
        with transaction.atomic(), pytest.raises(ValueError, match="argument 'value'"):
            jobs.identity.send(*args, **kwargs)
        assert Task.objects.count() == before
        return
    handle = jobs.identity.send(*args, **kwargs)

    row = Task.objects.get(pk=handle.id)
    assert (row.args, row.kwargs) == (args, kwargs)


@pytest.mark.django_db
@given(name=HOSTILE_TEXTS | st.text(string.ascii_letters, min_size=1))
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_argument_name_is_refused_or_stored_unchanged(name):
    before = Task.objects.count()

    if not is_storable(name):
        with transaction.atomic(), pytest.raises(ValueError, match="argument"):
            jobs.anything.send(**{name: 1})
        assert Task.objects.count() == before
        return
    handle = jobs.anything.send(**{name: 1})

    assert Task.objects.get(pk=handle.id).kwargs == {name: 1}


@pytest.mark.django_db
def test_large_floats_are_read_back_as_equal_numbers():
    values = [1e15, 1.5, -0.0, 5e-324, 1e16, 1.7976931348623157e308]

    jobs.identity.send(values)

    (stored,) = Task.objects.get().args
    assert [float(one) for one in stored] == values
    if connection.vendor == "sqlite":
        assert stored == values


def test_a_task_defined_inside_a_function_is_refused():
    def inner():
        pass

    with pytest.raises(Exception, match="module"):
        task(inner)
