"""System checks of one backend: its settings and its database."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router

from ..core.backends import all_backends
from ..core.compat import task_backends
from ..core.middleware import load_factory
from ..core.options import QueueOptions
from ..core.read_settings import Parsed, backend_problems
from ..db.check_database import database_problem
from ..db.connection import identity_of, pool_size
from ..db.row_key import model_of, problem_of_model, root_model

if TYPE_CHECKING:
    from ..core.options import Options

#: The error for a backend without the app in INSTALLED_APPS, and its hint.
NOT_INSTALLED: Final = "TASKS['%s'] uses HorsiesBackend, but 'horsies_django' is not in INSTALLED_APPS."
INSTALL: Final = "Add 'horsies_django' to INSTALLED_APPS and run migrate."


def check_backend(alias: str, parsed: Parsed) -> list[CheckMessage]:
    """Return a message for each problem of one backend's settings and of its database."""
    messages: list[CheckMessage] = [
        Error(
            str(problem),
            hint=problem.hint,
            obj=alias,
            id="horsies.E002" if not problem.unknown_key else "horsies.E001",
        )
        for problem in (*backend_problems(alias, task_backends.settings.get(alias, {})), *parsed.problems)
    ]
    messages += _check_middleware(alias, parsed.options.middleware)
    if not apps.is_installed("horsies_django"):
        messages.append(
            Error(
                NOT_INSTALLED % alias,
                hint=INSTALL,
                obj=alias,
                id="horsies.E003",
            )
        )
    messages += _check_order(alias, parsed.options)
    messages += _check_listen_database(alias, parsed.options)
    messages += _check_about(alias, parsed.options)
    if parsed.options.database in settings.DATABASES:
        if apps.is_installed("horsies_django"):
            messages += _check_router(alias, parsed.options.database)
        messages += check_database_settings(parsed.options.database, parsed.options.worker.threads)
    return messages


def _check_router(alias: str, database: str) -> Iterator[CheckMessage]:
    """Yield an error if managers use a database that no backend has. With several, they use one of these."""
    from ..models import Task

    used = router.db_for_write(Task)
    if used != database and used not in {backend.parsed.options.database for backend in all_backends()}:
        yield Error(
            f"TASKS['{alias}']['OPTIONS']['database'] is {database!r}, and DATABASE_ROUTERS send the queue's models to "
            f"{used!r}: migrate and Task.objects use other tables than workers.",
            hint="Set DATABASE_ROUTERS = ['horsies_django.routers.QueueRouter'], or remove 'database'.",
            obj=alias,
            id="horsies.E011",
        )


def _check_listen_database(alias: str, options: Options) -> Iterator[CheckMessage]:
    """Yield an error if ``listen_database`` can't receive the notifications of the queue's database."""
    if not options.listen_database or not {options.listen_database, options.database} <= settings.DATABASES.keys():
        return
    where = f"TASKS['{alias}']['OPTIONS']['listen_database'] is {options.listen_database!r}"
    if database_problem(options.listen_database) or database_problem(options.database):
        return
    own, queue = connections[options.listen_database], connections[options.database]
    own_identity, identity = (identity_of(connection.settings_dict) for connection in (own, queue))
    differing = {key for key in {*own_identity, *identity} if own_identity.get(key) != identity.get(key)}
    if own.vendor != "postgresql" or own.vendor != queue.vendor:
        problem = f"{where}, and the two are {own.display_name} and {queue.display_name}; allowed: PostgreSQL."
    elif own.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"):
        problem = f"{where}, whose DISABLE_SERVER_SIDE_CURSORS says that it is behind a pooler, where LISTEN fails."
    elif differing and differing <= {"NAME", "OPTIONS dbname"}:
        problem = f"{where}, which is another database than {options.database!r}: no notification arrives there."
    else:
        return
    hint = "Name an alias that leads to the same database without a pooler, or remove it."
    yield Error(problem, hint=hint, obj=alias, id="horsies.E012")


