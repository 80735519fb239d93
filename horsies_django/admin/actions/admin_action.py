"""Verbs: what an operator may do to a row, to some that are selected, or to all that match."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from django.contrib.admin.models import CHANGE
from django.contrib.admin.utils import label_for_field
from django.db.models import Model, QuerySet
from django.forms import Form
from django.http import HttpRequest
from django.utils.text import capfirst
from django.utils.translation import ngettext

from ..base import is_read_only

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise


#: The permissions whose verbs a read-only admin has.
READ_ONLY_PERMISSIONS: Final = frozenset({"retry", "cancel"})


def applies_always(row: Any) -> bool:
    """Every row may be meant."""
    return True


def no_reason(rows: QuerySet[Any]) -> str:
    """Their state says it all."""
    return ""


def leave_label(count: int) -> str:
    """Say that nothing is to be done to so many rows."""
    return ngettext("Leave it as it is", "Leave them as they are", count)


def keep_label(count: int) -> str:
    """Say that so many rows are to be kept from something that can't be taken back."""
    return ngettext("Keep it", "Keep them", count)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminAction:
    """One thing that an operator may do. Its action in a list, its button on a page and its permission share a name.

    Attributes:
        name: The action's name, and the permission's: ``retry`` asks for ``retry_task``.
        label: What the button of a row's page says.
        button: What the button says that does it, from how many rows that is and how that number is written.
        keep: What the link beside it says, from how many rows there are.
        counts: Whether all that match have to be counted before it can be done to them.
        typed_above: Of more rows than that, their number has to be typed before it is done to all that match.
        label_of_many: What the list of actions says.
        act: Does it to those of the rows whose state allows it; returns to how many.
        told: What to say of so many.
        fits: Whether its button stands on the page of this row.
        statuses: The statuses that allow it: its button counts rows in no other. None: any.
        watched: The columns whose change is told in the admin's log.
        permission: The permission's name where it is another's.
        warning: What comes of it, for a page that asks first. Empty: nothing is asked.
        form: Asks for what ``act`` takes by name.
        flag: What the admin's log calls it.
        why_not: What to say of rows some of which were left alone, where that is not their state.
    """

    name: str
    label: _StrPromise
    button: Callable[[int, str], str]
    list_label: _StrPromise
    act: Callable[..., int]
    message: Callable[[int], str]
    applies_to: Callable[[Any], bool] = applies_always
    statuses: Collection[str] | None = None
    logged_columns: tuple[str, ...] = ("status",)
    permission: str = ""
    warning: _StrPromise | str = ""
    form: type[Form] | None = None
    flag: int = CHANGE
    skipped_reason: Callable[[QuerySet[Any]], str] = no_reason
    back_label: Callable[[int], str] = leave_label
    counts_all: bool = False
    typed_number_above: int | None = None

    @property
    def needs_confirmation(self) -> bool:
        """Whether a page comes before it."""
        return bool(self.warning or self.form)

    @property
    def permission_name(self) -> str:
        """The permission's name, without the model's."""
        return self.permission or self.name

    def needs_typed_number(self, count: int) -> bool:
        """Whether the number of rows has to be typed."""
        return self.typed_number_above is not None and count > self.typed_number_above

    def log_label(self, values: dict[str, Any]) -> str:
        """Return what a log says of it that is about many, done with these values."""
        return str(self.label)

    def is_allowed(self, request: HttpRequest, model: type[Model]) -> bool:
        """Whether this user may do it here."""
        if self.permission_name not in READ_ONLY_PERMISSIONS and is_read_only():
            return False
        options = model._meta
        return request.user.has_perm(f"{options.app_label}.{self.permission_name}_{options.model_name}")

    def apply(self, rows: QuerySet[Any], values: dict[str, Any]) -> tuple[int, dict[str, list[Any]]]:
        """Do it to each row by itself; return to how many, and the rows by what is to be logged of them.

        One by one, so that the log names those, and only those, that it changed.
        """
        found = {row.pk: row for row in rows}
        before = self._read_logged(rows, found)
        changed = [key for key in found if self.act(all_rows(rows).filter(pk=key), **values)]
        after = self._read_logged(rows, changed)
        logged: dict[str, list[Any]] = {}
        for key in changed:
            message = self._log_message(rows.model, before.get(key, {}), after.get(key))
            logged.setdefault(message, []).append(found[key])
        return len(changed), logged

    def _read_logged(self, rows: QuerySet[Any], keys: Any) -> dict[Any, dict[str, Any]]:
        every = all_rows(rows).filter(pk__in=list(keys))
        return {row.pop("pk"): row for row in every.values("pk", *self.logged_columns)}

    def _log_message(self, model: type[Model], before: dict[str, Any], after: dict[str, Any] | None) -> str:
        if not after:
            return f"{self.label}."
        changes = [
            f"{capfirst(str(label_for_field(name, model)))}: {value} → {after[name]}"
            for name, value in before.items()
            if value != after[name]
        ]
        return ". ".join([str(self.label), *changes]) + "."


def all_rows(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Return every row of the same table in the same database, whatever ``rows`` was narrowed to."""
    every: QuerySet[Any] = rows.model._default_manager.using(rows.db)
    return every
