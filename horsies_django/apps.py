"""The configuration of the Django app."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from django.apps import AppConfig, apps
from django.core.checks import register
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils.module_loading import module_has_submodule
from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from .management.environment import ServeMetrics
    from .models import Schedule
    from .models.subscribers import RunHandle


class HorsiesConfig(AppConfig):
    """The app config: imports the modules with tasks and workflows, and registers the system checks."""

    name = "horsies_django"
    verbose_name = _("Background tasks")
    default_auto_field = "django.db.models.BigAutoField"

    def __init__(self, app_name: str, app_module: Any) -> None:
        """Raise ImproperlyConfigured, with what to install, if the default database's driver can't be loaded.

        Django itself raises only later, when it imports models, and with a less helpful message.
        """
        super().__init__(app_name, app_module)
        try:
            connections[DEFAULT_DB_ALIAS]  # loads the driver and does not connect
        except ImproperlyConfigured as error:
            from .db.check_database import check_database

            try:
                check_database(DEFAULT_DB_ALIAS)
            except ImproperlyConfigured as clearer:
                if sys.argv[1:] and sys.argv[1].startswith("horsies_"):
                    sys.exit(str(clearer))  # one line; Django would print a traceback
                raise clearer from error

    def ready(self) -> None:
        """Import tasks and workflows, and register the checks.

        Imports the task framework as well: Django doesn't, and would skip its checks without a message.
        """
        from . import checks
        from .core import compat  # noqa: F401  # imported for its side effects
        from .core.printable import sanitize_logs
        from .models.about import listen_to_deletes

        sanitize_logs()
        subscribe()
        load_modules()
        listen_to_deletes()
        register(checks.check_workflows)
        register(checks.check_schedules)
        register(checks.check_modules)
        register(checks.check_queues)
        if _serves_by_runserver():
            _start_embedded_workers()

    def load_metrics_server(self) -> ServeMetrics:
        """Return the function that serves a worker's metrics. Raises ImproperlyConfigured if its library is missing."""
        from .extras.prometheus.worker_server import serve

        return serve


def _serves_by_runserver() -> bool:
    """Whether ``runserver`` serves requests in this process, which is not the parent that watches the code."""
    is_child = os.environ.get("RUN_MAIN") == "true" or "--noreload" in sys.argv
    return sys.argv[1:2] == ["runserver"] and is_child


def _start_embedded_workers() -> None:
    from .core.backends import all_backends

    for backend in all_backends():
        if backend.parsed.options.embedded.when and not backend.parsed.problems:  # otherwise runserver shows them
            from .worker.embedded import start_under_runserver  # only here, because it imports all of the worker

            start_under_runserver(backend.alias, backend.parsed.options.embedded.threads)


def subscribe() -> None:
    """Set the functions of higher layers that models call."""
    from .enqueue.send_signals import ended_after_commit
    from .models.subscribers import subscribers
    from .workflows import gateway

    subscribers.follow_nodes = gateway.lock_then_advance
    subscribers.retry_nodes = gateway.retry_nodes
    subscribers.send_ended = ended_after_commit
    subscribers.schedule_problems = _schedule_problems
    subscribers.run_schedule = _run_schedule


def _schedule_problems(row: Schedule) -> Mapping[str, list[str]]:
    from .schedules.validation import problems_of  # only here, because it imports the compiler of workflows

    return problems_of(row)


def _run_schedule(row: Schedule) -> RunHandle:
    from .schedules.dispatch import run_now  # only here, because it imports the compiler of workflows

    return run_now(row)


#: The modules that are imported from each app.
OF_APPS: Final = ("tasks", "workflows")


def load_modules() -> None:
    """Import ``tasks.py`` and ``workflows.py`` of each app, and the modules of each backend's ``OPTIONS["modules"]``.

    Raises ImproperlyConfigured, naming the module, if it does not exist or calls ``sys.exit()``. Any other error of a
    module is raised unchanged, with a note that names the module.
    """
    from .core.backends import loading
    from .workflows import engine_tasks  # noqa: F401  # the tasks of the engine itself

    loading.is_active = True
    try:
        _import_modules()
    finally:
        loading.is_active = False


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
    """Yield the name of each module and why it is imported."""
    from .core.compat import task_backends

    for config in apps.get_app_configs():
        for name in OF_APPS:
            if config.module is not None and module_has_submodule(config.module, name):
                yield f"{config.name}.{name}", f"{config.name!r} is in INSTALLED_APPS"
    for alias, stored in task_backends.settings.items():
        if isinstance(stored.get("OPTIONS"), dict) and stored["OPTIONS"].get("modules"):
            yield from _modules_of(alias)


def _modules_of(alias: str) -> Iterator[tuple[str, str]]:
    from .core.compat import task_backends
    from .enqueue.backend import HorsiesBackend

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
    except ModuleNotFoundError:  # a parent package does not exist
        return False
