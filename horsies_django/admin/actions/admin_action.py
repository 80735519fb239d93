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
LEFT_BY_READ_ONLY: Final = frozenset({"retry", "cancel"})


def always(row: Any) -> bool:
    """Every row may be meant."""
    return True


def nothing_else(rows: QuerySet[Any]) -> str:
    """Their state says it all."""
    return ""


def leave(count: int) -> str:
    """Say that nothing is to be done to so many rows."""
    return ngettext("Leave it as it is", "Leave them as they are", count)


def keep(count: int) -> str:
    """Say that so many rows are to be kept from something that can't be taken back."""
    return ngettext("Keep it", "Keep them", count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
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
    label_of_many: _StrPromise
    act: Callable[..., int]
    told: Callable[[int], str]
    fits: Callable[[Any], bool] = always
    statuses: Collection[str] | None = None
    watched: tuple[str, ...] = ("status",)
    permission: str = ""
    warning: _StrPromise | str = ""
    form: type[Form] | None = None
    flag: int = CHANGE
    why_not: Callable[[QuerySet[Any]], str] = nothing_else
    keep: Callable[[int], str] = leave
    counts: bool = False
    typed_above: int | None = None

    @property
    def asks(self) -> bool:
        """Whether a page comes before it."""
        return bool(self.warning or self.form)

    @property
    def right(self) -> str:
        """The permission's name, without the model's."""
        return self.permission or self.name

    def wants_number(self, count: int) -> bool:
        """Whether the number of rows has to be typed."""
        return self.typed_above is not None and count > self.typed_above

    def called(self, values: dict[str, Any]) -> str:
        """Return what a log says of it that is about many, done with these values."""
        return str(self.label)

    def is_allowed(self, request: HttpRequest, model: type[Model]) -> bool:
        """Whether this user may do it here."""
        if self.right not in LEFT_BY_READ_ONLY and is_read_only():
            return False
        options = model._meta
        return request.user.has_perm(f"{options.app_label}.{self.right}_{options.model_name}")

    def do(self, rows: QuerySet[Any], values: dict[str, Any]) -> tuple[int, dict[str, list[Any]]]:
        """Do it to each row by itself; return to how many, and the rows by what is to be logged of them.

        One by one, so that the log names those, and only those, that it changed.
        """
        found = {row.pk: row for row in rows}
        before = self._watch(rows, found)
        changed = [key for key in found if self.act(every_row(rows).filter(pk=key), **values)]
        after = self._watch(rows, changed)
        logged: dict[str, list[Any]] = {}
        for key in changed:
            message = self._message(rows.model, before.get(key, {}), after.get(key))
            logged.setdefault(message, []).append(found[key])
        return len(changed), logged

    def _watch(self, rows: QuerySet[Any], keys: Any) -> dict[Any, dict[str, Any]]:
        every = every_row(rows).filter(pk__in=list(keys))
        return {row.pop("pk"): row for row in every.values("pk", *self.watched)}

    def _message(self, model: type[Model], before: dict[str, Any], after: dict[str, Any] | None) -> str:
        if not after:
            return f"{self.label}."
        changes = [
            f"{capfirst(str(label_for_field(name, model)))}: {value} → {after[name]}"
            for name, value in before.items()
            if value != after[name]
        ]
        return ". ".join([str(self.label), *changes]) + "."


def every_row(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Return every row of the same table in the same database, whatever ``rows`` was narrowed to."""
    every: QuerySet[Any] = rows.model._default_manager.using(rows.db)
    return every
