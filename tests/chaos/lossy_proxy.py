"""The wire between workers and server, on which answers can get lost."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PIECE = 65_536

#: The name of a server's socket in its folder.
_NAME = ".s.PGSQL.5432"

#: Seconds that a server gets to do what nobody will hear of.
_TIME_TO_COMMIT = 0.3


class Wire:
    """Carries bytes between a socket of its own and the server's, and can be told to lose the answers to commits."""

    def __init__(self, folder: str, server_folder: str) -> None:
        self._server = str(Path(server_folder, _NAME))
        self._links: list[_Link] = []
        self._carries = threading.Event()
        self._carries.set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(Path(folder, _NAME)))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_answers(self) -> int:
        """Let the next COMMIT of every link arrive, and neither its answer nor anything after; return how many."""
        self._links = [link for link in self._links if link.is_open]
        for link in self._links:
            link.is_doomed = True
        return len(self._links)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Carry nothing for a while, then all that was held back: links stay open, and new ones get no answer."""
        self._carries.clear()
        try:
            yield
        finally:
            self._carries.set()

    def close(self) -> None:
        """Take no more links."""
        self._listener.close()
        self._carries.set()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                link = _Link(client, self._carries)
                self._links.append(link)
                threading.Thread(target=link.run, args=(self._server,), daemon=True).start()


class _Link:
    def __init__(self, client: socket.socket, carries: threading.Event) -> None:
        self._client = client
        self._carries = carries
        self._server = socket.socket(socket.AF_UNIX)
        self.is_open = True
        self.is_doomed = False
        self._is_deaf = False

    def run(self, server: str) -> None:
        try:
            self._server.connect(server)
            threading.Thread(target=self._answers, daemon=True).start()
            while piece := self._client.recv(_PIECE):
                if self.is_doomed and b"COMMIT" in piece:
                    self._is_deaf = True
                    threading.Timer(_TIME_TO_COMMIT, self.close).start()
                self._carries.wait()
                self._server.sendall(piece)
        except OSError:
            pass
        self.close()

    def close(self) -> None:
        self.is_open = False
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _answers(self) -> None:
        with suppress(OSError):
            while piece := self._server.recv(_PIECE):
                self._carries.wait()
                if not self._is_deaf:
                    self._client.sendall(piece)
        self.close()
