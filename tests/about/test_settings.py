"""``OPTIONS["about"]``: which models it may name."""

from __future__ import annotations

import pytest
from django.core import checks

from horsies_django.core.compat import InvalidTask
from tests.about.jobs import touch
from tests.about.models import Order

pytestmark = pytest.mark.django_db


#: The errors of options, and of models whose rows can have no tasks.
CODES = {"horsies.E001", "horsies.E002", "horsies.E013"}


@pytest.fixture
def errors(settings):
    """Return a function that returns the errors of these options."""

    def check(**options):
        backend = {"BACKEND": "horsies_django.backend.HorsiesBackend", "QUEUES": [], "OPTIONS": options}
        settings.TASKS = {"default": backend}
        return [(error.id, error.msg, error.hint) for error in checks.run_checks() if error.id in CODES]

    return check


@pytest.mark.parametrize(
    ("label", "words", "hint"),
    [
        (
            "about.Oder",
            "has 'about.Oder'; allowed: labels of models, like 'shop.Order'.",
            "Did you mean 'about.Order'?",
        ),
        ("x", "has 'x'; allowed: labels of models, like 'shop.Order'.", "See the page on tasks about rows."),
        (
            "about.order",
            "has 'about.order'; allowed: labels of models, like 'shop.Order'.",
            "Did you mean 'about.Order'?",
        ),
        (
            "about.RushOrder",
            "has 'about.RushOrder', whose tasks are about the row of about.Order; allowed: 'about.Order'.",
            "See the page on tasks about rows.",
        ),
        (
            "about.Restaurant",
            "has 'about.Restaurant', whose tasks are about the row of about.Place; allowed: 'about.Place'.",
            "See the page on tasks about rows.",
        ),
        (
            "about.Day",
            ": about.Day has a key of DateField; allowed: keys of integers, texts and UUIDs.",
            "See the page on tasks about rows.",
        ),
    ],
)
def test_a_model_whose_rows_can_have_no_tasks_is_named_with_the_one_to_use(errors, label, words, hint):
    where = "TASKS['default']['OPTIONS']['about']"
    space = "" if words.startswith(":") else " "

    assert errors(about={label: {"on_delete": "cancel"}}) == [("horsies.E013", f"{where}{space}{words}", hint)]


@pytest.mark.parametrize("value", [["about.Order"], {7: {}}, "about.Order"])
def test_options_that_are_no_dict_by_label_are_named(errors, value):
    ((code, message, _hint),) = errors(about=value)

    assert code == "horsies.E002"
    assert message.startswith(f"TASKS['default']['OPTIONS']['about'] is {value!r}; allowed: a dict of a model's label")


def test_models_are_cancelled_unless_they_say_otherwise(errors):
    assert errors(about={"about.Order": {}, "about.Seat": {"on_delete": "keep"}}) == []


class Elsewhere:
    """Sends orders to another database than the queue."""

    def db_for_write(self, model, **hints):
        return "elsewhere" if model is Order else None


def test_a_model_in_another_database_than_the_queue_is_refused(errors, settings):
    order = Order.objects.create()
    settings.DATABASE_ROUTERS = [Elsewhere()]

    ((code, message, _hint),) = errors(about={"about.Order": {}})
    with pytest.raises(InvalidTask) as raised:
        touch.about(order)

    words = "about.Order is in the database 'elsewhere' and the queue in 'default'; allowed: models in 'default'."
    assert (code, message) == ("horsies.E013", f"TASKS['default']['OPTIONS']['about']: {words}")
    assert str(raised.value) == f"about(): {words}"
