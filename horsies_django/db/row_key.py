"""Keys of rows that tasks are about, as texts: in Python for one row, in SQL for the rows of a queryset."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.apps import apps
from django.db import router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import (
    AutoField,
    CharField,
    F,
    Field,
    ForeignKey,
    Func,
    IntegerField,
    Model,
    OuterRef,
    Subquery,
    TextField,
    UUIDField,
)
from django.db.models.sql.compiler import SQLCompiler

#: The fields whose values have the same text in Python and in SQL, and how these convert them.
_KEY_FIELDS: Final = (AutoField, IntegerField, CharField, TextField, UUIDField)
_CONVERSIONS: Final = {kind.get_prep_value for kind in _KEY_FIELDS}

#: Maximum characters of a key that a task has.
KEY_LENGTH: Final = 255


class RowRef(NamedTuple):
    """A row: the label of its model, such as ``shop.Order``, and its key as a text, JSON for a composite key."""

    model: str
    key: str

    def __str__(self) -> str:
        return f"{self.model}:{self.key}"


def root_model(model: type[Model]) -> type[Model]:
    """Return the model whose table has the key: of a proxy the concrete model, of a child its topmost parent."""
    model = model._meta.concrete_model or model
    while (field := model._meta.pk) is not None and field.remote_field and field.remote_field.parent_link:
        model = field.remote_field.model
    return model


def model_of(label: str) -> type[Model] | None:
    """Return the model with this label; None if there is none."""
    try:
        model = apps.get_model(label)
    except (LookupError, ValueError):
        return None
    return model if model._meta.label == label else None  # the lookup ignores case


def problem_of_model(model: type[Model], database: str) -> str:
    """Return why tasks in this database can't be about rows of a model; empty if they can."""
    label = model._meta.label
    for field in map(_stored_in, key_fields(model)):
        if not isinstance(field, _KEY_FIELDS) or type(field).get_prep_value not in _CONVERSIONS:
            return f"{label} has a key of {type(field).__name__}; allowed: keys of integers, texts and UUIDs."
    if (own := router.db_for_write(model)) != database:
        return f"{label} is in the database {own!r} and the queue in {database!r}; allowed: models in {database!r}."
    return ""


def key_fields(model: type[Model]) -> Sequence[Field[Any, Any]]:
    """Return the fields of a primary key; of a composite one there are several."""
    return model._meta.pk_fields


def _stored_in(field: Field[Any, Any]) -> Field[Any, Any]:
    """Return the field that stores the values: of a foreign key, the one that it names."""
    while isinstance(field, ForeignKey):
        field = field.target_field
    return field


def row_ref(instance: Model) -> RowRef:
    """Return the reference to a saved row.

    Raises TypeError for anything but an instance, and ValueError for one that is not saved.
    """
    if not isinstance(instance, Model):
        raise TypeError(f"about() got {instance!r}; allowed: an instance of a model.")
    label = root_model(instance._meta.model)._meta.label
    if instance._state.adding or instance.pk is None:
        raise ValueError(f"about() got a row of {label} that is not saved; allowed: saved rows.")
    return RowRef(label, key_of(instance))


def key_of(instance: Model) -> str:
    """Return the key of an instance as a text."""
    values = [field.get_prep_value(getattr(instance, field.attname)) for field in key_fields(instance._meta.model)]
    parts = [str(value) if isinstance(value, UUID) else value for value in values]
    return str(parts[0]) if len(parts) == 1 else json.dumps(parts, ensure_ascii=False)


def key_value(model: type[Model], text: str) -> Any:
    """Return the key of which this is the text, as a filter by ``pk`` takes it."""
    return text if len(key_fields(model)) == 1 else json.loads(text)


class KeyText(Func):
    """The keys of the rows of a model as texts, as :func:`key_of` gives them."""

    def __init__(self, model: type[Model], *, is_outer: bool = False) -> None:
        self._fields = [_stored_in(field) for field in key_fields(model)]
        names = [field.name for field in key_fields(model)]
        super().__init__(*(OuterRef(name) if is_outer else F(name) for name in names), output_field=TextField())

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Any:
        """Render a cast: PostgreSQL writes JSON with the same spaces as Python."""
        is_composite = len(self._fields) > 1
        template = "(json_build_array(%(expressions)s))::text" if is_composite else "(%(expressions)s)::text"
        return self.as_sql(compiler, connection, template=template)

    def as_sqlite(
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **_: Any
    ) -> tuple[str, tuple[Any, ...]]:
        """Render a cast, with the dashes that SQLite's form of a UUID lacks; of a composite key, JSON part by part."""
        parts, params = list[str](), list[Any]()
        for expression, field in zip(self.get_source_expressions(), self._fields, strict=True):
            sql, own = compiler.compile(expression)
            if isinstance(field, UUIDField):
                cuts = ", ".join(f"substr({sql}, {start}, {length})" for start, length in _UUID_PARTS)
                sql, own = f"printf('%%s-%%s-%%s-%%s-%%s', {cuts})", tuple(own) * len(_UUID_PARTS)
            parts.append(sql)
            params += own
        if len(parts) == 1:
            return f"CAST({parts[0]} AS TEXT)", tuple(params)
        return "('[' || " + " || ', ' || ".join(f"json_quote({part})" for part in parts) + " || ']')", tuple(params)


class KeysOf(Subquery):
    """The keys that a queryset selects, for IN.

    Of a queryset, and of a plain Subquery, Django 6.1 counts the fields of a composite key, although none is selected.
    """


#: The first character and the length of each part of a UUID.
_UUID_PARTS: Final = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
