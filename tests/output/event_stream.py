"""Servers of events, and a client that reads them as a browser does."""

from __future__ import annotations

import http.client
import json
import re
import sys
from typing import Any, NamedTuple

from tests.conftest import wait_until
from tests.embedded.site import Site

PLAIN_ASGI = "from django.core.asgi import get_asgi_application\n\napplication = get_asgi_application()\n"

#: Servers without a worker of their own, so that their connections are those of the streams.
UVICORN = (sys.executable, "-m", "uvicorn", "--port", "0", "plain_asgi:application")
GUNICORN = (sys.executable, "-m", "gunicorn", "--bind", "127.0.0.1:0", "django.core.wsgi:get_wsgi_application()")
DAPHNE = (sys.executable, "-m", "daphne", "-p", "0", "plain_asgi:application")


class Event(NamedTuple):
    name: str
    data: Any
    id: str = ""


def parse(text: str) -> list[Event]:
    """Return the events of a whole response."""
    return [event for block in text.split("\n\n") if (event := parse_block(block)) is not None]


def parse_block(block: str) -> Event | None:
    """Return the event of these lines; None if they are a comment or a time after which to come back."""
    fields = dict(line.split(": ", 1) for line in block.split("\n") if line)
    return Event(fields["event"], json.loads(fields["data"]), fields.get("id", "")) if "event" in fields else None


def address_of(site: Site) -> str:
    """Return the host and port of a site, once it serves."""
    pattern = r"(?:running on|Listening at:|Listening on TCP address|server at) (?:http://)?(127\.0\.0\.1:\d+)"
    return str(wait_until(lambda: re.search(pattern, site.output), what=lambda: site.output)[1])


class Stream:
    """One response of a site, read as it comes."""

    def __init__(self, address: str, path: str, **headers: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=60)
        self._connection.request("GET", path, headers={name.replace("_", "-"): text for name, text in headers.items()})
        self.response = self._connection.getresponse()
        self.status = self.response.status

    def block(self) -> str:
        """Return the lines up to the next empty one; "" at the end of the response."""
        lines = []
        while (line := self.response.readline().decode()) not in ("", "\n"):
            lines.append(line)
        return "".join(lines)

    def next(self) -> Event | None:
        """Return the next event, None at the end of the response."""
        while block := self.block():
            if (event := parse_block(block)) is not None:
                return event
        return None

    def rest(self) -> list[Event]:
        """Return all further events."""
        return list(iter(self.next, None))

    def close(self) -> None:
        """Go away, as a browser does whose page is left."""
        self.response.close()
        self._connection.close()
