"""Reads the calls of ``send_many()``: dicts of keyword arguments, from any iterable or from a queryset."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.query import ValuesIterable

from ..db import postgres


@contextmanager
def reading(calls: Iterable[Any], database: str, chunk_size: int) -> Iterator[Iterable[Any]]:
    """Yield the calls. Those of a queryset come in chunks from a cursor, unless it is evaluated already.

    Such a cursor is opened in the transaction of the INSERTs. So PostgreSQL need not store all its rows, as for a
    cursor that outlives its transaction, and on SQLite no other writer can come between the read and the INSERTs.

    Raises TypeError for a queryset whose rows are no dicts.
    """
    if not isinstance(calls, QuerySet):
        yield calls
        return
    _check_rows(calls)
    if calls._result_cache is not None or _would_read_new_tasks(calls, database):
        yield calls
        return
    with transaction.atomic(using=database), closing(_rows(calls, chunk_size)) as rows:
        yield rows


def _rows(queryset: QuerySet[Any, Any], chunk_size: int) -> Generator[Any]:
    yield from queryset.iterator(chunk_size)


def checked(calls: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the calls. Raises TypeError for a queryset whose rows are no dicts, and for a call that is no mapping."""
    if isinstance(calls, QuerySet):
        _check_rows(calls)
    for place, call in enumerate(calls):
        check_call(call, place)
        yield call


def check_call(call: Any, place: int) -> None:
    """Raise TypeError if the call at this place is no mapping. The message omits its value, which may be secret."""
    if not isinstance(call, Mapping):
        kind = type(call).__qualname__
        raise TypeError(f"send_many(): call {place} is of type {kind}; allowed: a mapping of keyword arguments.")


def _check_rows(queryset: QuerySet[Any, Any]) -> None:
    if not issubclass(kind := queryset._iterable_class, ValuesIterable):
        rows = f"{queryset.model.__name__} ({kind.__name__})"
        raise TypeError(f"send_many() got a queryset of {rows}; allowed: one with .values(), which yields dicts.")


def _would_read_new_tasks(queryset: QuerySet[Any, Any], database: str) -> bool:
    """Whether a cursor would see the tasks that are inserted: on SQLite, if the query reads their table."""
    from ..models import Task

    if postgres.can_listen(database):
        return False
    with suppress(EmptyResultSet):
        return Task._meta.db_table in str(queryset.query)
    return False
