"""The view that sends what a task writes, logs and reports as server-sent events, until the task has ended."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import AsyncIterator
from typing import Any, Final
from uuid import UUID

from asgiref.sync import sync_to_async
from django.contrib.auth.decorators import login_not_required
from django.core.handlers.asgi import ASGIRequest
from django.db import Error, connections
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, StreamingHttpResponse
from django.http.response import HttpResponseBase

from ..core import stream_token
from ..core.backends import all_backends
from ..core.mask import Mask, mask_of
from ..core.serialization import dumps
from ..db.connection import commits_by_itself
from ..enqueue import wait
from ..enqueue.output import News, Place, checked, masked, read_news
from ..models import Task
from .views import refusal, text_response

logger = logging.getLogger("horsies_django")

#: Neither nginx nor GZipMiddleware delays a response with these.
_HEADERS: Final = {"Content-Type": "text/event-stream", "X-Accel-Buffering": "no", "Content-Encoding": "identity"}

#: Begins each response: a browser comes back 2 seconds after its end.
_RETRY: Final = "retry: 2000\n\n"

#: Seconds of silence after which a comment shows whether the client is still there.
_KEEP_ALIVE: Final = 15.0

#: The id of the last event. A browser that comes back with it gets status 204 and stops.
_END: Final = "end"


@commits_by_itself
@login_not_required
def task_events(request: HttpRequest, task_id: UUID) -> HttpResponseBase:
    """Respond with the events of a task: as they come under ASGI, those until now under WSGI.

    Needs ``?token=``, see :meth:`~horsies_django.TaskHandle.stream_token`, or a user of the staff with the permission,
    who sees them masked.
    """
    try:
        response = _respond(request, task_id)
    except Error as error:
        _log(task_id, error)
        response = HttpResponse(_RETRY, headers=_HEADERS)  # after an error, a browser would not come back
    response["Cache-Control"] = "no-store"
    return response


def _respond(request: HttpRequest, task_id: UUID) -> HttpResponseBase:
    if request.method not in ("GET", "HEAD"):
        return HttpResponseNotAllowed(["GET", "HEAD"])
    backend = None
    if (token := request.GET.get("token")) is not None:
        if (backend := stream_token.backend_of(token, task_id)) is None:
            return text_response("The token is of another task, or it has expired.", 403)
    elif (refused := refusal(request, "A token is needed: see stream_token() of handles.")) is not None:
        return refused
    last_id = request.headers.get("Last-Event-ID") or "0"
    if last_id == _END:
        return HttpResponse(status=204)
    try:
        place = Place(task_id, checked(int(last_id)), "")
    except ValueError:
        return text_response(f"Last-Event-ID is {last_id!r}; allowed: the id of an event.", 400)
    if (task := _find(task_id, backend)) is None:
        return text_response("There is no such task.", 404)
    database, name = task
    mask = mask_of(name) if token is None else None
    if isinstance(request, ASGIRequest) and request.method == "GET":
        return StreamingHttpResponse(_stream(database, place, mask), headers=_HEADERS)
    return HttpResponse(_until_now(database, place, mask), headers=_HEADERS)


def _find(task_id: UUID, backend: str | None) -> tuple[str, str] | None:
    """Return the database and the name of a task; None if it is in no database of this backend, or of any."""
    for database in {each.config.database: None for each in all_backends() if backend in (None, each.alias)}:
        name = Task.objects.using(database).filter(pk=task_id).values_list("task_name", flat=True).first()
        if name is not None:
            return database, name
    return None


def _until_now(database: str, place: Place | None, mask: Mask | None) -> str:
    parts = [_RETRY]
    while place is not None and (news := read_news(database, [place]).get(place)) is not None and news.is_final:
        part, place = _read(place, news, mask)
        parts.append(part)
    return "".join(parts)


async def _stream(database: str, place: Place | None, mask: Mask | None) -> AsyncIterator[str]:
    await sync_to_async(_close_connections)()
    yield _RETRY
    is_urgent = True
    while place is not None:
        coming = wait.await_end(read_news, database, place, math.inf, is_urgent=is_urgent)
        waiting = asyncio.ensure_future(coming)
        try:
            while not (await asyncio.wait([waiting], timeout=_KEEP_ALIVE))[0]:
                yield ": keep-alive\n\n"
        finally:
            waiting.cancel()
        news = waiting.result()
        if not isinstance(news, News):  # a browser comes back, and finds out that the task has been deleted
            _log(place.task_id, news)
            return
        part, place = _read(place, news, mask)
        is_urgent = news.has_more
        yield part


def _close_connections() -> None:
    """Close the connections of the request, which needs none while it waits."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


def _read(place: Place, news: News, mask: Mask | None) -> tuple[str, Place | None]:
    """Return news as events, and the next place; None if the task has ended."""
    events = []
    for chunk in news.chunks:
        data = (masked(chunk, mask) if mask else chunk).data
        values = {"attempt": chunk.attempt, "data": data, "at": chunk.at.isoformat()}
        events.append(_event(chunk.kind, values, chunk.sequence))
    if news.progress is not None:
        report = json.loads(news.progress or "null")
        events.append(_event("progress", mask.apply("progress", report) if mask else report))
    if news.has_ended:
        return "".join([*events, _event("end", {"status": news.status}, _END)]), None
    after = news.chunks[-1].sequence if news.chunks else place.after
    return "".join(events), Place(place.task_id, after, place.progress if news.progress is None else news.progress)


def _event(name: str, data: Any, id: int | str | None = None) -> str:
    return f"event: {name}\ndata: {dumps(data)}\n" + ("\n" if id is None else f"id: {id}\n\n")


def _log(task_id: UUID, error: Error | None) -> None:
    logger.warning("events end early task=%s error=%s", task_id, error or "the task is deleted")
