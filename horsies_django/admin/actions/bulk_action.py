"""Apply an action to all rows of a filtered list, up to millions, a few thousand per request.

It counts the rows, asks for confirmation, and then works in batches of short statements. No worker is needed: the
progress page continues by POST, through its script or its button, while it is open. Rows sent after the request for
confirmation are not changed, and no row is changed twice: it goes from newer to older ids, and each request continues
where the last one stopped. It never changes more rows than announced.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core import signing
from django.forms import Form
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _

from ...core.numbers import fill_numbers, format_number
from ...ops.keyset.matching import MatchingRows, Tally
from ..lists.changelist import KeysetChangeList
from .admin_action import AdminAction, log_action

if TYPE_CHECKING:
    from .action_admin import ActionAdmin

#: Seconds of work per request.
WORK_SECONDS: Final = 2.0
#: For more rows to delete than this, the user has to type their number.
TYPED_ABOVE: Final = 1_000

_SALT: Final = "horsies_django.bulk_action"


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a bulk action, which the page posts to continue. It is signed, so that its numbers are ours.

    Attributes:
        asked_at: When the user asked for it, by the database's clock; rows sent later are not changed.
        before: The id to continue below.
        tally: The number of matching rows, as far as counted.
        done: Number of changed rows.
        left: Number of skipped rows.
        parts: Number of changed parts of rows, for actions that count them.
    """

    asked_at: datetime
    before: UUID
    tally: Tally = field(default_factory=Tally)
    done: int = 0
    left: int = 0
    parts: int = 0

    @classmethod
    def parse(cls, text: str) -> Progress | None:
        """Return the posted progress; None if it was not made here."""
        try:
            asked_at, before, by_status, scanned, counted_to, *numbers = json.loads(signing.loads(text, salt=_SALT))
        except signing.BadSignature:
            return None
        tally = Tally(Counter(by_status), scanned, counted_to and UUID(counted_to))
        return cls(datetime.fromisoformat(asked_at), UUID(before), tally, *numbers)

    def __str__(self) -> str:
        tally = self.tally
        counted = tally.by_status, tally.scanned, tally.before
        values = [self.asked_at.isoformat(), self.before, *counted, self.done, self.left, self.parts]
        return signing.dumps(json.dumps(values, default=str), salt=_SALT)

    @property
    def processed(self) -> int:
        """The number of rows that were changed or skipped."""
        return self.done + self.left


