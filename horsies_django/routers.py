"""``QueueRouter`` for ``DATABASE_ROUTERS``: the queue's tables live in the database of ``OPTIONS["database"]``.

It is needed for a queue in a database of its own. There, ``Task.objects`` and every other manager of this package reads
and writes that database, and ``migrate --database`` creates the package's tables in it and no others.
"""

from __future__ import annotations

from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS, models

from .core.backends import all_backends

__all__ = ["QueueRouter"]

_APP: Final = "horsies_django"


class QueueRouter:
    """Routes the package's models, and leaves all others to other routers.

    Several backends may have different databases. Managers then read that of the first backend in ``TASKS``, unless
    ``using()`` names another.
    """

    def db_for_read(self, model: type[models.Model], **hints: Any) -> str | None:
        """Return the queue's database for our models."""
        if model._meta.app_label != _APP:
            return None
        instance = hints.get("instance")
        if isinstance(instance, models.Model) and instance._meta.app_label == _APP and instance._state.db:
            return instance._state.db
        return next(iter(_databases()), None)

    def db_for_write(self, model: type[models.Model], **hints: Any) -> str | None:
        """Return the queue's database for our models."""
        return self.db_for_read(model, **hints)

    def allow_relation(self, first: models.Model, second: models.Model, **hints: Any) -> bool | None:
        """Allow relations between our models in one database."""
        labels = {first._meta.app_label, second._meta.app_label}
        return first._state.db == second._state.db if labels == {_APP} else None

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        """Keep our tables in the queues' databases, and other tables out of those that are for queues alone."""
        databases = _databases()
        if app_label == _APP:
            return db in databases
        return False if db in databases and db != DEFAULT_DB_ALIAS else None


def _databases() -> list[str]:
    """Return the databases of all backends, in the order of ``TASKS``."""
    # A system check reports invalid OPTIONS; each query would here.
    databases = (str(backend.options.get("database", DEFAULT_DB_ALIAS)) for backend in all_backends())
    return list(dict.fromkeys(databases))
