"""The files of ``--state-dir``: a worker's shared memory that outlives its processes.

If all processes of a worker die at once, the next worker with this directory reads which bodies had begun. A file is
locked while any process of its worker lives. One that is short, of another user or of another boot is no evidence: the
tasks of its worker wait for a reaper, and each counts as begun. Other files of the directory are left alone.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from django.core.exceptions import ImproperlyConfigured

from ..core.platform import boot_id
from .started_registry import BOOT_ID_AT, StartedEvidence, StartedRegistry

#: The end of the name of each file, after the worker's id.
SUFFIX: Final = ".horsies-state"

#: O_NONBLOCK: opening a pipe must not wait.
_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class DeadState(NamedTuple):
    """What a runner of a dead worker has left. The descriptor holds the lock of its file."""

    worker_id: str
    evidence: StartedEvidence
    path: str
    descriptor: int

    def forget(self) -> None:
        """Delete the file, because the runner's tasks are recovered."""
        _unlink(self.path)
        os.close(self.descriptor)


def prepare(folder: str) -> None:
    """Create the directory if it does not exist. Raises ImproperlyConfigured if others could write to it."""
    try:
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise PermissionError("others may write to it or read it")
        _boot_id()
    except (OSError, ValueError) as error:  # ValueError: the path has a NUL
        allowed = "a directory of this user with the mode 0700, no link, on Linux"
        raise ImproperlyConfigured(f"--state-dir: {folder!r} can't be used: {error}; allowed: {allowed}.") from error


def create(folder: str, worker_id: str) -> int:
    """Create the file of a runner, and return its descriptor. Raises OSError."""
    path = _path(folder, worker_id)
    descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # the runner inherits it
        os.posix_fallocate(descriptor, 0, StartedRegistry.SIZE)  # on a full disk, a write to memory would kill it
        os.pwrite(descriptor, _boot_id(), BOOT_ID_AT)
    except OSError:
        os.close(descriptor)
        _unlink(path)
        raise
    if os.fstat(descriptor).st_nlink:
        return descriptor
    os.close(descriptor)  # another worker has found it before it was locked, and deleted it
    return create(folder, worker_id)


def find_dead(folder: str) -> Iterator[DeadState]:
    """Yield what runners have left of which no process lives; delete files that are no evidence."""
    names: list[str] = []
    with suppress(OSError):  # the directory is gone
        names = sorted(os.listdir(folder))
    for name in names:
        if not name.endswith(SUFFIX):
            continue
        path = os.path.join(folder, name)
        with suppress(OSError):  # a link, or a file of another user
            descriptor = os.open(path, _FLAGS)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                continue
            if _is_evidence(descriptor):
                yield DeadState(name.removesuffix(SUFFIX), StartedRegistry(descriptor).evidence(), path, descriptor)
            else:
                if os.fstat(descriptor).st_nlink:  # otherwise it was deleted, and a new file may have its name
                    _unlink(path)
                os.close(descriptor)


def remove(folder: str, worker_id: str) -> None:
    """Delete the file of a runner, unless it is gone."""
    _unlink(_path(folder, worker_id))


def _path(folder: str, worker_id: str) -> str:
    return os.path.join(folder, worker_id + SUFFIX)


def _unlink(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)


def _is_evidence(descriptor: int) -> bool:
    status, boot = os.fstat(descriptor), _boot_id()
    is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1
    is_whole = status.st_size == StartedRegistry.SIZE
    return is_ours and is_whole and os.pread(descriptor, len(boot), BOOT_ID_AT) == boot


def _boot_id() -> bytes:
    return boot_id().strip().encode()
