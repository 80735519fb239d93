"""Events: sent to tasks whose bodies wait for them, now or later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final
from uuid import UUID

from django.db import transaction

from ..core.options import Options
from ..core.serialization import check_size, clean_text, dumps, encode
from ..core.status import TASK_LIVE_STATES
from ..models import Task, TaskStep
from ..models.claims import EVENT_WAIT

#: Maximum characters of an event's name: with a prefix, it is the name of a step.
NAME_LENGTH: Final = 249

#: Tasks of one statement.
TASKS_PER_STATEMENT: Final = 1_000

#: Tries at tasks to which others send the same event, or which begin to wait for it, in the same instant.
_TRIES: Final = 10


def send(options: Options, name: str, payloads: Mapping[UUID, Any]) -> set[UUID]:
    """Send an event to these tasks; return those that have got it. See :func:`horsies_django.send_events`."""
    if not isinstance(name, str) or not 0 < len(name) <= NAME_LENGTH or name != clean_text(name):
        raise ValueError(f"The name of an event is {name!r}; allowed: a text of 1 to {NAME_LENGTH} characters.")
    texts, where = dict[UUID, str](), f"the payload of the event {name!r}"
    for key, payload in payloads.items():
        texts[key] = dumps({"ok": encode(payload, typed=options.serializer == "rich", where=where)})
        check_size(texts[key], options.max_payload_bytes, where)
    ordered, sent = iter(sorted(texts)), set[UUID]()  # two senders to the same tasks can't deadlock
    with transaction.atomic(using=options.database):
        while keys := list(islice(ordered, TASKS_PER_STATEMENT)):
            sent |= _send(options.database, EVENT_WAIT + name, {key: texts[key] for key in keys})
    return sent


def live(database: str, keys: Iterable[UUID]) -> set[UUID]:
    """Return those of these tasks that have not ended."""
    tasks = Task.objects.using(database).filter(pk__in=keys, status__in=sorted(TASK_LIVE_STATES))
    return set(tasks.values_list("pk", flat=True))


def _send(database: str, name: str, left: Mapping[UUID, str]) -> set[UUID]:
    """Write the events; return the tasks that have got one. Those that wait are woken after the commit."""
    tasks, steps, sent = Task.objects.using(database), TaskStep.objects.using(database), set[UUID]()
    for _ in range(_TRIES):
        given = steps.give_event(name, left)
        tasks.filter(pk__in=given).wake_after_commit([name] if given else [])
        rest = {key: text for key, text in left.items() if key not in given}
        added = steps.add_event(name, rest) if rest else set()
        sent |= given | added
        left = {key: rest[key] for key in live(database, rest.keys() - added)} if len(added) < len(rest) else {}
        if not left:
            break
    return sent
