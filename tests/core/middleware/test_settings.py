"""Valid and invalid values of OPTIONS["middleware"]."""

import sys

import pytest
from django.core.exceptions import ImproperlyConfigured

from horsies_django.core.compat import default_task_backend
from horsies_django.middleware import ContextMiddleware
from tests.core.middleware import jobs

pytestmark = pytest.mark.once


def messages():
    return [(error.id, error.msg) for error in default_task_backend.check() if error.id.startswith("horsies.E")]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", "'tests.core.middleware.samples.missing' can't be imported: "),
        ("NOTHING", "'tests.core.middleware.samples.NOTHING' is int; allowed: a function or a class"),
        ("Neither", "'tests.core.middleware.samples.Neither' is neither sync_capable nor async_capable"),
        ("Mute", "'tests.core.middleware.samples.Mute' has headers that can't be called"),
        ("no.such.module", "'no.such.module' can't be imported: No module named 'no'"),
    ],
)
def test_the_checks_name_an_invalid_middleware(middleware, name, message):
    middleware("outer", name, "both")

    ((code, text),) = messages()

    assert code == "horsies.E002"
    assert text.startswith("TASKS['default']['OPTIONS']['middleware']: middleware ")
    assert message in text


@pytest.mark.parametrize("value", ["tests.core.middleware.samples.outer", {"a.b"}, ["outer"], [5], 5, None], ids=repr)
def test_middleware_that_is_not_a_list_of_dotted_paths_is_rejected(settings, value):
    default = settings.TASKS["default"]
    settings.TASKS = {"default": {**default, "OPTIONS": {**default["OPTIONS"], "middleware": value}}}

    ((code, text),) = messages()

    assert code == "horsies.E002"
    assert text == (
        f"TASKS['default']['OPTIONS']['middleware'] is {value!r}; allowed: a list of dotted paths, the outermost first."
    )
    with pytest.raises(ImproperlyConfigured):
        jobs.look.send()


def test_valid_middleware_passes_the_checks(middleware):
    middleware("outer", "both", "only_async", "TenantMiddleware", "horsies_django.middleware.LocaleMiddleware")

    assert messages() == []


@pytest.mark.django_db
def test_the_first_send_imports_middleware(middleware):
    middleware("tests.core.middleware.imported_lazily.pass_through")
    job = jobs.look.with_options(priority=3)

    assert "tests.core.middleware.imported_lazily" not in sys.modules
    job.send()
    assert "tests.core.middleware.imported_lazily" in sys.modules


def test_a_context_middleware_without_within_raises_not_implemented():
    with pytest.raises(NotImplementedError, match="ContextMiddleware has to override within"):
        ContextMiddleware(lambda call: None)(None)
