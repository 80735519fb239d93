"""Events: sent to tasks whose bodies wait for them, now or later."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final
from uuid import UUID

from django.db import transaction

from ..core.backends import config_of, reads_typed
from ..core.serialization import check_size, dumps, encode
from ..core.status import TASK_LIVE_STATES
from ..models import Task, TaskStep
from ..models.claims import EVENT_WAIT, check_event_name

#: Tasks of one statement.
TASKS_PER_STATEMENT: Final = 1_000


def send(name: str, payloads: Mapping[str, Mapping[UUID, Any]]) -> set[UUID]:
    """Send an event to these tasks of each backend; return those that have got it.

    Checks everything first, and writes in one transaction for each database. See :func:`horsies_django.send_events`.
    """
    check_event_name(name)
    by_database = defaultdict[str, dict[UUID, str]](dict)
    for backend, by_task in payloads.items():
        by_database[config_of(backend).database] |= _encoded(name, backend, by_task)
    sent = set[UUID]()
    for database, texts in by_database.items():
        with transaction.atomic(using=database):
            for keys in _batches(texts):
                sent |= _send(database, EVENT_WAIT + name, {key: texts[key] for key in keys})
    return sent


def live(database: str, keys: Iterable[UUID]) -> dict[UUID, bool]:
    """Return those of these tasks that have not ended, and whether their values carry type tags."""
    tasks = Task.objects.using(database).filter(pk__in=keys, status__in=sorted(TASK_LIVE_STATES))
    return dict(tasks.values_list("pk", "typed_payload"))


def _batches(keys: Iterable[UUID]) -> Iterable[list[UUID]]:
    ordered = sorted(keys)  # two senders to the same tasks can't deadlock
    return [ordered[start : start + TASKS_PER_STATEMENT] for start in range(0, len(ordered), TASKS_PER_STATEMENT)]


def _encoded(name: str, backend: str, payloads: Mapping[UUID, Any]) -> dict[UUID, str]:
    """Return the payloads for live tasks as JSON results, as the body of each reads them."""
    options, where, texts = config_of(backend), f"the payload of the event {name!r}", dict[UUID, str]()
    for keys in _batches(payloads):
        typed = live(options.database, keys)
        for key in keys:
            is_typed = reads_typed(backend, typed.get(key, options.serializer == "rich"))
            text = dumps({"ok": encode(payloads[key], typed=is_typed, where=where)})
            check_size(text, options.max_payload_bytes, where)
            if key in typed:
                texts[key] = text
    return texts


def _send(database: str, name: str, left: Mapping[UUID, str]) -> set[UUID]:
    """Write the events; return the tasks that have got one. Those that wait are woken after the commit.

    Goes on as long as others send the same event, or begin to wait for it, in the same instant.
    """
    tasks, steps, sent = Task.objects.using(database), TaskStep.objects.using(database), set[UUID]()
    while left:
        given = steps.give_event(name, left)
        tasks.filter(pk__in=given).wake_waiting_after_commit([name] if given else [])
        left = {key: text for key, text in left.items() if key not in given}
        added = steps.add_event(name, left) if left else set()
        sent |= given | added
        missed = left.keys() - added
        left = {key: left[key] for key in steps.with_room(missed).values_list("pk", flat=True)} if missed else {}
    return sent
