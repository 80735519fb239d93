"""Which key a call has, and what the options may be."""

import pytest

from horsies_django import Gather, task
from horsies_django.core.compat import InvalidTask
from horsies_django.enqueue.call_builder import parameters_of
from horsies_django.enqueue.limits import key_of
from tests.jobs import limited

pytestmark = pytest.mark.once


def key(of, *args, **kwargs):
    return key_of(of, parameters_of(of.func, of.takes_context), args, kwargs)


def made(**options):
    def body(customer, order=None): ...

    body.__qualname__ = "body"
    return task(**options)(body)


def test_a_key_is_in_the_scope_of_its_task():
    assert key(limited.two_of, "7") == "tests.jobs.limited.two_of:7"


def test_a_key_is_filled_from_arguments_by_place_by_name_and_by_default():
    of = made(concurrency_key="{customer}-{order}", max_concurrency=1)

    keys = [key(of, 7, "a"), key(of, customer=7, order="a"), key(of, 7)]

    assert [found.split(":")[1] for found in keys] == ["7-a", "7-a", "7-None"]


def test_tasks_of_one_scope_share_a_limit():
    order = {"customer": "acme"}

    assert key(limited.ship, order) == key(limited.invoice, order=order) == "orders:acme"


def test_without_a_key_all_calls_of_the_task_share_the_limit():
    assert key(limited.alone) == "tests.jobs.limited.alone"


def test_a_callable_may_say_that_a_call_has_no_limit():
    assert key(limited.one_of, "7") == "tests.jobs.limited.one_of:7"
    assert key(limited.one_of, "") is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_concurrency": 0}, "max_concurrency is 0; allowed: a whole number from 1 on"),
        ({"max_concurrency": True}, "max_concurrency is True"),
        ({"rate_limit": "often"}, "rate_limit: 'often' is no rate"),
        ({"concurrency_key": "{customer}"}, "but there is no limit; allowed: with max_concurrency, rate_limit or both"),
        ({"concurrency_scope": "orders"}, "but there is no limit"),
        ({"concurrency_key": "{client}", "max_concurrency": 1}, "names 'client'; allowed: the parameters customer, or"),
        ({"concurrency_key": "{customer", "max_concurrency": 1}, "which is not a valid format string"),
        ({"concurrency_key": 7, "max_concurrency": 1}, "concurrency_key is 7; allowed: a text like"),
        ({"concurrency_key": "", "max_concurrency": 1}, "concurrency_key is ''; allowed: a text like"),
        ({"concurrency_scope": "", "max_concurrency": 1}, "concurrency_scope is ''; allowed: a text of 1 to 100"),
    ],
)
def test_a_bad_option_is_named_when_the_task_is_made(options, said):
    with pytest.raises(InvalidTask, match=said.replace("(", r"\(")):
        made(**options)


@pytest.mark.parametrize(
    ("of", "args", "error", "said"),
    [
        (limited.two_of, ["x" * 300], ValueError, "allowed: 1 to 229 characters"),
        (limited.two_of, ["a\0b"], ValueError, "allowed: 1 to 229 characters"),
        (limited.ship, [{}], ValueError, "which this call can't fill: KeyError"),
        (
            made(concurrency_key=lambda customer: 7, max_concurrency=1),
            [1],
            TypeError,
            "gave 7; allowed: a text, or None",
        ),
    ],
)
def test_a_call_without_a_good_key_is_refused_where_it_is_sent(of, args, error, said):
    with pytest.raises(error, match=said):
        key(of, *args)


def test_gathered_calls_can_have_no_limit():
    with pytest.raises(InvalidTask, match="gather is set; allowed with it: neither max_concurrency nor rate_limit"):
        made(gather=Gather("{customer}"), max_concurrency=1)
