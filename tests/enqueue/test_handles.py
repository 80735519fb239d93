"""``send_many()`` returns an immutable sequence of handles that makes them when they are asked for."""

import pickle

import pytest

from horsies_django import TaskHandle, Unique
from tests.enqueue import jobs
from tests.enqueue.dedupe.jobs import note

pytestmark = pytest.mark.django_db


def test_handles_are_read_as_those_of_a_list_are():
    handles = jobs.triple.send_many({"a": number} for number in range(5))

    listed = list(handles)
    assert len(handles) == len({handle.id for handle in listed}) == 5
    assert [handles[place] for place in range(-5, 5)] == listed + listed
    assert handles[1:4] == listed[1:4]
    assert handles[::-2] == listed[::-2]
    assert list(reversed(handles)) == listed[::-1]
    assert handles.index(listed[3]) == 3
    for place in (5, -6):
        with pytest.raises(IndexError):
            handles[place]


def test_handles_contain_those_of_their_tasks_alone():
    handles = jobs.triple.send_many({"a": number} for number in range(3))

    assert TaskHandle(handles[2].id) in handles
    assert jobs.triple.send(3) not in handles
    assert TaskHandle(handles[2].id, backend="other") not in handles
    assert handles[2].id not in handles


def test_handles_equal_any_sequence_of_the_same_handles():
    handles = jobs.triple.send_many({"a": number} for number in range(3))
    others = jobs.triple.send_many({"a": number} for number in range(3))

    for same in (list(handles), tuple(handles), pickle.loads(pickle.dumps(handles))):
        assert handles == same
        assert same == handles
    for other in (others, list(others), handles[:2], handles[::-1], [], "abc", None, {*handles}):
        assert handles != other
        assert other != handles


def test_the_sum_of_handles_and_others_is_a_list():
    first = jobs.triple.send_many({"a": number} for number in range(2))
    second = jobs.triple.send_many({"a": number} for number in range(3))
    one = jobs.triple.send(3)

    assert first + second == [*first, *second]
    assert [one] + first == [one, *first]  # noqa: RUF005  # the sum is the test


def test_no_handles_equal_an_empty_list():
    handles = jobs.triple.send_many([])

    assert handles == []
    assert not handles


def test_handles_cannot_be_changed():
    handles = jobs.triple.send_many([{"a": 1}])

    for name in ("append", "extend", "insert", "pop", "sort", "__setitem__", "__delitem__"):
        assert not hasattr(handles, name)


def test_the_text_of_handles_is_short():
    assert repr(jobs.triple.send_many({"a": number} for number in range(3))) == "<TaskHandles: 3>"


def test_each_handle_says_whether_its_send_was_replayed():
    job = note.with_options(unique=Unique(by=("name",)))
    taken = job.send(name="b")

    handles = job.send_many({"name": name} for name in "abca")

    assert [handle.replayed for handle in handles] == [False, True, False, True]
    assert (handles[1], handles[3]) == (taken, handles[0])
