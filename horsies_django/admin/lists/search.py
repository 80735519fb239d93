"""Parse the search field of a list: ``send_receipt state:failed args.order.id:42 args.shop:"North side"``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final
from uuid import UUID

from django.db.models import OuterRef, Q, Subquery
from django.db.models.fields.json import KT
from django.db.models.lookups import IContains
from django.utils.translation import gettext as _

from ...core.status import TASK_LIVE_STATES
from ...models import TaskAttempt
from ...ops.keyset import scopes
from ...ops.keyset.criteria import NOTHING, Criteria
from ...ops.keyset.keys import KeyRange, is_id
from ...ops.keyset.scan import RowFilter
from ...ops.task_criteria import BY_STATE, in_queue
from .payload_search import PathTerm, PayloadFilter

#: Maximum number of terms of one search, of names of one path, and of characters of a search.
MAX_TERMS: Final = 20
MAX_NAMES: Final = 20
MAX_LENGTH: Final = 1_000

_TERM: Final = re.compile(
    r"""(?:(?P<qualifier>[A-Za-z_]+)(?P<path>(?:\.[^\s:"]*)?):)?(?:"(?P<quoted>(?:[^"\\]|\\.)*)"(?=\s|$)|(?P<word>\S*))"""
)


class Takes(Enum):
    """What a qualifier takes."""

    #: A word, or a text in quotes.
    WORD = "word"
    #: A text up to the next term.
    TEXT = "text"
    #: A path and a word: ``metadata.tenant:acme``.
    PATH = "path"


#: The qualifiers of the task list.
QUALIFIERS: Final = {
    "name": Takes.WORD,
    "state": Takes.WORD,
    "queue": Takes.WORD,
    "error": Takes.TEXT,
    "args": Takes.PATH,
    "metadata": Takes.PATH,
}


@dataclass(frozen=True, slots=True)
class Term:
    """One term: the qualifier in lower case, empty for a word of its own; its path; its text without quotes."""

    qualifier: str
    path: tuple[str, ...]
    text: str
    is_quoted: bool = False

    @property
    def name(self) -> str:
        """The qualifier with its path, as in ``args.order.id``."""
        return ".".join((self.qualifier, *self.path))


class InvalidTerm(ValueError):
    """A term that can't be searched for; the message names it and what is allowed."""


@dataclass(frozen=True, slots=True)
class Search:
    """A parsed search: criteria, and terms that are compared in Python. One with a ``problem`` matches no row."""

    criteria: Criteria = field(default_factory=Criteria)
    payload: tuple[PathTerm, ...] = ()
    #: Makes the row filter of the payload terms.
    to_filter: Callable[[Sequence[PathTerm]], RowFilter] = PayloadFilter
    problem: str = ""

    def __and__(self, other: Search) -> Search:
        """Return the search that both match."""
        return replace(self, criteria=self.criteria & other.criteria, payload=self.payload + other.payload)

    @property
    def row_filter(self) -> RowFilter | None:
        """The filter of rows by the terms that are compared in Python; None without such terms."""
        return self.to_filter(self.payload) if self.payload else None

    @property
    def hidden(self) -> list[str]:
        """The terms of which a mask has hidden values, after the scan."""
        return list(dict.fromkeys(term.name for term in self.payload if term.has_hidden))


def parse_search(text: str) -> Search:
    """Parse a search of tasks. An invalid term makes a search with a problem, which finds nothing."""
    return combine(text, QUALIFIERS, _search_of)


def combine(
    text: str,
    qualifiers: Mapping[str, Takes],
    search_of: Callable[[Term], Search],
    to_filter: Callable[[Sequence[PathTerm]], RowFilter] = PayloadFilter,
) -> Search:
    """Return the search for all terms of a text. A whole id as a word of its own finds its row."""
    search = Search(to_filter=to_filter)
    try:
        for term in split_terms(text.replace("\0", ""), qualifiers):
            search &= by_id(UUID(term.text)) if not term.qualifier and is_id(term.text) else search_of(term)
    except InvalidTerm as error:
        return Search(NOTHING, problem=str(error))
    return search


def by_id(key: UUID) -> Search:
    """Search an id."""
    return Search(Criteria(Q(pk=key), bounds=KeyRange(key, key)))


def by_payload(term: Term) -> Search:
    """Search arguments or metadata, where they are not masked, and nothing else."""
    return Search(payload=(PathTerm(term.name, term.qualifier, term.path, term.text, term.is_quoted),))


def _search_of(term: Term) -> Search:
    match term.qualifier:
        case "" | "name":
            return Search(Criteria(Q(task_name__contains=term.text)))
        case "state":
            state = term.text.lower()
            if state not in BY_STATE:
                words = {"term": f"state:{term.text}", "allowed": ", ".join(BY_STATE)}
                raise InvalidTerm(_("“%(term)s” is not a state. Allowed: %(allowed)s.") % words)
            return Search(BY_STATE[state])
        case "queue":
            return Search(in_queue(term.text))
        case "error":
            return Search(_with_error(term.text))
        case _:
            return by_payload(term)


def _with_error(text: str) -> Criteria:
    """Match a text in the error code, the message or the exception."""
    rows = Q(error_code__icontains=text)
    for key in ("message", "exception__type", "exception__message"):
        rows |= Q(IContains(KT(f"result__err__{key}"), text))
    # A task that waits for a retry has no result yet, so its last attempt is searched.
    attempts = TaskAttempt.objects.filter(task=OuterRef("pk")).order_by("-attempt")
    for column in ("error_message", "exception_class"):
        of_last: Any = Subquery(attempts.values(column)[:1])
        rows |= Q(IContains(of_last, text), status__in=sorted(TASK_LIVE_STATES))
    return Criteria(Q(error_code__isnull=False) & rows, scopes.WITH_ERROR)


def split_terms(text: str, qualifiers: Mapping[str, Takes]) -> list[Term]:
    """Return the terms of a search. Raises :class:`InvalidTerm`."""
    if len(text) > MAX_LENGTH:
        raise InvalidTerm(_("The search has more than %d characters.") % MAX_LENGTH)
    terms: list[Term] = []
    for match in _matches(text):
        qualifier, path = (match["qualifier"] or "").lower(), tuple((match["path"] or "").split(".")[1:])
        text, is_quoted = match["word"] or "", match["quoted"] is not None
        if qualifier:
            _check(match, qualifier, path, qualifiers)
        elif terms and not is_quoted and _takes_more(terms[-1], qualifiers):
            terms[-1] = replace(terms[-1], text=f"{terms[-1].text} {text}".strip())
            continue
        if is_quoted:
            text = re.sub(r"\\(.)", r"\1", match["quoted"])
        elif text.startswith('"'):
            raise InvalidTerm(_("“%s”: the closing quote is missing.") % match[0])
        terms.append(Term(qualifier, path, text, is_quoted))
    if len(terms) > MAX_TERMS:
        raise InvalidTerm(_("The search has more than %d terms.") % MAX_TERMS)
    for term in terms:
        if not term.text and not term.is_quoted:
            message = _("“%s” has no value. Allowed: a word, or a text in quotes, after the colon.")
            raise InvalidTerm(message % f"{term.name}:")
    return terms


def _matches(text: str) -> Iterator[re.Match[str]]:
    return (match for match in _TERM.finditer(text) if match[0])


def _takes_more(term: Term, qualifiers: Mapping[str, Takes]) -> bool:
    """Return whether the next word belongs to a term: to any text, and to a qualifier before a space."""
    takes = qualifiers.get(term.qualifier)
    return not term.is_quoted and (takes is Takes.TEXT or (takes is Takes.WORD and not term.text))


def _check(match: re.Match[str], qualifier: str, path: tuple[str, ...], qualifiers: Mapping[str, Takes]) -> None:
    """Raise :class:`InvalidTerm` for an unknown qualifier, or a path that it does not take."""
    name = f"{match['qualifier']}{match['path']}:"
    if (takes := qualifiers.get(qualifier)) is None:
        allowed = ", ".join(f"{key}.path:" if value is Takes.PATH else f"{key}:" for key, value in qualifiers.items())
        text = _("“%(term)s” is not a search term. Allowed: %(allowed)s. To find it in a name, quote it: %(quoted)s")
        raise InvalidTerm(text % {"term": name, "allowed": allowed, "quoted": f'"{match[0]}"'})
    if path and takes is not Takes.PATH:
        raise InvalidTerm(_("“%(term)s”: %(name)s takes no path.") % {"term": name, "name": qualifier})
    if takes is Takes.PATH and (not path or not all(path) or len(path) > MAX_NAMES):
        text = _("“%(term)s” needs a path of up to %(most)d names, as in %(name)s.tenant:acme or %(name)s.order.id:42.")
        raise InvalidTerm(text % {"term": name, "name": qualifier, "most": MAX_NAMES})
