"""Reads the output of tasks, and waits for more of it."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce
from operator import or_
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db import Error
from django.db.models import Q, TextField
from django.db.models.functions import Cast

from ..core.mask import Mask
from ..core.status import TASK_TERMINAL_STATES, OutputKind
from . import wait


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputChunk:
    """A part of what a task has written or logged.

    ``sequence`` counts from 1 within the task, over all attempts. ``kind`` is "output", with the text or JSON value
    that the body wrote as ``data``, or "log", with a dict of ``level``, ``logger`` and ``message``. A
    text that says that the rest was cut ends either.
    """

    sequence: int
    attempt: int
    kind: str
    data: Any
    at: datetime


_COLUMNS: Final = ("sequence", "attempt", "kind", "data", "at")

#: Maximum chunks of one :class:`News`. The sequences of a task have gaps only where the database has refused chunks.
PAGE: Final = 100


class Place(NamedTuple):
    """How far a reader has come: the last sequence and, for one that wants them, the last report of progress.

    The report is JSON text, "" before the first; None for a reader that does not want them.
    """

    task_id: UUID
    after: int
    progress: str | None = None


@dataclass(frozen=True, slots=True)
class News:
    """What a task has written, logged and reported since a place. It is the last if the task ``has_ended``."""

    chunks: Sequence[OutputChunk]
    has_more: bool
    progress: str | None
    status: str

    @property
    def has_ended(self) -> bool:
        """Whether the task has ended and has no further chunks."""
        return self.status in TASK_TERMINAL_STATES and not self.has_more

    @property
    def is_final(self) -> bool:
        """Whether the reader wants it."""
        return bool(self.chunks) or self.progress is not None or self.has_ended


def read(database: str, task_id: UUID, after: int) -> list[OutputChunk]:
    """Return the chunks of a task after a sequence. Raises ValueError unless that is a whole number from 0 on."""
    from ..models import TaskOutput

    rows = TaskOutput.objects.using(database).filter(task=task_id, sequence__gt=checked(after)).order_by("sequence")
    return [OutputChunk(**row) for row in rows.values(*_COLUMNS)]


def masked(chunk: OutputChunk, mask: Mask) -> OutputChunk:
    """Return a chunk as viewers may see it."""
    return replace(chunk, data=mask.apply_to_output(chunk.data, is_log=chunk.kind == OutputKind.LOG))


def checked(after: int) -> int:
    """Return a sequence. Raises ValueError unless it is a whole number from 0 on."""
    if type(after) is not int or not 0 <= after < 2**31:
        raise ValueError(f"after is {after!r}; allowed: the sequence of a chunk, or 0.")
    return after


def read_news(database: str, places: Sequence[Place]) -> Mapping[Place, News]:
    """Return the news since these places.

    Takes one statement, a second one if there are new chunks, and another for each place before a long gap.
    """
    from ..models import Task, TaskOutput

    stored = TaskOutput.objects.using(database).order_by("task", "sequence")
    tasks = Task.objects.using(database).filter(pk__in={place.task_id for place in places})
    rows = tasks.values_list("pk", "status", Cast("progress", TextField()), stored.last_sequence())
    states = {key: (status, report or "", last) for key, status, report, last in rows}
    known = [place for place in places if place.task_id in states]
    # A set: most readers of a task are at the same place.
    pages = {(key, after) for key, after, _ in known if after < states[key][2]}
    by_task: dict[UUID, list[OutputChunk]] = {key: [] for key, _ in pages}
    if pages:
        since = (Q(task=key, sequence__gt=after, sequence__lte=after + PAGE) for key, after in pages)
        for row in stored.filter(reduce(or_, since)).values("task", *_COLUMNS):
            by_task[row.pop("task")].append(OutputChunk(**row))
    chunks = {}
    for key, after in pages:
        of_page = [chunk for chunk in by_task[key] if 0 < chunk.sequence - after <= PAGE]
        after_gap = () if of_page else stored.filter(task=key, sequence__gt=after).values(*_COLUMNS)[:PAGE]
        chunks[key, after] = of_page or [OutputChunk(**row) for row in after_gap]
    return {place: _news(place, *states[place.task_id], chunks.get(place[:2], [])) for place in known}


def _news(place: Place, status: str, report: str, last: int, chunks: Sequence[OutputChunk]) -> News:
    return News(
        chunks=chunks,
        has_more=last > (chunks[-1].sequence if chunks else place.after),
        progress=None if place.progress in (None, report) else report,
        status=status,
    )


def follow(database: str, task_id: UUID, after: int) -> Iterator[OutputChunk]:
    """Yield the chunks of a task after a sequence, as they come, until the task has ended.

    Raises ValueError for a bad sequence, and the database's error.
    """
    place: Place | None = Place(task_id, checked(after))
    is_urgent = True
    while place is not None:
        answer = wait.wait_for_end(read_news, database, place, math.inf, is_urgent=is_urgent)
        chunks, is_urgent, place = _step(place, answer)
        yield from chunks


async def afollow(database: str, task_id: UUID, after: int) -> AsyncIterator[OutputChunk]:
    """See :func:`follow`."""
    place: Place | None = Place(task_id, checked(after))
    is_urgent = True
    while place is not None:
        answer = await wait.await_end(read_news, database, place, math.inf, is_urgent=is_urgent)
        chunks, is_urgent, place = _step(place, answer)
        for chunk in chunks:
            yield chunk


def _step(place: Place, answer: wait.Answer[News]) -> tuple[Sequence[OutputChunk], bool, Place | None]:
    """Return new chunks, whether there are more, and the next place; None if there is no such task, or it has ended."""
    if isinstance(answer, Error):
        raise answer
    if answer is None:
        return (), False, None
    next_place = None if answer.has_ended else place._replace(after=answer.chunks[-1].sequence)
    return answer.chunks, answer.has_more, next_place
