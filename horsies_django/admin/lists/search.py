"""Parse the search field of the task list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from django.contrib import messages
from django.contrib.admin.views.main import SEARCH_VAR
from django.db.models import F, Lookup, OuterRef, Q, QuerySet, Subquery, TextField, Value
from django.db.models.fields.json import KT
from django.db.models.functions import Cast, Replace
from django.db.models.lookups import EndsWith, IContains
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...core.status import TASK_LIVE_STATES
from ...models import TaskAttempt
from ...ops.keyset import scopes
from ...ops.keyset.scan import KeyRange, RowFilter
from ...ops.keyset.scopes import ScanScope
from .filters import STATE_ALIASES, STATES, in_state, scope_of_state
from .ids import MIN_DIGITS, id_end, id_range, looks_like_id
from .payload_terms import PathTerm, PayloadFilter
from .search_terms import InvalidTerm, Takes, Term, split_terms

HELP: Final = gettext_lazy(
    "An id or its beginning, part of a task name, state:failed, queue:emails, error:text, args.order.id:42, "
    'args.shop:"North side", metadata.tenant:acme. Several terms must all match.'
)

#: The qualifiers of the task list. ``status`` is an older name of ``state``.
QUALIFIERS: Final = {
    "id": Takes.WORD,
    "name": Takes.WORD,
    "state": Takes.WORD,
    "status": Takes.WORD,
    "queue": Takes.WORD,
    "error": Takes.TEXT,
    "args": Takes.PATH,
    "metadata": Takes.PATH,
}


@dataclass(frozen=True, slots=True)
class Search:
    """A parsed search: conditions, the scope and bounds of matching rows, and terms that are compared in Python.

    A search with a ``problem`` matches no row.
    """

    rows: Q = field(default_factory=Q)
    states: tuple[str, ...] = ()
    scope: ScanScope = scopes.TABLE
    bounds: KeyRange = field(default_factory=KeyRange)
    queue: str | None = None
    payload: tuple[PathTerm, ...] = ()
    #: Makes the row filter of the payload terms.
    to_filter: Callable[[Sequence[PathTerm]], RowFilter] = PayloadFilter
    problem: str = ""

    def __and__(self, other: Search) -> Search:
        """Return the search that both match."""
        return replace(
            self,
            rows=self.rows & other.rows,
            states=self.states + other.states,
            scope=min(self.scope, other.scope, key=lambda scope: scope.cost),
            bounds=self.bounds & other.bounds,
            queue=self.queue or other.queue,
            payload=self.payload + other.payload,
        )

    @property
    def row_filter(self) -> RowFilter | None:
        """The filter of rows by the terms that are compared in Python; None without such terms."""
        return self.to_filter(self.payload) if self.payload else None

    def apply(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows that match all that the database compares."""
        if self.problem:
            return rows.none()
        rows = rows.filter(self.rows)
        for state in self.states:
            rows = in_state(rows, state)
        return rows

    def narrow(self, scope: ScanScope) -> ScanScope:
        """Limit ranges that are ordered by queue to the one that is searched for."""
        return scope.for_queue(self.queue) if self.queue else scope

    @property
    def hidden(self) -> list[str]:
        """The terms of which a mask has hidden values, after the scan."""
        return list(dict.fromkeys(term.name for term in self.payload if term.has_hidden))


def is_unreadable(request: HttpRequest) -> bool:
    """Return whether the search has a NUL. Django shows an error for it and would then list everything."""
    return "\0" in request.GET.get(SEARCH_VAR, "")


def parse_search(text: str) -> Search:
    """Parse a search. An invalid term makes a search with a problem, which finds nothing."""
    return combine(text, QUALIFIERS, _search_of)


def combine(
    text: str,
    qualifiers: Mapping[str, Takes],
    search_of: Callable[[Term], Search],
    to_filter: Callable[[Sequence[PathTerm]], RowFilter] = PayloadFilter,
) -> Search:
    """Return the search for all terms of a text."""
    search = Search(to_filter=to_filter)
    try:
        for term in split_terms(text.replace("\0", ""), qualifiers):
            search &= search_of(term)
    except InvalidTerm as error:
        return Search(problem=str(error))
    return search


def by_id(term: Term) -> Search:
    """Search an id, its beginning, or its end as lists show it. Raises :class:`InvalidTerm`."""
    if (bounds := id_range(term.text)) is not None:
        return Search(Q(pk__gte=bounds.low, pk__lte=bounds.high), bounds=bounds)
    if (end := id_end(term.text)) is not None:
        digits = Replace(Cast(F("pk"), TextField()), Value("-"), Value(""), output_field=TextField())
        return Search(Q(EndsWith(digits, end)))
    words = {"term": f"id:{term.text}", "digits": MIN_DIGITS}
    raise InvalidTerm(_("“%(term)s” is not an id. Allowed: an id, or at least its first %(digits)d digits.") % words)


def by_payload(term: Term) -> Search:
    """Search arguments or metadata, where they are not masked, and nothing else."""
    return Search(payload=(PathTerm(term.name, term.qualifier, term.path, term.text, term.is_quoted),))


def show_messages(request: HttpRequest, search: Search) -> None:
    """Tell the user what is invalid in a search, and where a mask has hidden values from it."""
    if search.problem:
        messages.error(request, search.problem)
    if search.hidden:
        names = {"names": ", ".join(f"“{name}”" for name in search.hidden)}
        messages.warning(request, _("%(names)s: values that a mask hides are not searched.") % names)


def _search_of(term: Term) -> Search:
    if term.qualifier == "id" or (not term.qualifier and not term.is_quoted and looks_like_id(term.text)):
        return by_id(term)
    if term.qualifier in ("", "name"):
        return Search(Q(task_name__contains=term.text))
    if term.qualifier in ("state", "status"):
        return _by_state(term)
    if term.qualifier == "queue":
        return Search(Q(queue_name=term.text), queue=term.text)
    return _by_error(term.text) if term.qualifier == "error" else by_payload(term)


def _by_state(term: Term) -> Search:
    state = STATE_ALIASES.get(term.text.lower(), term.text.lower())
    if state not in STATES:
        words = {"term": f"{term.qualifier}:{term.text}", "allowed": ", ".join(STATES)}
        raise InvalidTerm(_("“%(term)s” is not a state. Allowed: %(allowed)s.") % words)
    return Search(states=(state,), scope=scope_of_state(state))


def _by_error(text: str) -> Search:
    where = [KT(f"result__err__{key}") for key in ("message", "exception__type", "exception__message")]
    rows = Q(error_code__icontains=text)
    for value in where:
        rows |= Q(_contains(value, text))
    # A task that waits for a retry has no result yet, so its last attempt is searched.
    attempts = TaskAttempt.objects.filter(task=OuterRef("pk")).order_by("-attempt")
    for column in ("error_message", "exception_class"):
        of_last = Subquery(attempts.values(column)[:1])
        rows |= Q(_contains(of_last, text), status__in=sorted(TASK_LIVE_STATES))
    return Search(Q(error_code__isnull=False) & rows, scope=scopes.WITH_ERROR)


def _contains(value: Any, text: str) -> Lookup[Any]:
    return IContains(value, text)
