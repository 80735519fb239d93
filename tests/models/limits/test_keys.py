"""Limit keys of calls, and the options that a task may have."""

import pytest

from horsies_django import Gather, task
from horsies_django.core.compat import InvalidTask
from horsies_django.core.parameters import parameters_of
from horsies_django.enqueue.call_keys import limit_key_of
from tests.jobs import limited

pytestmark = pytest.mark.once


def key(job, *args, **kwargs):
    return limit_key_of(job, parameters_of(job.func, job.takes_context), args, kwargs)


def make_task(**options):
    def body(customer, order=None): ...

    body.__qualname__ = "body"
    return task(**options)(body)


def test_a_limit_key_begins_with_the_name_of_its_task():
    assert key(limited.two_per_user, "7") == "tests.jobs.limited.two_per_user:7"


def test_a_limit_key_uses_positional_keyword_and_default_arguments():
    job = make_task(concurrency_key="{customer}-{order}", max_concurrency=1)

    keys = [key(job, 7, "a"), key(job, customer=7, order="a"), key(job, 7)]

    assert [limit_key.split(":")[1] for limit_key in keys] == ["7-a", "7-a", "7-None"]


def test_tasks_with_the_same_concurrency_scope_share_a_limit_key():
    order = {"customer": "acme"}

    assert key(limited.ship, order) == key(limited.invoice, order=order) == "orders:acme"


def test_calls_of_a_task_without_concurrency_key_share_one_limit_key():
    assert key(limited.alone) == "tests.jobs.limited.alone"


def test_a_concurrency_key_callable_can_exempt_a_call_from_the_limit():
    assert key(limited.one_per_user, "7") == "tests.jobs.limited.one_per_user:7"
    assert key(limited.one_per_user, "") is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_concurrency": 0}, "max_concurrency is 0; allowed: a whole number from 1 on"),
        ({"max_concurrency": True}, "max_concurrency is True"),
        ({"rate_limit": "often"}, "rate_limit: 'often' is not a rate"),
        ({"concurrency_key": "{customer}"}, "but there is no limit; allowed: with max_concurrency, rate_limit or both"),
        ({"concurrency_scope": "orders"}, "but there is no limit"),
        ({"concurrency_key": "{client}", "max_concurrency": 1}, "names 'client'; allowed: the parameters customer, or"),
        ({"concurrency_key": "{customer", "max_concurrency": 1}, "which is not a valid format string"),
        ({"concurrency_key": 7, "max_concurrency": 1}, "concurrency_key is 7; allowed: a text like"),
        ({"concurrency_key": "", "max_concurrency": 1}, "concurrency_key is ''; allowed: a text like"),
        ({"concurrency_scope": "", "max_concurrency": 1}, "concurrency_scope is ''; allowed: a text of 1 to 100"),
    ],
)
def test_an_invalid_limit_option_is_refused_by_the_decorator(options, message):
    with pytest.raises(InvalidTask, match=message.replace("(", r"\(")):
        make_task(**options)


@pytest.mark.parametrize(
    ("job", "args", "error", "message"),
    [
        (limited.two_per_user, ["x" * 300], ValueError, "allowed: 1 to 223 characters"),
        (limited.two_per_user, ["a\0b"], ValueError, "allowed: 1 to 223 characters"),
        (limited.ship, [{}], ValueError, "which this call can't fill: KeyError"),
        (
            make_task(concurrency_key=lambda customer: 7, max_concurrency=1),
            [1],
            TypeError,
            "gave 7; allowed: a text, or None",
        ),
    ],
)
def test_a_call_with_an_invalid_limit_key_is_refused(job, args, error, message):
    with pytest.raises(error, match=message):
        key(job, *args)


def test_a_gathered_task_with_a_limit_is_refused_by_the_decorator():
    with pytest.raises(InvalidTask, match="gather is set; allowed with it: neither max_concurrency nor rate_limit"):
        make_task(gather=Gather("{customer}"), max_concurrency=1)
