"""Read and parse the flags of commands and the environment variables that replace them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

import environ

from horsies_django.core.option_parsers import parse_duration

if TYPE_CHECKING:
    from horsies_django.core.options import MetricsOptions
    from horsies_django.worker.figures import SupervisorFigures

_TRUE: Final = environ.Env.BOOLEAN_TRUE_STRINGS
_FALSE: Final = ("", "0", "false", "no", "off", "n", "f")


def flag_or_variable(command: str, flag: str, flag_value: Any, parse: Callable[[str], Any]) -> tuple[str, Any]:
    """Return the source of a value and the value: from the flag if given, else from its variable, else None.

    The variable of ``--poll-interval`` of ``horsies_worker`` is ``HORSIES_WORKER_POLL_INTERVAL``. A text that ``parse``
    rejects is returned unparsed, so that the caller's validation can name it.
    """
    if flag_value is not None:
        return f"--{flag}", flag_value
    variable = f"{command}_{flag}".upper().replace("-", "_")
    env = environ.Env()
    if variable not in env.ENVIRON:
        return variable, None
    text = env.str(variable)
    try:
        return variable, parse(text)
    except ValueError:
        return variable, text


def boolean(text: str) -> bool:
    """Parse the variable of a boolean flag. Raises ValueError."""
    word = text.strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueError(text)


def parse_names(value: str | Iterable[str] | None) -> list[str]:
    """Split comma-separated names; also accepts a list, as ``call_command`` may pass one."""
    parts = value.split(",") if isinstance(value, str) else value or ()
    return [name for part in parts if (name := part.strip())]


def parse_duration_flag(where: str, flag_value: str | float | timedelta) -> timedelta:
    """Parse a duration. Raises ValueError naming the flag or variable."""
    value = (
        float(flag_value) if isinstance(flag_value, str) and flag_value.replace(".", "", 1).isdigit() else flag_value
    )
    try:
        duration = parse_duration(value)
    except ValueError:
        duration = None
    if duration is None:
        raise ValueError(f"{where}: {flag_value!r} is not allowed; allowed: seconds, or a text like 90s, 12h, 7d.")
    return duration


def positive_seconds(where: str, flag_value: str | float | timedelta | None) -> float | None:
    """Parse a positive number of seconds; None stays None. Raises ValueError naming the flag or variable."""
    if flag_value is None:
        return None
    try:
        seconds = flag_value.total_seconds() if isinstance(flag_value, timedelta) else float(flag_value)
    except (ValueError, TypeError):
        seconds = -1
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{where}: {flag_value!r} is not allowed; allowed: a positive number of seconds.")
    return seconds


# ``--metrics-port``: where a worker serves its own metrics.

METRICS_PORT: Final = "metrics-port"

_ADDRESSES: Final = "a port from 1 to 65535, or HOST:PORT like 0.0.0.0:9100 or [::]:9100; 0 is any free port"

#: Where a worker listens if only a port is given: other machines can't read it.
LOCALHOST: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Address:
    """An address to listen on; port 0 is any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class ServeMetrics(Protocol):
    """Serves the figures of a supervisor while the context is entered.

    Entering it raises ImproperlyConfigured if the address can't be used.
    """

    def __call__(
        self, figures: SupervisorFigures, address: Address, options: MetricsOptions
    ) -> AbstractContextManager[None]:
        """Return the context."""


def parse_address(where: str, value: str | int) -> Address:
    """Parse the value of the flag. Raises ValueError naming the flag or variable, the value and what is allowed."""
    host, colon, port = str(value).strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if (colon and not host) or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"{where}: {str(value)!r} is not allowed; allowed: {_ADDRESSES}.")
    return Address(host or LOCALHOST, int(port))
