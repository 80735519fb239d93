"""Doing something to all that a list shows, up to millions of rows: some thousands a request, until all are done.

No statement is a long one, and no worker is needed: the page says how far it has come and goes on by POST, by itself or
by its button, for as long as it is open. What is sent after it was asked for is not touched, nor anything twice: it
goes from newer to older ids, and each request goes on where the last one stopped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, ClassVar, Final, Protocol
from uuid import UUID

from django.conf import settings
from django.contrib.admin import AdminSite
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db.models import Model, QuerySet
from django.forms import Form, Media
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.template.response import TemplateResponse
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_aware
from django.utils.translation import gettext as _

from ...walking.extent import edge_of, extent_of
from ...walking.keys import as_cursor
from ...walking.walk import Walk
from ..lists.changelist import WalkingList
from .verbs import Verb

#: Seconds that one request works.
WORKS: Final = 2.0

#: More than that nobody has done it to.
_MOST: Final = 10**12


class Asking(Protocol):
    """What it takes of an admin: pages of its own, a way to ask first, and one to say what was done."""

    admin_site: AdminSite
    opts: Any
    batch: ClassVar[int]

    @property
    def media(self) -> Media:
        """The style sheets and scripts of its pages."""

    def ask(
        self, request: HttpRequest, verb: Verb, rows: QuerySet[Any], form: Form | None, more: Mapping[str, Any]
    ) -> HttpResponse:
        """Say what would be done, and ask."""

    def report(self, request: HttpRequest, done: str, left: int) -> None:
        """Say what was done."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it has come: what the page posts when it goes on.

    Attributes:
        asked: When it was asked for, by the database's clock: what was sent later is not meant.
        upper: Nor are the rows from this id on, which most of those have.
        before: Where to go on. None: at ``upper``.
        done: To how many it was done.
        left: How many were left alone.
        total: How many there were to be, in words.
    """

    asked: datetime
    upper: UUID
    before: UUID | None = None
    done: int = 0
    left: int = 0
    total: str = ""

    @classmethod
    def read(cls, model: type[Model], posted: QueryDict) -> Progress | None:
        """Return what was posted; None if nothing that can be read."""
        upper, before = as_cursor(model, posted.get("upper")), posted.get("before")
        if upper is None or (before and as_cursor(model, before) is None):
            return None
        with suppress(ValueError):
            asked = parse_datetime(posted.get("asked", ""))
            done, left = (min(int(posted.get(name) or 0), _MOST) for name in ("done", "left"))
            if asked is not None and is_aware(asked) == settings.USE_TZ:
                return cls(asked, upper, as_cursor(model, before), done, left, posted.get("total", "")[:40])
        return None

    @property
    def fields(self) -> list[tuple[str, Any]]:
        """Return what has to be posted."""
        given = {name: getattr(self, name) for name in ("upper", "before", "done", "left", "total")}
        texts = [(name, "" if value is None else str(value)) for name, value in given.items()]
        return [("asked", self.asked.isoformat()), *texts]


def act_on_matching(
    admin: Asking, request: HttpRequest, listed: WalkingList, verb: Verb, form: Form | None
) -> HttpResponse:
    """Ask first; then work for a while and say how far it has come."""
    progress = Progress.read(listed.model, request.POST) if "confirmed" in request.POST else None
    if progress is None or (form is not None and not form.is_valid()):
        return _ask(admin, request, listed, verb, form)
    before = progress
    values = form.cleaned_data if form else {}
    is_over = False
    try:
        for progress, is_over in _work(listed.walk, verb, values, before, admin.batch):  # noqa: B007  # the last one counts
            pass
    finally:  # what breaks off has done something, too
        _log(request, listed, verb.called(values), verb.flag, progress.done - before.done, progress.left - before.left)
    if not is_over:
        return _page(admin, request, listed, verb, progress, form)
    admin.report(request, verb.told(progress.done), progress.left)
    return HttpResponseRedirect(request.path + listed.get_query_string())


def _work(
    walk: Walk, verb: Verb, values: dict[str, Any], progress: Progress, size: int
) -> Iterator[tuple[Progress, bool]]:
    """Do batch after batch until the time is up; yield each time how far it came, and whether that is all.

    What does not match any more when its turn comes is left alone.
    """
    done, left = progress.done, progress.left
    until = time.monotonic() + WORKS
    walk = walk.sent_by(progress.asked)
    for batch, cursor in walk.batches(progress.before or progress.upper, size):
        if batch:
            changed = verb.act(walk.rows.order_by().filter(pk__in=batch), **values)
            done, left = done + changed, left + len(batch) - changed
        yield replace(progress, before=cursor, done=done, left=left), cursor is None
        if time.monotonic() > until:
            return


def _ask(admin: Asking, request: HttpRequest, listed: WalkingList, verb: Verb, form: Form | None) -> HttpResponse:
    edge = edge_of(listed.queryset)
    extent = extent_of(listed.walk, edge.upper)
    status_field: Any = listed.model._meta.get_field("status")
    statuses = dict(status_field.flatchoices)
    more = {
        "extent": extent,
        "by_status": [(statuses.get(status, status), count) for status, count in sorted(extent.by_status.items())],
        "said": listed.said,
        "hidden": [*_hidden(request, verb), *Progress(edge.asked, edge.upper, total=str(extent)).fields],
        "back": request.get_full_path(),
    }
    return admin.ask(request, verb, listed.queryset.none(), form, more)


def _page(
    admin: Asking,
    request: HttpRequest,
    listed: WalkingList,
    verb: Verb,
    progress: Progress,
    form: Form | None,
) -> HttpResponse:
    given = [(name, form.data.get(name, "")) for name in form.fields] if form else []
    context = {
        **admin.admin_site.each_context(request),
        "title": verb.label,
        "opts": admin.opts,
        "media": admin.media,
        "verb": verb,
        "progress": progress,
        "said": listed.said,
        "hidden": [*_hidden(request, verb), *progress.fields, *given, ("confirmed", "1")],
        "back": request.path + listed.get_query_string(),
    }
    request.current_app = admin.admin_site.name
    return TemplateResponse(request, "admin/horsies_django/matching.html", context)


def _hidden(request: HttpRequest, verb: Verb) -> list[tuple[str, str]]:
    """Return what brings a POST to the action again: Django asks for one row that is selected."""
    some = request.POST.getlist(ACTION_CHECKBOX_NAME)[:1]
    return [*((ACTION_CHECKBOX_NAME, key) for key in some), ("action", verb.name), ("select_across", "1")]


def _log(request: HttpRequest, listed: WalkingList, verb: str, flag: int, done: int, left: int) -> None:
    """Leave one entry for what this request has done."""
    if not (done or left):
        return
    narrowed = "; ".join(map(str, listed.said)) or _("all")
    message = _("%(verb)s, all that match: %(done)d done, %(left)d left alone.")
    LogEntry.objects.create(
        user_id=request.user.pk,  # type: ignore[misc]  # nobody else comes here
        content_type_id=ContentType.objects.get_for_model(listed.model, for_concrete_model=False).pk,
        object_id=None,
        object_repr=narrowed[:200],
        action_flag=flag,
        change_message=message % {"verb": verb, "done": done, "left": left} + f" [{narrowed}]",
    )