@dataclass(frozen=True, slots=True)
class BulkAction:
    """One request of an action on all rows that match a list."""

    admin: ActionAdmin
    request: HttpRequest
    changelist: KeysetChangeList
    action: AdminAction
    form: Form | None

    def response(self) -> HttpResponse:
        """Count, ask for confirmation, then work for ``WORK_SECONDS`` and show the progress."""
        scan = self.changelist.scan
        posted = Progress.parse(self.request.POST.get("progress", ""))
        progress = posted or self._start(MatchingRows.now(scan))
        matching = MatchingRows(scan, progress.asked_at, progress.before)
        if not progress.tally.is_complete:
            progress = replace(progress, tally=matching.count(progress.tally, WORK_SECONDS))
            return self._confirmation_page(progress)
        is_confirmed = posted is not None and "confirmed" in self.request.POST and self._is_number_typed(progress)
        if not is_confirmed or (self.form is not None and not self.form.is_valid()):
            return self._confirmation_page(progress)
        return self._work(matching, progress)

    def _start(self, matching: MatchingRows) -> Progress:
        return Progress(matching.asked_at, matching.newest, Tally(before=matching.newest))

    def _work(self, matching: MatchingRows, start: Progress) -> HttpResponse:
        """Process batches until the time is up. Rows that no longer match are skipped."""
        values, until, progress = self.form.cleaned_data if self.form else {}, time.monotonic() + WORK_SECONDS, start
        total, is_over, is_cut = start.tally.by_status.total(), False, False
        try:
            for batch, before in matching.batches(start.before, self.admin.batch):
                keys = batch[: total - progress.processed]
                is_cut, is_over = len(keys) < len(batch), before is None
                if keys:
                    done, parts = self.action.change(matching.rows.filter(pk__in=keys), values)
                    left = progress.left + len(keys) - done
                    progress = replace(progress, done=progress.done + done, left=left, parts=progress.parts + parts)
                if before is None or is_cut:
                    break
                progress = replace(progress, before=before)
                if time.monotonic() > until:
                    break
        finally:  # a failure leaves earlier batches committed: log them
            self._log(values, start, progress)
        if not (is_over or is_cut):
            return self._progress_page(progress)
        self.admin.show_outcome(self.request, self.action.report(progress.done, progress.parts), progress.left)
        if is_cut:
            text = _("Stopped: more rows match than announced (%s).") % format_number(total)
            self.admin.message_user(self.request, text, messages.WARNING)
        return HttpResponseRedirect(self.request.path + self.changelist.get_query_string())

    def _needs_typed_number(self, progress: Progress) -> bool:
        return self.action.name == "delete" and progress.tally.of_statuses(self.action.statuses) > TYPED_ABOVE

    def _is_number_typed(self, progress: Progress) -> bool:
        typed = "".join(letter for letter in self.request.POST.get("typed", "") if letter.isdecimal())
        return not self._needs_typed_number(progress) or typed == str(progress.tally.of_statuses(self.action.statuses))

    def _confirmation_page(self, progress: Progress) -> HttpResponse:
        tally = progress.tally
        status_field: Any = self.changelist.model._meta.get_field("status")
        labels = dict(status_field.flatchoices)
        count = tally.of_statuses(self.action.statuses)
        needs_typed_number = self._needs_typed_number(progress)
        more = {
            "tally": tally,
            "count": count,
            "by_status": [(labels.get(status, status), number) for status, number in sorted(tally.by_status.items())],
            "descriptions": self.changelist.descriptions,
            "hidden": [*self._hidden, ("progress", progress)],
            "back": self.request.path + self.changelist.get_query_string(),
            "is_ready": tally.is_complete and count > 0,
            "needs_typed_number": needs_typed_number,
            "is_mistyped": needs_typed_number and "typed" in self.request.POST,
        }
        rows = self.changelist.queryset.none()
        return self.admin.confirmation_page(self.request, self.action, rows, self.form, more)

    def _progress_page(self, progress: Progress) -> HttpResponse:
        values = [(name, self.form.data.get(name, "")) for name in self.form.fields] if self.form else []
        values += [("typed", self.request.POST["typed"])] if "typed" in self.request.POST else []
        context = {
            "title": self.action.list_label,
            "action": self.action,
            "progress": progress,
            "number": progress.tally.by_status.total(),
            "descriptions": self.changelist.descriptions,
            "hidden": [*self._hidden, ("progress", progress), *values, ("confirmed", "1")],
            "back": self.request.path + self.changelist.get_query_string(),
        }
        return self.admin.render(self.request, "bulk_progress", context)

    @property
    def _hidden(self) -> list[tuple[str, Any]]:
        """The fields that make a POST reach the action again; Django requires one selected row."""
        keys = self.request.POST.getlist(ACTION_CHECKBOX_NAME)[:1]
        return [*((ACTION_CHECKBOX_NAME, key) for key in keys), ("action", self.action.name), ("select_across", "1")]

    def _log(self, values: dict[str, Any], before: Progress, after: Progress) -> None:
        """Write one log entry for this request, with the totals so far."""
        done, left = after.done - before.done, after.left - before.left
        if not (done or left):
            return
        filters = "; ".join(map(str, self.changelist.descriptions)) or _("all")
        label = self.action.log_label(values)
        numbers = {"verb": label, "done": done, "left": left}
        message = fill_numbers(_("%(verb)s, all matching rows: %(done)d changed, %(left)d skipped."), numbers)
        if before.processed:
            totals = {"done": after.done, "left": after.left}
            message += " " + fill_numbers(_("So far: %(done)d changed, %(left)d skipped."), totals)
        LogEntry.objects.create(
            user_id=self.request.user.pk,  # type: ignore[misc]  # always authenticated here
            content_type_id=ContentType.objects.get_for_model(self.changelist.model, for_concrete_model=False).pk,
            object_id=None,
            object_repr=filters[:200],
            action_flag=self.action.flag,
            change_message=f"{message} [{filters}]",
        )
        log_action(self.request, self.changelist.model, label, done, left)
