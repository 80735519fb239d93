"""A proxy between workers and server that can lose answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_CHUNK = 65_536

#: The name of a server's socket in its folder.
_SOCKET = ".s.PGSQL.5432"

#: Seconds for the server to commit before the connection closes.
_TIME_TO_COMMIT = 0.3


class LossyProxy:
    """Forwards bytes between its own socket and the server's, and can lose the answers to commits."""

    def __init__(self, folder: str, server_folder: str) -> None:
        self._server = str(Path(server_folder, _SOCKET))
        self._links: list[_Link] = []
        self._flows = threading.Event()
        self._flows.set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(Path(folder, _SOCKET)))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_answers(self) -> int:
        """Let the next COMMIT of every link arrive, but lose its answer and all after it; return how many links."""
        self._links = [link for link in self._links if link.is_open]
        for link in self._links:
            link.loses_next_commit = True
        return len(self._links)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Hold back all bytes for a while, then forward them; links stay open, and new ones get no answer."""
        self._flows.clear()
        try:
            yield
        finally:
            self._flows.set()

    def close(self) -> None:
        """Accept no more links."""
        self._listener.close()
        self._flows.set()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                link = _Link(client, self._flows)
                self._links.append(link)
                threading.Thread(target=link.run, args=(self._server,), daemon=True).start()


class _Link:
    def __init__(self, client: socket.socket, flows: threading.Event) -> None:
        self._client = client
        self._flows = flows
        self._server = socket.socket(socket.AF_UNIX)
        self.is_open = True
        self.loses_next_commit = False
        self._drops_answers = False

    def run(self, server: str) -> None:
        try:
            self._server.connect(server)
            threading.Thread(target=self._answers, daemon=True).start()
            while chunk := self._client.recv(_CHUNK):
                if self.loses_next_commit and b"COMMIT" in chunk:
                    self._drops_answers = True
                    threading.Timer(_TIME_TO_COMMIT, self.close).start()
                self._flows.wait()
                self._server.sendall(chunk)
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
            while chunk := self._server.recv(_CHUNK):
                self._flows.wait()
                if not self._drops_answers:
                    self._client.sendall(chunk)
        self.close()
