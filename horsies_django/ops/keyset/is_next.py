"""The condition that a key is one of those that a bounded query finds."""

from __future__ import annotations

from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Lookup
from django.db.models.sql.compiler import SQLCompiler


class IsNext(Lookup):
    """Whether a key is one of those that a bounded query finds.

    PostgreSQL gets them as an array: asked for what lies between two ids, it may read all rows of other statuses there.
    """

    lookup_name = "next"
    prepare_rhs = False

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
        """SQLite takes the query as it is."""
        return self._render(compiler, connection, "{key} IN {keys}")

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
        """The array is made once."""
        return self._render(compiler, connection, "{key} = ANY(ARRAY{keys})")

    def _render(
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, template: str
    ) -> tuple[str, tuple[Any, ...]]:
        key, key_params = self.process_lhs(compiler, connection)
        keys, keys_params = self.process_rhs(compiler, connection)
        return template.format(key=key, keys=keys), (*key_params, *keys_params)
