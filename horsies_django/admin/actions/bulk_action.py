"""Apply an action to all rows of a filtered list, up to millions, a few thousand per request.

It counts the rows, asks for confirmation, and then works in batches of short statements. No worker is needed: the
progress page continues by POST, through its script or its button, while it is open. Rows sent after the request for
confirmation are not changed, and no row is changed twice: it goes from newer to older ids, and each request continues
where the last one stopped. If more than twice as many rows match as announced, it stops and asks again.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar, Final, Protocol
from uuid import UUID

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

from ...core.numbers import fill_numbers, format_number
from ...ops.keyset.estimate import Estimate, estimate_rows, upper_bound
from ...ops.keyset.keys import parse_key
from ...ops.keyset.scan import KeysetScan
from ..lists.changelist import KeysetChangeList
from .admin_action import AdminAction

logger = logging.getLogger("horsies_django.admin")

#: Seconds of work per request.
WORK_SECONDS: Final = 2.0

#: Seconds of counting before the button appears, for actions that do not need the exact number.
COUNT_SECONDS: Final = 0.05

#: It asks again after this many times the announced number of rows.
_MAX_GROWTH: Final = 2

#: Upper bound for posted numbers.
_MAX_NUMBER: Final = 10**12


class ActionHost(Protocol):
    """What a bulk action needs from its admin: its pages and its messages."""

    admin_site: AdminSite
    opts: Any
    batch: ClassVar[int]

    @property
    def media(self) -> Media:
        """The style sheets and scripts of the pages."""

    def confirmation_page(
        self, request: HttpRequest, action: AdminAction, rows: QuerySet[Any], form: Form | None, more: Mapping[str, Any]
    ) -> HttpResponse:
        """Render the page that asks for confirmation."""

    def show_outcome(self, request: HttpRequest, done: str, left: int) -> None:
        """Show a message with the number of changed rows."""


@dataclass(frozen=True, slots=True)
class BulkProgress:
    """The progress of a bulk action, which the page posts to continue.

    Attributes:
        asked_at: When the user asked for it, by the database's clock; rows sent later are not changed.
        upper: Ids from here on are excluded, which skips most rows sent later.
        before: The id to continue below. None: start at ``upper``.
        done: Number of changed rows.
        left: Number of skipped rows.
        parts: Number of changed parts of rows, for actions that count them.
        confirmed: ``done`` plus ``left`` at the last confirmation.
        estimate: The number of rows to change after that, as far as counted.
    """

    asked_at: datetime
    upper: UUID
    before: UUID | None = None
    done: int = 0
    left: int = 0
    parts: int = 0
    confirmed: int = 0
    estimate: Estimate = field(default_factory=Estimate)

    @classmethod
    def start(cls, rows: QuerySet[Any]) -> BulkProgress:
        """Return the progress of an action that is requested now."""
        edge = upper_bound(rows)
        return cls(edge.asked_at, edge.upper, estimate=Estimate(before=edge.upper))

    @classmethod
    def parse(cls, model: type[Model], posted: QueryDict) -> BulkProgress | None:
        """Return the posted progress; None if it cannot be parsed."""
        upper = parse_key(model, posted.get("upper"))
        before, counted_to = (parse_key(model, posted.get(name)) for name in ("before", "counted_to"))
        if upper is None or (posted.get("before") and not before) or (posted.get("counted_to") and not counted_to):
            return None
        with suppress(ValueError):
            asked = parse_datetime(posted.get("asked", ""))
            names = ("done", "left", "parts", "confirmed_at", "scanned", "of")
            done, left, parts, confirmed, scanned, of = (_number(posted.get(name)) for name in names)
            estimate = Estimate(_statuses(posted.get("counted", "")), scanned, of or None, counted_to)
            if asked is not None and is_aware(asked):
                return cls(asked, upper, before, done, left, parts, confirmed, estimate)
        return None

    @property
    def fields(self) -> list[tuple[str, Any]]:
        """The hidden form fields."""
        estimate = self.estimate
        given = {
            "asked": self.asked_at.isoformat(),
            "upper": self.upper,
            "before": self.before,
            "done": self.done,
            "left": self.left,
            "parts": self.parts,
            "confirmed_at": self.confirmed,
            "counted": json.dumps(estimate.by_status),
            "counted_to": estimate.before,
            "scanned": estimate.scanned,
            "of": estimate.planner_rows,
        }
        return [(name, "" if value is None else str(value)) for name, value in given.items()]

    @property
    def remaining(self) -> int:
        """How many more rows may be processed before it asks again."""
        return max(0, self.confirmed + _MAX_GROWTH * self.estimate.counted - self.done - self.left)


def _number(text: str | None) -> int:
    return min(max(int(text or 0), 0), _MAX_NUMBER)


def _statuses(text: str) -> Counter[str]:
    """Parse counts by status. Raises ValueError if the text is not a dict of counts."""
    found = json.loads(text)
    if not isinstance(found, dict) or not all(
        isinstance(count, int) and 0 <= count <= _MAX_NUMBER for count in found.values()
    ):
        raise ValueError(text)
    return Counter(found)


def apply_to_matching(
    admin: ActionHost, request: HttpRequest, changelist: KeysetChangeList, action: AdminAction, form: Form | None
) -> HttpResponse:
    """Count, ask for confirmation, then work for ``WORK_SECONDS`` and show the progress."""
    progress = BulkProgress.parse(changelist.model, request.POST) or BulkProgress.start(changelist.queryset)
    is_confirmed = "confirmed" in request.POST and progress.estimate.scanned > 0
    if not is_confirmed:
        progress = _counted(changelist, action, progress)
    if not (is_confirmed and _is_number_confirmed(request, action, progress)) or (
        form is not None and not form.is_valid()
    ):
        return _confirmation_page(admin, request, changelist, action, form, progress)
    before = progress
    values = form.cleaned_data if form else {}
    is_over = False
    try:
        for step in _apply_batches(changelist.scan, action, values, before, admin.batch):
            progress, is_over = step
    finally:  # a failure leaves earlier batches committed: log them
        _log(request, changelist, action.log_label(values), action.flag, before, progress)
    if is_over:
        admin.show_outcome(request, action.report(progress.done, progress.parts), progress.left)
        return HttpResponseRedirect(request.path + changelist.get_query_string())
    if progress.remaining:
        return _progress_page(admin, request, changelist, action, progress, form)
    # More rows match than announced: count the rest and ask again.
    restarted = replace(
        progress,
        confirmed=progress.done + progress.left,
        estimate=Estimate(before=progress.before or progress.upper),
    )
    return _confirmation_page(
        admin, request, changelist, action, form, _counted(changelist, action, restarted), announced=progress.estimate
    )


def _counted(changelist: KeysetChangeList, action: AdminAction, progress: BulkProgress) -> BulkProgress:
    """Continue counting."""
    if progress.estimate.is_complete:
        return progress
    is_first_look = not (action.counts_all or progress.estimate.scanned or progress.confirmed)
    scan = changelist.scan.sent_until(progress.asked_at)
    return replace(
        progress, estimate=estimate_rows(scan, progress.estimate, COUNT_SECONDS if is_first_look else WORK_SECONDS)
    )


def _is_number_confirmed(request: HttpRequest, action: AdminAction, progress: BulkProgress) -> bool:
    """Return whether the user saw the number of rows before confirming it, and typed it if required."""
    estimate = progress.estimate
    if not estimate.counted or (action.counts_all and not estimate.is_complete):
        return False
    eligible = estimate.in_statuses(action.statuses).counted
    return not action.needs_typed_number(eligible) or _digits(request.POST.get("typed", "")) == str(eligible)


def _digits(text: str) -> str:
    return "".join(letter for letter in text if letter.isdecimal())


def _apply_batches(
    scan: KeysetScan, action: AdminAction, values: dict[str, Any], progress: BulkProgress, size: int
) -> Iterator[tuple[BulkProgress, bool]]:
    """Process batches until the time is up. Yield the progress after each, and whether it is complete.

    Rows that no longer match are skipped. Stops when ``remaining`` is used up.
    """
    until = time.monotonic() + WORK_SECONDS
    scan = scan.sent_until(progress.asked_at)
    for batch, cursor in scan.id_batches(progress.before or progress.upper, size):
        some = batch[: progress.remaining]
        if some:
            changed, parts = action.change(scan.rows.order_by().filter(pk__in=some), values)
            done, left = progress.done + changed, progress.left + len(some) - changed
            progress = replace(progress, done=done, left=left, parts=progress.parts + parts)
        if len(some) < len(batch):
            yield replace(progress, before=some[-1] if some else progress.before), False
            return
        progress = replace(progress, before=cursor)
        yield progress, cursor is None
        if time.monotonic() > until:
            return


def _confirmation_page(
    admin: ActionHost,
    request: HttpRequest,
    changelist: KeysetChangeList,
    action: AdminAction,
    form: Form | None,
    progress: BulkProgress,
    announced: Estimate | None = None,
) -> HttpResponse:
    estimate = progress.estimate
    status_field: Any = changelist.model._meta.get_field("status")
    statuses = dict(status_field.flatchoices)
    eligible = estimate.in_statuses(action.statuses)
    needs_typed_number = action.needs_typed_number(eligible.counted)
    more = {
        "estimate": estimate,
        "eligible": eligible,
        "count": eligible.counted,
        "by_status": [(statuses.get(status, status), count) for status, count in sorted(estimate.by_status.items())],
        "descriptions": changelist.descriptions,
        "hidden": [*_hidden(request, action), *progress.fields],
        "back": request.path + changelist.get_query_string(),
        "is_ready": eligible.counted > 0 and (estimate.is_complete or not action.counts_all),
        "continues": not estimate.is_complete and (action.counts_all or not eligible.counted),
        "needs_typed_number": needs_typed_number,
        "is_mistyped": needs_typed_number and "typed" in request.POST,
        "is_rest": progress.confirmed > 0,
        "more_than_announced": _more_than_announced(progress, announced) if announced else "",
    }
    if announced is not None:
        more["is_mistyped"] = False
    return admin.confirmation_page(request, action, changelist.queryset.none(), form, more)


def _more_than_announced(progress: BulkProgress, announced: Estimate) -> str:
    message = _("Stopped: more rows match than announced (%(announced)s). Processed so far: %(processed)s.")
    return message % {"processed": format_number(progress.confirmed), "announced": announced}


def _progress_page(
    admin: ActionHost,
    request: HttpRequest,
    changelist: KeysetChangeList,
    action: AdminAction,
    progress: BulkProgress,
    form: Form | None,
) -> HttpResponse:
    number = progress.confirmed + progress.estimate.counted
    given = [(name, form.data.get(name, "")) for name in form.fields] if form else []
    given += [("typed", request.POST["typed"])] if "typed" in request.POST else []
    context = {
        **admin.admin_site.each_context(request),
        "title": action.list_label,
        "opts": admin.opts,
        "media": admin.media,
        "action": action,
        "progress": progress,
        "processed": progress.done + progress.left,
        "number": number,
        "total": format_number(number) if progress.estimate.is_complete else _("at least %s") % format_number(number),
        "descriptions": changelist.descriptions,
        "hidden": [*_hidden(request, action), *progress.fields, *given, ("confirmed", "1")],
        "back": request.path + changelist.get_query_string(),
    }
    request.current_app = admin.admin_site.name
    return TemplateResponse(request, "admin/horsies_django/bulk_progress.html", context)


def _hidden(request: HttpRequest, action: AdminAction) -> list[tuple[str, str]]:
    """Return the fields that make a POST reach the action again; Django requires one selected row."""
    some = request.POST.getlist(ACTION_CHECKBOX_NAME)[:1]
    return [*((ACTION_CHECKBOX_NAME, key) for key in some), ("action", action.name), ("select_across", "1")]


def _log(
    request: HttpRequest,
    changelist: KeysetChangeList,
    action: str,
    flag: int,
    before: BulkProgress,
    after: BulkProgress,
) -> None:
    """Write one log entry for this request, with the totals so far."""
    done, left = after.done - before.done, after.left - before.left
    if not (done or left):
        return
    filters = "; ".join(map(str, changelist.descriptions)) or _("all")
    so_far = fill_numbers(_("So far: %(done)d changed, %(left)d skipped."), {"done": after.done, "left": after.left})
    message = fill_numbers(
        _("%(verb)s, all matching rows: %(done)d changed, %(left)d skipped."),
        {"verb": action, "done": done, "left": left},
    )
    LogEntry.objects.create(
        user_id=request.user.pk,  # type: ignore[misc]  # always authenticated here
        content_type_id=ContentType.objects.get_for_model(changelist.model, for_concrete_model=False).pk,
        object_id=None,
        object_repr=filters[:200],
        action_flag=flag,
        change_message=f"{message} {so_far} [{filters}]"
        if after.done != done or after.left != left
        else f"{message} [{filters}]",
    )
    log_action(request, changelist.model, action, done, left)


def log_action(request: HttpRequest, model: type[Model], action: str, done: int, left: int) -> None:
    """Log the user, the action and the number of rows."""
    logger.info(
        "admin action=%r model=%s user=%s done=%d left_alone=%d", action, model._meta.label, request.user.pk, done, left
    )
