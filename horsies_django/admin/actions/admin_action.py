"""The actions that an operator may apply to a row, to selected rows, or to all matching rows."""

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
from django.utils.translation import gettext, ngettext

from ...core.numbers import fill_numbers
from ..base import is_read_only

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise


#: Permissions whose actions a read-only admin keeps.
READ_ONLY_PERMISSIONS: Final = frozenset({"retry", "cancel"})


def applies_always(row: Any) -> bool:
    """Return True: the action applies to every row."""
    return True


def no_reason(rows: QuerySet[Any]) -> str:
    """Return no reason: the rows' status explains it."""
    return ""


def leave_label(count: int) -> str:
    """Label the link that cancels an action on that many rows."""
    return gettext("Go back")


def keep_label(count: int) -> str:
    """Label the link that cancels an irreversible action on that many rows."""
    return ngettext("Keep it", "Keep them", count)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminAction:
    """An operator's action. Its list action, its button on a row's page and its permission share its name.

    Attributes:
        name: The action's name, and the permission's: ``retry`` requires ``retry_task``.
        label: The button's label on a row's page.
        button: Returns the label of the button that confirms it, from the number of rows and that number as text.
        list_label: The label in the list of actions.
        question: The title of the confirmation page, with the placeholder ``rows``. Empty: the label.
        act: Applies it to those rows whose state allows it; returns how many it changed.
        message: Returns the message for a number of changed rows, with ``%d`` in its place.
        applies_to: Returns whether the page of a row has its button.
        statuses: The statuses that allow it; its button counts only such rows. None: any.
        logged_columns: Columns whose changes are written to the admin's log.
        permission: The permission's name, if it is another action's.
        warning: The consequences, for the confirmation page. Empty: without a form there is no confirmation.
        form: A form for keyword arguments of ``act``.
        flag: The action flag of the log entry.
        skipped_reason: Returns why rows were skipped, if their status is not the reason.
        back_label: Returns the label of the link that leaves the confirmation page, from the number of rows.
        counts_all: Whether all matching rows have to be counted before it can be confirmed.
        typed_number_above: For more matching rows than this, the user has to type their number.
    """

    name: str
    label: _StrPromise
    button: Callable[[int, str], str]
    list_label: _StrPromise
    question: _StrPromise | str = ""
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
        """Whether a confirmation page comes first."""
        return bool(self.warning or self.form)

    @property
    def permission_name(self) -> str:
        """The permission's name, without the model's name."""
        return self.permission or self.name

    def needs_typed_number(self, count: int) -> bool:
        """Return whether the user has to type the number of rows to confirm."""
        return self.typed_number_above is not None and count > self.typed_number_above

    def title(self, rows: str) -> str:
        """Return the title of the confirmation page for these rows in words."""
        question = str(self.question) % {"rows": rows} if self.question else f"{self.label}?"
        return question[:1].upper() + question[1:]

    def log_label(self, values: dict[str, Any]) -> str:
        """Return the action's name in a log entry about many rows, done with these form values."""
        return str(self.label)

    def extent(self, rows: QuerySet[Any] | None) -> str:
        """Return how much of these rows it changes, as a sentence for the confirmation. None: of all matching rows."""
        return ""

    def change(self, rows: QuerySet[Any], values: dict[str, Any]) -> tuple[int, int]:
        """Apply it to those rows whose state allows it. Return how many it changed, and how many parts of them."""
        return self.act(rows, **values), 0

    def report(self, count: int, parts: int) -> str:
        """Return the message for a number of changed rows and of their changed parts."""
        return fill_numbers(self.message(count), count)

    def is_allowed(self, request: HttpRequest, model: type[Model]) -> bool:
        """Return whether this user may use the action."""
        if self.permission_name not in READ_ONLY_PERMISSIONS and is_read_only():
            return False
        options = model._meta
        return request.user.has_perm(f"{options.app_label}.{self.permission_name}_{options.model_name}")

    def apply(self, rows: QuerySet[Any], values: dict[str, Any]) -> tuple[int, int, dict[str, list[Any]]]:
        """Apply the action to each row on its own, the oldest first.

        Returns how many rows it changed, how many parts of them, and those rows by log message. One by one, so that the
        log names exactly the rows that it changed.
        """
        found = {row.pk: row for row in rows.order_by("pk")}
        before = self._read_logged(rows, found)
        counts = {key: self.change(all_rows(rows).filter(pk=key), values) for key in found}
        changed = [key for key, (count, _parts) in counts.items() if count]
        after = self._read_logged(rows, changed)
        logged: dict[str, list[Any]] = {}
        for key in changed:
            message = self._log_message(rows.model, before.get(key, {}), after.get(key))
            logged.setdefault(message, []).append(found[key])
        return len(changed), sum(parts for _count, parts in counts.values()), logged

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
    """Return all rows of the table in the database of ``rows``, without its filters."""
    every: QuerySet[Any] = rows.model._default_manager.using(rows.db)
    return every
