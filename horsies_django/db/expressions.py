"""Expressions that the ORM lacks: the clock with an offset, and different values for the rows of one UPDATE."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import (
    BooleanField,
    DateTimeField,
    Expression,
    F,
    Field,
    FloatField,
    Func,
    IntegerField,
    JSONField,
    Lookup,
    Q,
    Value,
)
from django.db.models.sql.compiler import SQLCompiler

from .now import postgres_now, sqlite_now

_Compiled = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Param:
    """A placeholder among a statement's parameters, for a value that each run gives."""

    name: str


class BoundParam(Expression):
    """An expression for a value that each run of a statement gives."""

    def __init__(self, param: Param, output_field: Field[Any, Any]) -> None:
        super().__init__(output_field=output_field)
        self._param = param

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> _Compiled:
        """Render the parameter: most databases infer its type."""
        return "%s", (self._param,)

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> _Compiled:
        """Render a cast: PostgreSQL plans before it knows the value."""
        return f"%s::{self.output_field.db_type(connection)}", (self._param,)


class NowPlus(Func):
    """The database's clock plus a number of seconds, which may be negative and differ by row."""

    def __init__(self, seconds: float | Expression) -> None:
        value = seconds if isinstance(seconds, Expression) else Value(float(seconds), FloatField())
        super().__init__(value, output_field=DateTimeField())

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Any:
        """Render ``make_interval``, which takes fractions of a second."""
        return self.as_sql(
            compiler,
            connection,
            template=f"({postgres_now()} + make_interval(secs => (%(expressions)s)::double precision))",
        )

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any) -> Any:
        """Render the text form of Django's own Now(), to the millisecond."""
        return self.as_sql(
            compiler,
            connection,
            template=(
                f"STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f', {sqlite_now()},"
                " PRINTF('%%%%.3f seconds', %(expressions)s))"
            ),
        )


class SecondsUntil(Func):
    """The seconds from the database's now until a time; negative once it has passed."""

    def __init__(self, column: str | Expression) -> None:
        super().__init__(F(column) if isinstance(column, str) else column, output_field=FloatField())

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Any:
        """Render ``EXTRACT`` with a cast, because numeric becomes Decimal."""
        template = f"EXTRACT(EPOCH FROM %(expressions)s - {postgres_now()})::double precision"
        return self.as_sql(compiler, connection, template=template)

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any) -> Any:
        """Render a difference of Julian days, which is exact to the millisecond."""
        return self.as_sql(
            compiler, connection, template=f"((JULIANDAY(%(expressions)s) - JULIANDAY({sqlite_now()})) * 86400.0)"
        )


class SecondsBetween(Func):
    """The seconds from one column's time to another's."""

    def __init__(self, first: Expression | F, last: Expression | F) -> None:
        super().__init__(first, last, output_field=FloatField())

    def _render(self, compiler: SQLCompiler, template: str) -> _Compiled:
        (first, first_params), (last, last_params) = map(compiler.compile, self.get_source_expressions())
        return template.format(first=first, last=last), (*last_params, *first_params)

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> _Compiled:
        """Render as :class:`SecondsUntil` does."""
        return self._render(compiler, "EXTRACT(EPOCH FROM {last} - {first})::double precision")

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any) -> _Compiled:
        """Render a rounded difference: Julian days are exact to 40 microseconds."""
        return self._render(compiler, "ROUND((JULIANDAY({last}) - JULIANDAY({first})) * 86400.0, 3)")


class MinuteOf(Func):
    """The minutes from 1970 to a time."""

    def __init__(self, column: str | Expression) -> None:
        super().__init__(F(column) if isinstance(column, str) else column, output_field=IntegerField())

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Any:
        """Render a division that rounds down, also before 1970."""
        template = "FLOOR(EXTRACT(EPOCH FROM %(expressions)s) / 60)::bigint"
        return self.as_sql(compiler, connection, template=template)

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any) -> Any:
        """Render STRFTIME, whose ``%s`` is whole seconds."""
        return self.as_sql(compiler, connection, template="(STRFTIME('%%%%s', %(expressions)s) / 60)")


