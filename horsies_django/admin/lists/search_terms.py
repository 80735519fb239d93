"""Split a search into terms: ``send_receipt state:failed args.order.id:42 args.shop:"North side"``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from django.utils.translation import gettext as _

#: Maximum number of terms of one search, and of keys of one path.
MAX_TERMS: Final = 20
MAX_KEYS: Final = 20

#: Maximum number of characters of a search.
MAX_LENGTH: Final = 1_000

_QUALIFIED: Final = re.compile(r'([A-Za-z_]+)((?:\.[^\s:"]*)?):')
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"(?=\s|$)')
_WORD: Final = re.compile(r"\S*")
_ESCAPED: Final = re.compile(r"\\(.)")


class Takes(Enum):
    """What a qualifier takes."""

    #: A word, or a text in quotes.
    WORD = "word"
    #: A text up to the next term.
    TEXT = "text"
    #: A path and a word: ``metadata.tenant:acme``.
    PATH = "path"


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


def split_terms(text: str, qualifiers: Mapping[str, Takes]) -> Iterator[Term]:
    """Yield the terms of a search. Raises :class:`InvalidTerm`."""
    if len(text) > MAX_LENGTH:
        raise InvalidTerm(_("The search has more than %d characters.") % MAX_LENGTH)
    next_term = re.compile(rf"\s+(?=(?:{'|'.join(qualifiers)})(?:\.[^\s:\"]*)?:)", re.IGNORECASE)
    rest = text.strip()
    for _number in range(MAX_TERMS):
        if not rest:
            return
        if match := _QUALIFIED.match(rest):
            term, rest = _qualified(match, qualifiers, next_term)
        else:
            words, is_quoted, rest = _word(rest)
            term = Term("", (), words, is_quoted)
        yield term
        rest = rest.lstrip()
    if rest:
        raise InvalidTerm(_("The search has more than %d terms.") % MAX_TERMS)


def _qualified(match: re.Match[str], qualifiers: Mapping[str, Takes], next_term: re.Pattern[str]) -> tuple[Term, str]:
    """Return the term with the matched qualifier, and the rest of the text."""
    qualifier, path, rest = match[1].lower(), tuple(match[2].split(".")[1:]), match.string[match.end() :]
    _check(match[0], qualifier, path, rest, qualifiers)
    takes = qualifiers[qualifier]
    if takes is Takes.TEXT and not _QUOTED.match(rest.lstrip()):
        end = next_term.search(f" {rest}")
        cut = len(rest) if end is None else end.start()
        words, is_quoted, rest = rest[:cut].strip(), False, rest[cut:]
    else:
        words, is_quoted, rest = _word(rest if path else rest.lstrip())
    if not words and not is_quoted:
        raise InvalidTerm(_("“%s” has no value. Allowed: a word, or a text in quotes, after the colon.") % match[0])
    if path and words.startswith('"') and not is_quoted:
        raise InvalidTerm(_("“%s”: the closing quote is missing.") % f"{match[0]}{words}")
    return Term(qualifier, path, words, is_quoted), rest


def _check(name: str, qualifier: str, path: tuple[str, ...], rest: str, qualifiers: Mapping[str, Takes]) -> None:
    """Raise :class:`InvalidTerm` for an unknown qualifier, or a path that it does not take."""
    if (takes := qualifiers.get(qualifier)) is None:
        allowed = ", ".join(_spelled(*one) for one in qualifiers.items())
        text = _("“%(term)s” is not a search term. Allowed: %(allowed)s. To find it in a name, quote it: %(quoted)s")
        raise InvalidTerm(text % {"term": name, "allowed": allowed, "quoted": f'"{name}{_word(rest)[0]}"'})
    if path and takes is not Takes.PATH:
        raise InvalidTerm(_("“%(term)s”: %(name)s takes no path.") % {"term": name, "name": qualifier})
    if takes is Takes.PATH and (not path or not all(path) or len(path) > MAX_KEYS):
        text = _("“%(term)s” needs a path of up to %(most)d names, as in %(name)s.tenant:acme or %(name)s.order.id:42.")
        raise InvalidTerm(text % {"term": name, "name": qualifier, "most": MAX_KEYS})


def _word(text: str) -> tuple[str, bool, str]:
    """Return the first word or the text in quotes, whether it is quoted, and the rest."""
    if match := _QUOTED.match(text):
        return _ESCAPED.sub(r"\1", match[1]), True, text[match.end() :]
    match = _WORD.match(text)
    assert match  # it matches every text
    return match[0], False, text[match.end() :]


def _spelled(qualifier: str, takes: Takes) -> str:
    """Return a qualifier as it is typed."""
    return f"{qualifier}.path:" if takes is Takes.PATH else f"{qualifier}:"