def _check_about(alias: str, options: Options) -> Iterator[CheckMessage]:
    """Yield an error for each model whose rows no task can be about."""
    where = f"TASKS['{alias}']['OPTIONS']['about']"
    for label in options.about:
        hint = "See the page on tasks about rows."
        if (model := model_of(label)) is None:
            problem = f"{where} has {label!r}; allowed: labels of models, like 'shop.Order'."
            if near := difflib.get_close_matches(label, [model._meta.label for model in apps.get_models()], n=1):
                hint = f"Did you mean {near[0]!r}?"
        elif label != (root := root_model(model)._meta.label):
            problem = f"{where} has {label!r}, whose tasks are about the row of {root}; allowed: {root!r}."
        elif problem := problem_of_model(model, options.database):
            problem = f"{where}: {problem}"
        if problem:
            yield Error(problem, hint=hint, obj=alias, id="horsies.E013")


def _check_order(alias: str, options: Options) -> Iterator[CheckMessage]:
    """Yield a warning for each queue with a priority or weight that the workers' order ignores."""
    for name, queue in options.queues.items():
        for key, order in (("priority", "strict"), ("weight", "weighted")):
            value = getattr(queue, key)
            if value != QueueOptions.__dataclass_fields__[key].default and options.worker.order != order:
                where = f"TASKS['{alias}']['OPTIONS']"
                yield checks.Warning(
                    f"{where}['queues'][{name!r}]['{key}'] is {value!r}, which counts where the workers' order is "
                    f"{order!r} alone; it is {options.worker.order!r}.",
                    hint=f"Set {where}['worker']['order'] = {order!r}, or remove it.",
                    obj=alias,
                    id="horsies.W010",
                )


def _check_middleware(alias: str, paths: Iterable[str]) -> Iterator[CheckMessage]:
    for path in paths:
        try:
            load_factory(path)
        except ImproperlyConfigured as error:
            where = f"TASKS['{alias}']['OPTIONS']['middleware']"
            yield Error(f"{where}: {error}", hint="See the page on middleware.", obj=alias, id="horsies.E002")


def check_database_settings(alias: str, threads: int) -> Iterable[CheckMessage]:
    """Yield a message for each setting that makes a database unfit for a queue, or slow. Does not connect."""
    if problem := database_problem(alias):
        yield Error(problem[0], hint=problem[1] or None, obj=alias, id="horsies.E007")
        return
    connection = connections[alias]
    config = connection.settings_dict
    if connection.vendor == "sqlite":
        if not connection.is_in_memory_db():  # type: ignore[attr-defined]  # SQLite's own; no worker process reaches it
            yield from _check_sqlite(alias, config)
        return
    size = pool_size(alias)
    if size is not None and size < threads:
        yield checks.Warning(
            f"DATABASES['{alias}'] has a pool of {size} connections, and a runner has {threads} threads: bodies wait "
            "for each other's connections.",
            hint=f"Set OPTIONS['pool'] = {{'max_size': {threads}}} or more, or use fewer worker threads.",
            obj=alias,
            id="horsies.W005",
        )
    if (config.get("CONN_MAX_AGE") != 0 or size is not None) and not config.get("CONN_HEALTH_CHECKS"):
        yield checks.Warning(
            f"DATABASES['{alias}'] keeps its connections and never checks them: after the server was restarted, the "
            "first request on each of them fails.",
            hint="Set CONN_HEALTH_CHECKS = True.",
            obj=alias,
            id="horsies.W004",
        )


def _check_sqlite(alias: str, config: dict[str, Any]) -> Iterator[CheckMessage]:
    options = config.get("OPTIONS", {})
    if options.get("transaction_mode") not in ("IMMEDIATE", "EXCLUSIVE"):
        yield checks.Warning(
            f"DATABASES['{alias}'] is SQLite with deferred transactions: code that reads and then writes in one "
            "transaction fails as soon as a worker writes in between.",
            hint="Set OPTIONS['transaction_mode'] = 'IMMEDIATE'.",
            obj=alias,
            id="horsies.W002",
        )
    if "journal_mode" not in str(options.get("init_command", "")).lower():
        yield checks.Warning(
            f"DATABASES['{alias}'] is SQLite without write-ahead logging: readers block writers.",
            hint="Set OPTIONS['init_command'] = 'PRAGMA journal_mode=WAL;'.",
            obj=alias,
            id="horsies.W003",
        )