class SecondOf(Func):
    """The seconds from 1970 to a time that has a time zone, as the database's now has."""

    def __init__(self, column: str | Expression) -> None:
        super().__init__(F(column) if isinstance(column, str) else column, output_field=FloatField())

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Any:
        """Render ``EXTRACT`` with a cast, because numeric becomes Decimal."""
        template = "EXTRACT(EPOCH FROM %(expressions)s)::double precision"
        return self.as_sql(compiler, connection, template=template)

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any) -> Any:
        """Render Julian days, which are exact to the millisecond."""
        return self.as_sql(compiler, connection, template="((JULIANDAY(%(expressions)s) - 2440587.5) * 86400.0)")


_POSTGRES_CASTS: Final = {
    "IntegerField": "bigint",
    "FloatField": "double precision",
    "TextField": "text",
    "UUIDField": "uuid",
}


class ValueByPk(Func):
    """The entry for the row's primary key, or for another ``column``, in a JSON object, which is one parameter.

    So one uniform UPDATE gives each row a value of its own, at a fraction of what ``bulk_update`` costs. The entries
    are JSON texts: a result is encoded once, where it was made.
    """

    arity = 1

    def __init__(
        self,
        entries: Mapping[UUID, str] | Mapping[int, str] | Param,
        output_field: Field[Any, Any],
        column: str = "pk",
    ) -> None:
        super().__init__(F(column), output_field=output_field)
        self._entries = entries

    def _render(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, template: str) -> _Compiled:
        values = self._entries
        entries = values if isinstance(values, Param) else json_object(encode_pk(values, connection), values.values())
        key_sql, key_params = compiler.compile(self.get_source_expressions()[0])
        return template.format(key=key_sql), (entries, *key_params)

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> _Compiled:
        """Render a lookup in a parameter that is parsed once, at planning."""
        if isinstance(self.output_field, JSONField):
            return self._render(compiler, connection, "(%s::jsonb -> ({key})::text)")
        cast = _POSTGRES_CASTS[self.output_field.get_internal_type()]
        return self._render(compiler, connection, f"(%s::jsonb ->> ({{key}})::text)::{cast}")

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any) -> _Compiled:
        """Render a lookup in a parameter that SQLite parses once."""
        return self._render(compiler, connection, """json_extract(%s, '$."' || {key} || '"')""")


#: PostgreSQL's types of primary keys.
_KEY_TYPES: Final = {"UUIDField": "uuid", "BigAutoField": "bigint", "PositiveIntegerField": "integer"}


class AnyOf(Lookup):
    """Whether a key is in an array, which is one parameter.

    Unlike ``pk__in`` it is the same text for any number of keys, so that a statement is compiled and planned once.
    """

    lookup_name = "among"
    prepare_rhs = False

    def __init__(self, keys: Param | str, column: str = "pk") -> None:
        super().__init__(F(column), keys)

    @property
    def _type(self) -> str:
        field = self.lhs.output_field
        return _KEY_TYPES[getattr(field, "target_field", field).get_internal_type()]

    def _render(self, compiler: SQLCompiler, template: str) -> _Compiled:
        key_sql, key_params = compiler.compile(self.lhs)
        return template.format(key=key_sql), (*key_params, self.rhs)

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> _Compiled:
        """Render PostgreSQL's ANY()."""
        return self._render(compiler, f"{{key}} = ANY(%s::{self._type}[])")

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> _Compiled:
        """Render ``json_each``, which turns the array into a table."""
        return self._render(compiler, "{key} IN (SELECT value FROM json_each(%s))")


class AnyPairOf(Func):
    """Whether two columns, a UUID and a number, are a pair in a JSON array, which is one parameter."""

    conditional = True
    output_field = BooleanField()

    def __init__(self, first: str, second: str, pairs: Param) -> None:
        super().__init__(F(first), F(second))
        self._pairs = pairs

    def _render(self, compiler: SQLCompiler, rows: str) -> _Compiled:
        (first, first_params), (second, second_params) = map(compiler.compile, self.get_source_expressions())
        return f"({first}, {second}) IN (SELECT {rows})", (*first_params, *second_params, self._pairs)

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> _Compiled:
        """Render a join that looks each pair up in an index on both columns."""
        return self._render(
            compiler, "(pair ->> 0)::uuid, (pair ->> 1)::bigint FROM jsonb_array_elements(%s::jsonb) pair"
        )

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any) -> _Compiled:
        """Render the same with ``json_each``."""
        return self._render(compiler, "json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(%s)")


class OuterColumn(Expression):
    """A column of an enclosing query, given as SQL."""

    def __init__(self, column: str, output_field: Field[Any, Any]) -> None:
        super().__init__(output_field=output_field)
        self._column = column

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> _Compiled:
        """Render the column."""
        return self._column, ()


