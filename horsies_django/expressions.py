"""What the ORM has no word for: the clock with an offset, and a value of its own for each row of one UPDATE."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import DateTimeField, F, Field, FloatField, Func, JSONField, Value
from django.db.models.sql.compiler import SQLCompiler

_Compiled = tuple[str, tuple[Any, ...]]


class FromNow(Func):
    """The database's clock plus some seconds, which may be negative and may differ from row to row."""

    def __init__(self, seconds: float | Func) -> None:
        value = seconds if isinstance(seconds, Func) else Value(float(seconds), FloatField())
        super().__init__(value, output_field=DateTimeField())

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Any:
        """``make_interval`` takes fractions of a second."""
        return self.as_sql(
            compiler,
            connection,
            template="(STATEMENT_TIMESTAMP() + make_interval(secs => (%(expressions)s)::double precision))",
        )

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any) -> Any:
        """The same text form, to the millisecond, that Django's own Now() has there."""
        return self.as_sql(
            compiler,
            connection,
            template=(
                "STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f', 'NOW', PRINTF('%%%%.3f seconds', %(expressions)s))"
            ),
        )

    def as_mysql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Any:
        """MySQL's intervals take whole microseconds."""
        return self.as_sql(
            compiler,
            connection,
            template="(CURRENT_TIMESTAMP(6) + INTERVAL ROUND((%(expressions)s) * 1000000) MICROSECOND)",
        )


class SecondsUntil(Func):
    """The seconds from the database's now until a column's time; negative once it has passed."""

    def __init__(self, column: str) -> None:
        super().__init__(F(column), output_field=FloatField())

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Any:
        """``EXTRACT`` gives numeric, which Python would read as Decimal."""
        template = "EXTRACT(EPOCH FROM (%(expressions)s - STATEMENT_TIMESTAMP()))::double precision"
        return self.as_sql(compiler, connection, template=template)

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any) -> Any:
        """Days as SQLite counts them, to the millisecond."""
        return self.as_sql(compiler, connection, template="((JULIANDAY(%(expressions)s) - JULIANDAY('NOW')) * 86400.0)")

    def as_mysql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Any:
        """MySQL's difference is in whole microseconds."""
        return self.as_sql(
            compiler,
            connection,
            template="(TIMESTAMPDIFF(MICROSECOND, CURRENT_TIMESTAMP(6), %(expressions)s) / 1000000.0)",
        )


_POSTGRES_CASTS: Final = {"IntegerField": "bigint", "FloatField": "double precision", "TextField": "text"}


class FromMap(Func):
    """The entry for a row's own primary key in a JSON object that travels as one parameter.

    So one uniform UPDATE gives each row a value of its own, at a fraction of what ``bulk_update`` costs. The entries
    are JSON texts: a result is encoded once, where it was made.
    """

    arity = 1

    def __init__(self, entries: Mapping[UUID, str], output_field: Field[Any, Any]) -> None:
        super().__init__(F("pk"), output_field=output_field)
        self._entries = entries

    def _render(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, template: str) -> _Compiled:
        spell = str if connection.features.has_native_uuid_field else _hexadecimal
        json_object = "{" + ",".join(f'"{spell(key)}":{entry}' for key, entry in self._entries.items()) + "}"
        key_sql, key_params = compiler.compile(self.get_source_expressions()[0])
        return template.format(key=key_sql), (json_object, *key_params)

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> _Compiled:
        """The parameter is parsed once, when the statement is planned."""
        if isinstance(self.output_field, JSONField):
            return self._render(compiler, connection, "(%s::jsonb -> ({key})::text)")
        cast = _POSTGRES_CASTS[self.output_field.get_internal_type()]
        return self._render(compiler, connection, f"(%s::jsonb ->> ({{key}})::text)::{cast}")

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any) -> _Compiled:
        """SQLite keeps the parsed parameter from row to row."""
        return self._render(compiler, connection, """json_extract(%s, '$."' || {key} || '"')""")

    def as_mysql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> _Compiled:
        """``JSON_UNQUOTE`` turns a scalar into text, which MySQL converts as needed."""
        extract = """JSON_EXTRACT(%s, CONCAT('$."', {key}, '"'))"""
        if isinstance(self.output_field, JSONField):
            return self._render(compiler, connection, extract)
        return self._render(compiler, connection, f"JSON_UNQUOTE({extract})")


def _hexadecimal(key: UUID) -> str:
    return key.hex


def integers(entries: Mapping[UUID, int]) -> dict[UUID, str]:
    """Return the entries of a :class:`FromMap` of numbers."""
    return {key: str(number) for key, number in entries.items()}


def texts(entries: Mapping[UUID, str]) -> dict[UUID, str]:
    """Return the entries of a :class:`FromMap` of texts."""
    return {key: json.dumps(text, ensure_ascii=False) for key, text in entries.items()}
