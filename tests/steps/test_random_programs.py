"""Random programs do what a plain interpreter does, wherever they die, wait, are cancelled or are retried."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from horsies_django import TaskStatus
from horsies_django.db.now import Now
from horsies_django.models import Task, TaskStep
from horsies_django.testing import run
from tests.jobs.models import Entry
from tests.steps import scripts
from tests.steps.programs import Actual, Plain, programs

pytestmark = pytest.mark.django_db

FEW = settings(
    phases=[Phase.explicit, Phase.generate],
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
MANY = settings(FEW, max_examples=400)

FAULTS = st.fixed_dictionaries(
    {
        "crashes": st.sets(st.integers(1, 40), max_size=4),
        "cancels": st.sets(st.integers(1, 6), max_size=2),
        "sent": st.integers(0, 2),
        "retries": st.integers(0, 1),
    }
)


def check(program, *, crashes, cancels, sent, retries, is_async):
    plain = Plain(sent)
    plain.run(program)
    actual = Actual(program, crashes)
    scripts.bodies.append(actual.abody if is_async else actual.body)
    handle = (scripts.ascripted if is_async else scripts.scripted).send()
    for number in range(1, sent + 1):
        assert handle.send_event("go", number)

    result = finish(handle, set(cancels), retries)

    written = [key.split()[1] for key in keys_of(handle)]
    error = None if result.is_ok() else str(result.err_value.error_code)
    assert (error or result.ok) == plain.result
    firsts = list(dict.fromkeys(written))
    assert sorted(firsts) == sorted(plain.effects)
    assert in_order(firsts, plain.gathered) == in_order(plain.effects, plain.gathered)
    again = {key for key, count in Counter(written).items() if count > 1}
    assert not again & plain.atomic


def keys_of(handle):
    return Entry.objects.filter(key__startswith=f"{handle.id} ").order_by("pk").values_list("key", flat=True)


def in_order(keys, gathered):
    """Return effects with one name for those that were gathered, which have no order."""
    return [next((min(group) for group in gathered if key in group), key) for key in keys]


def finish(handle, cancels, retries):
    """Run a task to its end: let its waits end, send what it waits for, and retry what died without progress."""
    waits = 0
    while True:
        row = Task.objects.get(pk=handle.id)
        assert row.claim < 100, "it makes no progress"
        if row.status == TaskStatus.PENDING:
            if row.waits_for is not None:
                waits += 1
                if waits in cancels:
                    assert handle.cancel()
                    continue
                end_wait(handle)
            if handle.status() == TaskStatus.PENDING:
                run(handle)
        elif row.status == TaskStatus.CANCELLED or row.error_code == "WORKER_CRASHED":
            assert handle.retry()
        elif row.status == TaskStatus.FAILED and retries:
            retries -= 1
            assert handle.retry()
        else:
            return handle.get(0)


def end_wait(handle):
    """End what a task waits for: send the event, unless it has a time-out, or make it due."""
    waits = TaskStep.objects.filter(task=handle.id, status="WAITING")
    if (wait := waits.filter(kind="event", due_at=None).first()) is not None:
        assert handle.send_event("go", wait.number)
    waits.update(due_at=Now())


@given(programs(), FAULTS)
@FEW
@pytest.mark.slow
def test_a_function_does_what_the_plain_interpreter_does(program, faults):
    check(program, **faults, is_async=False)


@pytest.mark.slow
@given(programs(is_async=True), FAULTS)
@FEW
def test_a_coroutine_does_what_the_plain_interpreter_does(program, faults):
    check(program, **faults, is_async=True)


@pytest.mark.nightly
@given(programs(), FAULTS)
@MANY
def test_many_functions_do_what_the_plain_interpreter_does(program, faults):
    check(program, **faults, is_async=False)


@pytest.mark.nightly
@given(programs(is_async=True), FAULTS)
@MANY
def test_many_coroutines_do_what_the_plain_interpreter_does(program, faults):
    check(program, **faults, is_async=True)


#: Each kind of operation.
WHOLE = [
    ("step", "a", True),
    ("try", [("fail", "a", True)], [("step", "b", False), ("sleep", 3600)], [("step", "c", True)]),
    ("loop", 2, [("event", None), ("flaky", "b", True, 1, 60)]),
    ("branch", [("step", "a", True)], [("step", "c", False)]),
    ("try", [("event", 3600)], [("patched", [("step", "a", False)], [("raise",)])], None),
    ("step", "c", True),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_async", "points"),
    [
        pytest.param(False, range(1, 50, 4), id="every fourth point"),
        pytest.param(False, range(1, 50), id="function", marks=pytest.mark.nightly),
        pytest.param(True, range(1, 50), id="coroutine", marks=pytest.mark.nightly),
    ],
)
def test_a_program_that_dies_at_each_point_does_what_the_plain_interpreter_does(is_async, points):
    whole = [*WHOLE, ("gather", [("step", "a"), ("fail", "b"), ("step", "c")])] if is_async else WHOLE
    for turn, point in enumerate(points):
        check(whole, crashes={point, point + 5}, cancels={turn % 4}, sent=turn % 2, retries=0, is_async=is_async)


@pytest.mark.slow
@pytest.mark.sqlite
@given(st.permutations("abcdef"), st.integers(1, 4), st.integers(0, 3), st.booleans())
@FEW
def test_a_changed_program_ends_step_mismatch_and_runs_nothing_twice(names, sleep_at, changed_at, is_gone):
    steps = [("step", name, True) for name in names]
    before, after = steps[:sleep_at], steps[sleep_at:]
    changed_at %= sleep_at
    new = before[:changed_at] + ([] if is_gone else [("step", "new", True)]) + before[changed_at + is_gone :]
    actual = Actual([*before, ("sleep", 3600), *after], set())
    scripts.bodies.append(actual.body)
    handle = scripts.scripted.send()
    run(handle)
    written = list(keys_of(handle))
    assert len(written) == sleep_at

    actual.program = [*new, ("sleep", 3600), *after]
    result = finish(handle, set(), 0)

    assert result.err_value.error_code == "STEP_MISMATCH"
    assert list(keys_of(handle)) == written
