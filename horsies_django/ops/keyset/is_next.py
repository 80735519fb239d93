"""A condition: the key is among those that a bounded query returns."""

from __future__ import annotations

from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Lookup
from django.db.models.sql.compiler import SQLCompiler


class IsNext(Lookup):
    """Tests whether a key is among those that a bounded query returns.

    PostgreSQL gets the keys as an array. With a range of ids instead it may read rows of every other status in between.
    """

    lookup_name = "next"
    prepare_rhs = False

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
        """Render a plain subquery."""
        return self._render(compiler, connection, "{key} IN {keys}")

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
        """Render an array, which PostgreSQL builds once."""
        return self._render(compiler, connection, "{key} = ANY(ARRAY{keys})")

    def _render(
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, template: str
    ) -> tuple[str, tuple[Any, ...]]:
        key, key_params = self.process_lhs(compiler, connection)
        keys, keys_params = self.process_rhs(compiler, connection)
        return template.format(key=key, keys=keys), (*key_params, *keys_params)
