"""Loading: the modules that register tasks and workflows are imported once, while Django starts."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import module_has_submodule

from .compat import FrameworkTask, task_backends
from .conf import Problem


class Loading:
    """Whether Django is starting, and the tasks that are for a queue which their backend does not have.

    Meanwhile such a task raises nothing: a system check tells of all of them at once, in place of a traceback of the
    first. To send one raises InvalidTask all the same.
    """

    def __init__(self) -> None:
        self.is_going_on = False
        self.problems: list[Problem] = []

    def note_queue(self, task: FrameworkTask[..., Any], queues: set[str]) -> None:
        """Note that a task is for a queue that is not among these, unless these are but the letters of one name."""
        if isinstance(task_backends.settings[task.backend].get("QUEUES"), str):
            return  # a check tells of that
        name, known = task.queue_name, sorted(queues)
        near = difflib.get_close_matches(str(name), known, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else "Add the name to QUEUES, or give the task another queue."
        allowed = f"the QUEUES of TASKS[{task.backend!r}], {', '.join(known)}"
        problem = Problem(f"queue_name of {task.module_path}", name, allowed, hint)
        if problem not in self.problems:
            self.problems.append(problem)


loading: Final = Loading()

#: Modules of each app that are imported.
OF_APPS = ("tasks", "workflows")


def load_modules() -> None:
    """Import ``tasks.py`` and ``workflows.py`` of each app, and the modules of each backend's ``OPTIONS["modules"]``.

    Raises ImproperlyConfigured, naming the module, for one that does not exist or that calls ``sys.exit()``; another
    error of a module is raised as it is, with a note that names the module.
    """
    from .workflows import internal  # noqa: F401  # the tasks of the engine itself

    loading.is_going_on = True
    try:
        _import_modules()
    finally:
        loading.is_going_on = False


def _import_modules() -> None:
    for name, why in _modules():
        try:
            import_module(name)
        except SystemExit as error:
            raise ImproperlyConfigured(
                f"{name} called sys.exit({error.code!r}) while it was imported ({why})."
            ) from error
        except Exception as error:
            error.add_note(f"horsies_django imports {name} when Django starts ({why}).")
            raise


def _modules() -> Iterator[tuple[str, str]]:
    """Yield the name of each module, and why it is imported."""
    for config in apps.get_app_configs():
        for name in OF_APPS:
            if config.module is not None and module_has_submodule(config.module, name):
                yield f"{config.name}.{name}", f"{config.name!r} is in INSTALLED_APPS"
    for alias, stored in task_backends.settings.items():
        if isinstance(stored.get("OPTIONS"), dict) and stored["OPTIONS"].get("modules"):
            yield from _modules_of(alias)


def _modules_of(alias: str) -> Iterator[tuple[str, str]]:
    from .backend import HorsiesBackend

    backend = task_backends[alias]
    if not isinstance(backend, HorsiesBackend):
        return
    for name in backend.parsed.options.modules:
        where = f"TASKS[{alias!r}]['OPTIONS']['modules']"
        if not _is_found(name):
            raise ImproperlyConfigured(f"{where} has {name!r}; there is no such module.")
        yield name, f"it is in {where}"


def _is_found(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of a package that it would be in
        return False