def row_after(fields: Sequence[Field[Any, Any]], values: Iterable[Any], *, is_descending: bool) -> Func:
    """Return whether the fields of a row, compared as a whole, come after these values: ``(a, b) > (1, 2)``."""
    columns = [F(field.attname) for field in fields]
    bound = [Value(value, output_field=field) for field, value in zip(fields, values, strict=True)]
    sides = [Func(*side, template="(%(expressions)s)", output_field=BooleanField()) for side in (columns, bound)]
    operator = " < " if is_descending else " > "
    return Func(*sides, template="%(expressions)s", arg_joiner=operator, output_field=BooleanField())


class InSubquery(Lookup):
    """Tests whether a key is among those that a bounded subquery returns.

    PostgreSQL gets the keys as an array, which it builds once. Given a range of ids instead, it may read rows of every
    other status in between.
    """

    lookup_name = "in_subquery"
    prepare_rhs = False

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> _Compiled:
        """Render a plain subquery."""
        return self._render(compiler, connection, "{key} IN {keys}")

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> _Compiled:
        """Render an array."""
        return self._render(compiler, connection, "{key} = ANY(ARRAY{keys})")

    def _render(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, template: str) -> _Compiled:
        key, key_params = self.process_lhs(compiler, connection)
        keys, keys_params = self.process_rhs(compiler, connection)
        return template.format(key=key, keys=keys), (*key_params, *keys_params)


class StoredSize(Func):
    """The number of bytes that a value takes in its table."""

    function = "OCTET_LENGTH"
    output_field = IntegerField()

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Any:
        """Render PG_COLUMN_SIZE: the compressed size, known without reading values stored out of line."""
        return self.as_sql(compiler, connection, function="PG_COLUMN_SIZE")

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any) -> Any:
        """Render a cast before SQLite 3.43, which has no OCTET_LENGTH."""
        if connection.Database.sqlite_version_info >= (3, 43):  # type: ignore[attr-defined]  # the driver module of SQLite
            return self.as_sql(compiler, connection)
        return self.as_sql(compiler, connection, template="LENGTH(CAST(%(expressions)s AS BLOB))")


def encode_pk(keys: Iterable[UUID | int], connection: BaseDatabaseWrapper) -> list[str]:
    """Return primary keys in the text form of the database."""
    if connection.vendor == "postgresql":
        return [str(key) for key in keys]
    return [key.hex if isinstance(key, UUID) else str(key) for key in keys]


def json_object(keys: Iterable[str], entries: Iterable[str]) -> str:
    """Return the parameter of a :class:`ValueByPk`."""
    return "{" + ",".join([f'"{key}":{entry}' for key, entry in zip(keys, entries, strict=True)]) + "}"


def json_array(keys: Collection[str], connection: BaseDatabaseWrapper) -> str:
    """Return the parameter of an :class:`AnyOf`."""
    if connection.vendor == "postgresql":
        return "{" + ",".join(keys) + "}"
    return '["' + '","'.join(keys) + '"]' if keys else "[]"


def where_in(database: str, keys: Collection[UUID] | Collection[int], column: str = "pk") -> Q:
    """Whether a column is one of these keys.

    The keys travel as one parameter. ``__in`` takes one for each, which costs more time than a short row, and SQLite
    accepts 32,766.
    """
    if not keys:
        return Q(pk__in=())
    connection = connections[database]
    return Q(AnyOf(json_array(encode_pk(keys, connection), connection), column))


def json_pairs(pairs: Iterable[tuple[UUID, int]], connection: BaseDatabaseWrapper) -> str:
    """Return the parameter of an :class:`AnyPairOf`."""
    pairs = list(pairs)
    firsts = encode_pk([first for first, _ in pairs], connection)
    return json.dumps([[first, second] for first, (_, second) in zip(firsts, pairs, strict=True)])


def integers(entries: Mapping[UUID, int]) -> dict[UUID, str]:
    """Return the entries of a :class:`ValueByPk` of numbers."""
    return {key: str(number) for key, number in entries.items()}


def texts(entries: Mapping[UUID, str]) -> dict[UUID, str]:
    """Return the entries of a :class:`ValueByPk` of texts."""
    return {key: json.dumps(text, ensure_ascii=False) for key, text in entries.items()}
