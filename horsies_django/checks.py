"""System checks of workflows, schedules, queues and modules that the project's apps register."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from django.core import checks
from django.core.checks import CheckMessage, Error
from django.urls import get_resolver


def check_workflows(**kwargs: Any) -> list[CheckMessage]:
    """Return an error for each mistake in the imported workflows.

    Returns none while the settings of a backend have errors, which each workflow would repeat.
    """
    from .workflows.registry_check import find_errors

    if _have_settings_problems():
        return []
    return [Error(str(mistake), hint=mistake.hint, obj=None, id="horsies.E004") for mistake in find_errors()]


def check_schedules(**kwargs: Any) -> list[CheckMessage]:
    """Return an error for each mistake in the declared schedules, and a warning for what cron reads differently.

    Returns none while the settings of a backend have errors.
    """
    from .schedules.validation import declaration_problems

    if _have_settings_problems():
        return []
    kinds = {
        "horsies.E005": (Error, "See the page on schedules."),
        "horsies.E006": (Error, "Rename one of the two."),
        "horsies.W011": (checks.Warning, "Write it so that both agree, or silence this check."),
    }
    problems = ((*kinds[check_id], check_id, sentence) for check_id, sentence in declaration_problems())
    return [kind(sentence, hint=hint, obj=None, id=check_id) for kind, hint, check_id, sentence in problems]


def _have_settings_problems() -> bool:
    from .core.backends import all_backends

    return any(backend.parsed.problems for backend in all_backends())


def check_queues(**kwargs: Any) -> list[CheckMessage]:
    """Return an error for each task of an app with a queue that its backend does not have."""
    from .core.backends import loading

    return [Error(str(problem), hint=problem.hint, obj=None, id="horsies.E010") for problem in loading.problems]


def check_modules(**kwargs: Any) -> list[CheckMessage]:
    """Return a warning for each module that registers tasks but that a worker may never import."""
    from .core.registry import registry

    _load_urlconf()
    modules = {registry.tasks[name].func.__module__ for name in registry.late & registry.tasks.keys()}
    return [
        checks.Warning(
            f"{name} registers tasks and is imported only after Django has started: a worker may not know them.",
            hint=f"Add {name!r} to OPTIONS['modules'], or import it in a tasks.py.",
            obj=None,
            id="horsies.W008",
        )
        for name in sorted(modules)
    ]


def _load_urlconf() -> None:
    """Load the URLconf, which imports views and their modules: they may register tasks."""
    with suppress(Exception):  # Django's own checks report errors of the URLconf
        get_resolver().url_patterns  # noqa: B018  # the property loads it
