"""Base classes of filters. They don't query the table for their choices; each gives the criteria of its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.views.main import SEARCH_VAR
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...ops.keyset.criteria import NOTHING, Criteria
from ...ops.keyset.keys import is_id


class ChoiceFilter(admin.SimpleListFilter):
    """A filter with one choice by one parameter. An unknown value matches no row.

    It must not match all rows, since an action may be applied to all matches.
    """

    template = "admin/horsies_django/choice_filter.html"
    #: Whether it is collapsed until something is selected.
    is_folded: ClassVar[bool] = False
    #: The default choice. It does not apply to a search for an id.
    default: ClassVar[str | None] = None
    #: The label and the criteria of each choice, by its value.
    options: ClassVar[Mapping[str, tuple[Any, Criteria]]] = {}

    def __init__(self, request: HttpRequest, *args: Any) -> None:
        self._is_id_searched = is_id(request.GET.get(SEARCH_VAR, ""))
        super().__init__(request, *args)

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the choices."""
        return [(value, label) for value, (label, _criteria) in self.options.items()]

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Yield the choices; without a default choice, *All* comes first."""
        if self.default is None:
            yield self._choice(changelist, None, _("All"))
        for value, title in self.lookup_choices:
            yield self._choice(changelist, None if value == self.default else value, title)

    def _choice(self, changelist: Any, value: Any, title: Any) -> dict[str, Any]:
        query = changelist.get_query_string({self.parameter_name: value})
        return {"selected": self.selected == (value or self.default), "query_string": query, "display": title}

    @property
    def selected(self) -> str | None:
        """The selected choice; None for an unknown one."""
        return value if (value := self.value()) in dict(self.lookup_choices) else self.default

    @property
    def is_unknown(self) -> bool:
        """Whether the parameter has an unknown value."""
        return bool(self.value()) and self.value() not in dict(self.lookup_choices)

    def has_output(self) -> bool:
        """Return True; Django would hide a filter without choices, even if it is used."""
        return super().has_output() or self.is_unknown

    @property
    def is_active(self) -> bool:
        """Whether it narrows the list; the default choice does not."""
        return self.is_unknown or self.selected != self.default

    @property
    def description(self) -> str | None:
        """The selection in words; None if nothing is selected."""
        if self.is_unknown:
            return f"{self.title}: {self.value()!r}"
        return None if self.selected is None else f"{self.title}: {dict(self.lookup_choices)[self.selected]}"

    @property
    def criteria(self) -> Criteria:
        """The criteria of the selection."""
        if self.is_unknown:
            return NOTHING
        is_default_skipped = self.value() is None and self._is_id_searched
        return Criteria() if self.selected is None or is_default_skipped else self.criteria_of(self.selected)

    def criteria_of(self, choice: str) -> Criteria:
        """Return the criteria of a choice: those among ``options``, or else the column with this value."""
        return self.options[choice][1] if choice in self.options else Criteria(Q(**{str(self.parameter_name): choice}))

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Filter by the selection."""
        return self.criteria.filter(queryset)


class FoldedFilter(ChoiceFilter):
    """A filter that is collapsed until something is selected, because it has many choices."""

    is_folded = True

    def choices_with_selected(self, request: HttpRequest, values: set[str]) -> list[tuple[str, str]]:
        """Return the choices, plus the requested one if it is missing."""
        requested = request.GET.get(str(self.parameter_name), "").replace("\0", "")
        return [(value, value) for value in sorted((values | {requested}) - {""})]


class LinkedFilter(FoldedFilter):
    """A filter that other pages link to. Only the requested value is a choice, because there may be thousands."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the requested value with its name."""
        value = request.GET.get(str(self.parameter_name), "")
        return [(value, self.name_of(value, request, model_admin))] if self.is_valid(value) else []

    def is_valid(self, value: str) -> bool:
        """Return whether a row can have this value."""
        raise NotImplementedError

    def name_of(self, value: str, request: HttpRequest, model_admin: Any) -> str:
        """Return the name of a value."""
        return value


def form_of(changelist: Any, *names: str, **values: Any) -> dict[str, Any]:
    """Return what the form of a filter needs: its values, and the other parameters, which it keeps."""
    others = [(name, value) for name, value in changelist.params.items() if name not in names]
    return {"form": True, "others": others, **values}
