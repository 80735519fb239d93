"""The actions that an operator may apply to a row, to selected rows, or to all matching rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from django.contrib.admin.models import CHANGE, DELETION
from django.contrib.admin.utils import label_for_field
from django.db.models import Model, QuerySet
from django.forms import Form
from django.http import HttpRequest
from django.utils.text import capfirst

from ...core.numbers import fill_numbers
from ..base import is_read_only

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

logger = logging.getLogger("horsies_django.admin")

#: Permissions whose actions a read-only admin keeps.
READ_ONLY_PERMISSIONS: Final = frozenset({"retry", "cancel"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminAction:
    """An operator's action. Its list action, its button on a row's page and its permission share its name.

    Attributes:
        name: The action's name, and the permission's: ``retry`` requires ``retry_task``.
        label: The button's label on a row's page.
        list_label: The label in the list of actions.
        question: The title of the confirmation page, with the placeholder ``rows``. Empty: the label.
        act: Applies it to those rows whose state allows it; returns how many it changed.
        message: Returns the message for a number of changed rows, with ``%d`` in its place.
        has_button: Returns whether the page of a row has its button. None: as ``statuses`` say.
        statuses: The statuses that allow it; its button counts only such rows. None: any.
        logged_columns: Columns whose changes are written to the admin's log.
        permission: The permission's name, if it is another action's.
        warning: The consequences, for the confirmation page. Empty: without a form there is no confirmation.
        form: A form for keyword arguments of ``act``.
    """

    name: str
    label: StrPromise | str
    list_label: StrPromise | str
    question: StrPromise | str = ""
    act: Callable[..., int]
    message: Callable[[int], str]
    has_button: Callable[[Any], bool] | None = None
    statuses: Collection[str] | None = None
    logged_columns: tuple[str, ...] = ("status",)
    permission: str = ""
    warning: StrPromise | str = ""
    form: type[Form] | None = None

    @property
    def needs_confirmation(self) -> bool:
        """Whether a confirmation page comes first."""
        return bool(self.warning or self.form)

    @property
    def permission_name(self) -> str:
        """The permission's name, without the model's name."""
        return self.permission or self.name

    @property
    def flag(self) -> int:
        """The action flag of a log entry."""
        return DELETION if self.name == "delete" else CHANGE

    def title(self, rows: str) -> str:
        """Return the title of the confirmation page for these rows in words."""
        question = str(self.question) % {"rows": rows} if self.question else f"{self.label}?"
        return question[:1].upper() + question[1:]

    def applies_to(self, row: Any) -> bool:
        """Return whether the page of a row has the button."""
        if self.has_button is not None:
            return self.has_button(row)
        return self.statuses is None or row.status in self.statuses

    def log_label(self, values: dict[str, Any]) -> str:
        """Return the action's name in a log entry, done with these form values."""
        return str(self.label)

    def extent(self, rows: QuerySet[Any] | None) -> str:
        """Return how much of these rows it changes, as a sentence for the confirmation. None: of all matching rows."""
        return ""

    def skipped_reason(self, rows: QuerySet[Any]) -> str:
        """Return why rows were skipped, if their status is not the reason."""
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
        by_key = {row.pk: row for row in rows.order_by("pk")}
        before = self._logged_values(rows, by_key)
        counts = {key: self.change(all_rows(rows).filter(pk=key), values) for key in by_key}
        changed = [key for key, (count, _parts) in counts.items() if count]
        after = self._logged_values(rows, changed)
        logged: dict[str, list[Any]] = {}
        for key in changed:
            changes = _describe_changes(rows.model, before.get(key, {}), after.get(key))
            message = ". ".join([self.log_label(values), *changes]) + "."
            logged.setdefault(message, []).append(by_key[key])
        return len(changed), sum(parts for _count, parts in counts.values()), logged

    def _logged_values(self, rows: QuerySet[Any], keys: Any) -> dict[Any, dict[str, Any]]:
        every = all_rows(rows).filter(pk__in=list(keys))
        return {row.pop("pk"): row for row in every.values("pk", *self.logged_columns)}


def _describe_changes(model: type[Model], before: dict[str, Any], after: dict[str, Any] | None) -> list[str]:
    return [
        f"{capfirst(str(label_for_field(name, model)))}: {value} → {after[name]}"
        for name, value in before.items()
        if after and value != after[name]
    ]


def all_rows(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Return all rows of the table in the database of ``rows``, without its filters."""
    every: QuerySet[Any] = rows.model._default_manager.using(rows.db)
    return every


def log_action(request: HttpRequest, model: type[Model], action: str, done: int, left: int) -> None:
    """Log the user, the action and the number of rows."""
    logger.info(
        "admin action=%r model=%s user=%s done=%d left_alone=%d", action, model._meta.label, request.user.pk, done, left
    )
