"""A network between a PostgreSQL server and its clients that tests can cut, slow down and reset."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import subprocess
import threading
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Self

_CHUNK = 65_536

#: The name of a server's socket in its folder.
_SOCKET = ".s.PGSQL.5432"

_CLONE_NEWNET = 0x40000000

#: SO_LINGER with no time: close() sends a reset.
_RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Forwards TCP connections to a server's Unix socket.

    :meth:`cut` holds back all bytes in both directions and closes nothing: the kernel still acknowledges what a client
    sends, like that of a frozen server. :attr:`delay` is the seconds that each direction takes.
    """

    def __init__(self, socket_folder: str, *, address: str = "127.0.0.1", namespace: str | None = None) -> None:
        self._server = str(Path(socket_folder, _SOCKET))
        self.delay = 0.0
        self._flows = threading.Event()
        self._flows.set()
        self._ends: list[socket.socket] = []
        self._listener = _listen(address, namespace)
        self.address, self.port = self._listener.getsockname()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # close() alone does not end accept()
        self._listener.close()
        self._flows.set()
        self.reset()

    @property
    def url(self) -> str:
        """The URL of the database behind the proxy."""
        return f"postgresql://postgres@{self.address}:{self.port}/postgres"

    def redirect(self, socket_folder: str) -> None:
        """End all connections, and forward new ones to another server."""
        self._server = str(Path(socket_folder, _SOCKET))
        self.reset()

    def cut(self) -> None:
        """Deliver nothing from now on, without closing connections."""
        self._flows.clear()

    def heal(self) -> None:
        """Deliver everything that was held back, and resume."""
        self._flows.set()

    def reset(self) -> None:
        """End all connections at once with a reset."""
        ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):
                if end.family == socket.AF_INET:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server = socket.socket(socket.AF_UNIX)
        self._ends += (client, server)
        try:
            server.connect(self._server)
        except OSError:  # the server is down
            client.close()
            return
        for source, target in ((client, server), (server, client)):
            chunks: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
            threading.Thread(target=self._receive, args=(source, chunks), daemon=True).start()
            threading.Thread(target=self._send, args=(target, chunks), daemon=True).start()

    def _receive(self, source: socket.socket, chunks: SimpleQueue[tuple[float, bytes]]) -> None:
        chunk = b"more"
        while chunk:
            try:
                chunk = source.recv(_CHUNK)
            except OSError:
                chunk = b""
            chunks.put((time.monotonic() + self.delay, chunk))

    def _send(self, target: socket.socket, chunks: SimpleQueue[tuple[float, bytes]]) -> None:
        with suppress(OSError):
            while True:
                due, chunk = chunks.get()
                time.sleep(max(0.0, due - time.monotonic()))
                self._flows.wait()
                if not chunk:
                    target.shutdown(socket.SHUT_WR)
                    return
                target.sendall(chunk)


class Host:
    """A server behind its own address. After :meth:`vanish` its packets are dropped, without a reset."""

    _numbers = count()

    def __init__(self, socket_folder: str) -> None:
        number = os.getpid() % 8_000 * 8 + next(self._numbers) % 8  # no two test processes share a network
        net = f"10.{200 + number // 16_384}.{number // 64 % 256}"
        self._namespace = f"horsies-{number}"
        self._link = f"hz{number}"
        self._client = f"{net}.{number % 64 * 4 + 1}"
        self._address = f"{net}.{number % 64 * 4 + 2}"
        self._socket_folder = socket_folder
        self.proxy: Proxy

    def __enter__(self) -> Self:
        peer = f"{self._link}p"
        try:
            _ip("netns", "add", self._namespace)
            _ip("link", "add", self._link, "type", "veth", "peer", "name", peer, "netns", self._namespace)
            _ip("addr", "add", f"{self._client}/30", "dev", self._link)
            _ip("link", "set", self._link, "up")
            _ip("-n", self._namespace, "addr", "add", f"{self._address}/30", "dev", peer)
            _ip("-n", self._namespace, "link", "set", peer, "up")
            self.proxy = Proxy(self._socket_folder, address=self._address, namespace=self._namespace).__enter__()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.proxy.__exit__(kind, error, trace)
        self._remove()

    @property
    def url(self) -> str:
        """The URL of the database on this host."""
        return self.proxy.url

    def vanish(self) -> None:
        """Drop every packet to and from the host."""
        _ip("-n", self._namespace, "route", "add", "blackhole", f"{self._client}/32")

    def come_back(self) -> None:
        """Let packets through again."""
        _ip("-n", self._namespace, "route", "del", "blackhole", f"{self._client}/32")

    def _remove(self) -> None:
        # A namespace lives as long as a socket in it; only the link must not outlive the test.
        for arguments in (("link", "del", self._link), ("netns", "del", self._namespace)):
            subprocess.run(["ip", *arguments], check=False, capture_output=True)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()} (this needs root and iproute2)")


def _listen(address: str, namespace: str | None) -> socket.socket:
    """Listen in a network namespace, or in this process's own. Only a new thread enters the namespace."""
    made: list[socket.socket | OSError] = []

    def make() -> None:
        try:
            if namespace is not None:
                with Path("/run/netns", namespace).open() as handle:
                    if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), _CLONE_NEWNET):
                        raise OSError(ctypes.get_errno(), f"setns({namespace})")
            listener = socket.create_server((address, 0), backlog=64)
        except OSError as error:
            made.append(error)
        else:
            made.append(listener)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]
