"""Bodies that leave a transaction open."""

from __future__ import annotations

from asgiref.sync import sync_to_async
from django.db import connection, transaction

from horsies_django import task
from tests.jobs.models import Entry


def begin() -> None:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")


def enter_atomic() -> None:
    transaction.atomic().__enter__()


def switch_autocommit_off() -> None:
    transaction.set_autocommit(False)
    Entry.objects.exists()


WAYS = {way.__name__: way for way in (begin, enter_atomic, switch_autocommit_off)}


@task
def leave(way: str) -> None:
    WAYS[way]()
    Entry.objects.create(key="left")


@task
async def aleave(way: str) -> None:
    await sync_to_async(WAYS[way])()
    await Entry.objects.acreate(key="left")


@task
async def aleave_in_shared_thread(way: str) -> None:
    await sync_to_async(leave.func, thread_sensitive=False)(way)


@task
async def awrite_in_shared_thread(key: str) -> None:
    await sync_to_async(Entry.objects.create, thread_sensitive=False)(key=key)


@task(atomic=True)
def leave_inside(way: str) -> None:
    Entry.objects.create(key="left")
    WAYS[way]()


@task
def backend_of() -> int:
    connection.ensure_connection()
    return id(connection.connection)
