"""Text from rows, made safe for a terminal and for a line of a log.

A task's name, a worker's or an error's message may hold anything: an escape sequence that clears the screen or renames
its window, a line break that makes one log line two, a mark that reverses the reading order.
"""

from __future__ import annotations

import logging
import re
import textwrap
from typing import Any, Final

from django.core.management.base import OutputWrapper

#: Our loggers whose lines quote rows. A test finds missing ones.
LOGGERS: Final = (
    "horsies_django",
    "horsies_django.admin",
    "horsies_django.masking",
    "horsies_django.monitoring",
    "horsies_django.operations",
    "horsies_django.reaper",
    "horsies_django.scheduler",
    "horsies_django.tracing",
    "horsies_django.worker",
    "horsies_django.workflows",
)

#: C0 and C1 controls, line breaks, marks that change the reading order, the byte order mark, lone surrogates.
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_CONTROLS_BUT_LINES: Final = re.compile(_CONTROLS.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))

_SHORT: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def one_line(text: str) -> str:
    r"""Return text on one line. Characters that could control a terminal or break the line become escapes.

    >>> one_line("a\x1b[31m\nb")
    'a\\u001b[31m\\nb'
    """
    # Most texts have no such character; this check takes nanoseconds.
    return text if text.isprintable() else _CONTROLS.sub(_escaped, text)


def lines(text: str) -> str:
    r"""Return text as :func:`one_line` does, but with its line breaks and tabs: a traceback, indented JSON."""
    return text if text.isprintable() else _CONTROLS_BUT_LINES.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    # Escaped as in JSON, so that JSON stays JSON.
    return _SHORT.get(match[0]) or f"\\u{ord(match[0]):04x}"


class PrintableOutput(OutputWrapper):
    """The output of a command, with control characters escaped. Line breaks stay."""

    def write(self, msg: str = "", style_func: Any = None, ending: str | None = None) -> None:  # type: ignore[override]  # as Django's
        """Write ``msg``, with control characters escaped, as Django's OutputWrapper does."""
        super().write(lines(str(msg)), style_func, ending)


class OneLine(logging.Filter):
    """A logging filter that puts each message on one line, and indents the lines of its traceback.

    An exception's message may contain line breaks: an indented line of a traceback looks like no record.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Rewrite the record if necessary, which is rare."""
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001  # the arguments don't fit the message: the handler reports it
            return True
        if not message.isprintable():
            record.msg, record.args = one_line(message), ()
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            text = lines(_formatter.formatException(record.exc_info))
            record.exc_text = textwrap.indent(text, "  ")  # formatters read it from there
        return True


_formatter: Final = logging.Formatter()
_filter: Final = OneLine()


def sanitize_logs() -> None:
    """Add :class:`OneLine` to our loggers, so that it applies to all handlers."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_filter)
