"""The database's now: the only clock of the package's SQL, which a test may move.

Only :mod:`horsies_django.testing` moves it. Otherwise the SQL is that of Django's own ``Now()``.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import functions
from django.db.models.sql.compiler import SQLCompiler
from django.utils.deconstruct import deconstructible

_UNMOVED: Final = timedelta()


class _Clock:
    """How far a test has moved the clock, for the whole process."""

    offset = _UNMOVED


_clock: Final = _Clock()


def offset() -> timedelta:
    """Return how far a test has moved the clock; zero outside of tests."""
    return _clock.offset


def is_moved() -> bool:
    """Whether a test has moved the clock."""
    return bool(_clock.offset)


def move_to(offset: timedelta) -> None:
    """Set the distance from the database's clock. SQL that was compiled before keeps the old one.

    Raises RuntimeError outside of a test run, which Django's test runner and pytest-django announce.
    """
    from django.test.utils import _TestState

    if offset and not hasattr(_TestState, "saved_data"):
        raise RuntimeError("Time travel is for tests: call django.test.utils.setup_test_environment() first.")
    _clock.offset = offset


@deconstructible(path="django.db.models.functions.datetime.Now")
class Now(functions.Now):
    """The database's clock at the begin of the statement. In a migration it is Django's own."""

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **context: Any) -> Any:
        """Render ``STATEMENT_TIMESTAMP()``; Django's own ``Now()`` of other databases is that of the transaction."""
        return self.as_sql(compiler, connection, template=postgres_now(), **context)

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **context: Any) -> Any:
        """Render a text to the millisecond, as Django does."""
        template = f"STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f', {sqlite_now()})"
        return self.as_sql(compiler, connection, template=template, **context)


def postgres_now() -> str:
    """Return the SQL of now on PostgreSQL."""
    if not _clock.offset:
        return "STATEMENT_TIMESTAMP()"
    return f"(STATEMENT_TIMESTAMP() + INTERVAL '{_clock.offset // timedelta(microseconds=1)} microseconds')"


def sqlite_now() -> str:
    """Return now on SQLite: the arguments of a function of times, to which modifiers may be added."""
    return f"'NOW', '{_clock.offset.total_seconds():+.3f} seconds'" if _clock.offset else "'NOW'"
