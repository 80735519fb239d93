"""Calls the functions of a peer's module in a driver process, inside the peer's own environment."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .processes import last_error_line


class PeerError(Exception):
    """A peer failed or made no progress."""


class Driver:
    """A running driver process. It answers one call after the other."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    def begin(self, do: str, **arguments: Any) -> None:
        """Send a call without waiting for its response. Call ``finish()`` next."""
        assert self._process.stdin is not None
        print(json.dumps({"do": do, "with": arguments}), file=self._process.stdin)

    def finish(self) -> tuple[Any, float]:
        """Wait for the response; return the function's value and its seconds inside the process."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise PeerError(f"its driver exited: {last_error_line(self._log)}")
        response = json.loads(line)
        if "error" in response:
            with self._log.open("a") as log:
                log.write(response["error"])
            raise PeerError(last_error_line(self._log))
        return response["value"], response["seconds"]

    def timed(self, do: str, **arguments: Any) -> tuple[Any, float]:
        """Call a function; return its value and its seconds inside the process."""
        self.begin(do, **arguments)
        return self.finish()

    def call(self, do: str, **arguments: Any) -> Any:
        """Call a function and return its value."""
        return self.timed(do, **arguments)[0]


@contextmanager
def start_driver(command: Sequence[str], env: Mapping[str, str], folder: Path, log: Path) -> Iterator[Driver]:
    """Start a driver process and kill it after the block. Its first response says that it is ready."""
    with log.open("a") as file:
        process = subprocess.Popen(  # noqa: S603
            command,
            env=env,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
    try:
        yield Driver(process, log)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()
