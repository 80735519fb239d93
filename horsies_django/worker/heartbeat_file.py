"""The heartbeat file: its age tells a probe whether a worker is healthy, without HTTP, Django and the database."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from django.core.exceptions import ImproperlyConfigured

logger = logging.getLogger("horsies_django.worker")

#: Seconds between two writes.
INTERVAL: Final = 1.0

#: Probes may run as other users.
_MODE: Final = 0o644


class HeartbeatFile:
    """A file that the supervisor writes while its loop turns and a runner of it is healthy. Without a path: none."""

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None
        self._next_write = 0.0
        self._has_failed = False

    def prepare(self) -> None:
        """Delete the file of an earlier process. Raises ImproperlyConfigured if the path can't be written."""
        if self._path is None:
            return
        try:
            self._write(self._path)
            self._path.unlink()  # until a runner is healthy
        except (OSError, ValueError) as error:  # ValueError: the path has a NUL
            allowed = "a file, in a folder that exists and that this process may write to"
            raise ImproperlyConfigured(
                f"--heartbeat-file: {str(self._path)!r} can't be written: {error}; allowed: {allowed}."
            ) from error

    def beat(self) -> None:
        """Write the current time, if the last write is :data:`INTERVAL` seconds ago. A failure is logged once."""
        if self._path is None or time.monotonic() < self._next_write:
            return
        self._next_write = time.monotonic() + INTERVAL
        try:
            self._write(self._path)
            self._has_failed = False
        except OSError as error:  # the disk is full, say: the worker goes on, and the file's age tells
            if not self._has_failed:
                logger.error("heartbeat file not written path=%s error=%s", self._path, error)
            self._has_failed = True

    def remove(self) -> None:
        """Delete the file, because the worker ends."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()

    def _write(self, path: Path) -> None:
        """Replace the file as a whole, so that a reader never sees a part of it. Raises OSError.

        The name of the new file is random and it is created exclusively, so no other user can plant a link there.
        """
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w") as file:
                os.fchmod(handle, _MODE)
                file.write(f"{datetime.now(UTC).isoformat(timespec='seconds')}\n")
            os.replace(temporary, path)  # which replaces a link at the path, not the file behind it
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise
