"""Whether a process of this machine has ended, as far as another one can prove it."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path

from .platform import boot_id


def process_identity() -> str:
    """Return at most 26 characters that identify this process among all of all machines; "" without /proc."""
    try:
        return f"{_namespace()}:{os.getpid()}:{_started_at(os.getpid())}"
    except OSError:
        return ""


def has_ended(identity: str) -> bool:
    """Return whether the process of an identity has ended, provably: False for one of elsewhere."""
    namespace, _, process = identity.partition(":")
    pid, _, started_at = process.partition(":")
    with suppress(OSError):
        if namespace and namespace == _namespace():
            return not _exists(int(pid)) or _started_at(int(pid)) != started_at
    return False


@cache
def _namespace() -> str:
    """Return a hash of this boot of the machine and of the namespace of its process ids. Raises OSError."""
    return blake2b(f"{boot_id()}{os.readlink('/proc/self/ns/pid')}".encode(), digest_size=3).hexdigest()


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user
        return True
    return True


def _started_at(pid: int) -> str:
    """Return when a process has started, in ticks since the boot; "" if it has ended. Raises OSError if hidden."""
    # The name of the program, which may hold anything, ends with the last bracket.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]
