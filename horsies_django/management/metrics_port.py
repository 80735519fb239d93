"""``--metrics-port``: where a worker serves its own metrics."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from horsies_django.core.options import MetricsOptions
    from horsies_django.worker.figures import SupervisorFigures

FLAG: Final = "metrics-port"

_ALLOWED: Final = "a port from 1 to 65535, or HOST:PORT like 0.0.0.0:9100 or [::]:9100; 0 is any free port"

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
        raise ValueError(f"{where}: {str(value)!r} is not allowed; allowed: {_ALLOWED}.")
    return Address(host or LOCALHOST, int(port))
