"""Writes the worker's log lines to the terminal, for projects that have not configured logging, and never blocks long.

In a supervisor, a thread of its own passes records to their handlers, so that a handler that blocks stops nothing else.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Final, Self, TextIO

from ..core.current_task import ClaimedRow, log_attributes
from ..core.platform import open_nonblocking, register_at_fork, wait
from ..core.printable import LOGGERS, OneLine, one_line
from ..core.sync import Mailbox

logger = logging.getLogger("horsies_django.worker")

#: The logger that a project's LOGGING configures; our other loggers are below it.
_package_logger = logging.getLogger("horsies_django")

_LEVELS: Final = {0: logging.WARNING, 1: logging.INFO}

#: Characters that are written at once: writes to a pipe up to this size are atomic.
_CHUNK: Final = 4_096

#: Seconds to wait for the reader of a full pipe.
_PATIENCE: Final = 1.0

_FORMATTER: Final = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s %(message)s")

_Line = tuple[float, str, tuple[object, ...]]


class Console:
    """A stream to stderr that does not block for long, whatever happens to the reader of a pipe or of a terminal.

    It waits for the reader once. Lines that then find no room are lost until there is room again, and counted. So are
    lines for which the disk has no room.
    """

    def __init__(self, stream: TextIO) -> None:
        self._encoding = stream.encoding
        self._descriptor, self._send = open_nonblocking(stream.fileno())
        self._lost = 0

    def write(self, text: str) -> None:
        """Write whole lines."""
        if self._lost and self._is_written(f"{_lost_line(self._lost)}\n".encode()):
            self._lost = 0
        data = text.encode(self._encoding, "backslashreplace")
        for start in range(0, len(data), _CHUNK):
            if self._lost or not self._is_written(data[start : start + _CHUNK]):
                self._lost += data.count(b"\n", start)
                break

    def flush(self) -> None:
        """Do nothing: nothing is kept."""

    def _is_written(self, data: bytes) -> bool:
        deadline = time.monotonic() + (0.0 if self._lost else _PATIENCE)
        while data:
            try:
                data = data[self._send(data) :]
            except BlockingIOError:
                if (left := deadline - time.monotonic()) <= 0:
                    return False
                wait(left, writable=[self._descriptor])
            except OSError:
                return False
        return True


def _lost_line(count: int) -> str:
    values = {"name": logger.name, "levelname": "WARNING", "msg": "log lines lost count=%d", "args": (count,)}
    return _FORMATTER.format(logging.makeLogRecord(values))


def _stderr() -> TextIO | Console:
    """Return stderr, as a :class:`Console` if it is a file and not, as in a test, an object."""
    try:
        return Console(sys.stderr)
    except (AttributeError, OSError, ValueError):  # AttributeError: it was closed before Python started
        return sys.stderr


class BufferedHandler(logging.StreamHandler[TextIO]):
    """Writes our lines to stderr, and those of many short tasks together.

    A record and a write for each would take longer than the tasks. So ``write_later`` keeps a line for milliseconds,
    until the next ``flush``; records that come meanwhile are written after it. Errors of the stream are not raised.
    """

    def __init__(self) -> None:
        super().__init__(_stderr())  # type: ignore[arg-type]  # a Console has what the handler needs
        self.setFormatter(_FORMATTER)
        self._pending: deque[_Line] = deque()
        self._may_wait: bool | None = None
        self._second = self._millisecond = 0
        self._before = self._time = self._after = ""
        register_at_fork(after_in_child=self._pending.clear)  # the parent writes them

    def write_later(self, message: str, *args: object) -> bool:
        """Keep a line of level INFO until the next ``flush``; return False if it has to go through a record."""
        may_wait = self._may_wait  # read once: the flush of another thread resets it
        if may_wait is None:  # asked once for all the lines until the flush
            may_wait = self._may_wait = logger.isEnabledFor(logging.INFO) and self.is_only_handler()
        if may_wait:
            self._pending.append((time.time(), message, args))
        return may_wait

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, after the lines that were kept."""
        self.flush()
        super().emit(record)

    def flush(self) -> None:
        """Write the lines that were kept."""
        self._may_wait = None
        self.acquire()
        try:
            lines = [self._pending.popleft() for _ in range(len(self._pending))]
            try:
                self._write(lines)
                super().flush()
            except Exception:  # noqa: BLE001  # as in any handler, errors must not reach the caller
                self.handleError(logging.makeLogRecord({"msg": "log lines lost count=%d", "args": (len(lines),)}))
        finally:
            self.release()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's own name
        """Print an error to stderr, if that is still open."""
        with suppress(Exception):
            super().handleError(record)

    def _write(self, lines: list[_Line]) -> None:
        piece: list[str] = []
        size = 0
        for line in map(self._format_line, lines):
            size += len(line)
            if size > _CHUNK:
                self.stream.write("".join(piece))
                piece, size = [], len(line)
            piece.append(line)
        if piece:
            self.stream.write("".join(piece))

    def _format_line(self, line: _Line) -> str:
        created, message, args = line
        if self._millisecond != (millisecond := int(created * 1_000)):
            self._millisecond = millisecond
            if self._second != millisecond // 1_000:
                self._second = millisecond // 1_000
                moment = {"created": self._second, "msecs": 0, "msg": ""}
                record = logging.makeLogRecord({"name": logger.name, "levelname": "INFO", **moment})
                self._before, _, self._after = self.format(record).partition(",000")
            self._time = f"{self._before},{millisecond % 1_000:03d}{self._after}"
        return f"{self._time}{one_line(message % args)}\n"

    def is_only_handler(self) -> bool:
        """Whether records of our logger come to this handler and to no other, so that no other misses them."""
        return (
            _package_logger.handlers == [self]
            and not (logger.handlers or self.filters)
            and all(isinstance(log_filter, OneLine) for log_filter in logger.filters)  # _format_line() applies it, too
            and not (_package_logger.propagate and logging.getLogger().handlers)
            and logging.getLogRecordFactory() is logging.LogRecord
            and logger.callHandlers.__module__ == logging.__name__  # otherwise an error tracker has patched it
        )


def log_to_console(verbosity: int) -> None:
    """Show the lines of ``horsies_django``, unless the project's LOGGING configures them.

    ``hasHandlers()`` is not enough: Django's default handler belongs to ``django`` and is silent in production.
    """
    if _package_logger.handlers or logging.getLogger().handlers:
        return
    _package_logger.addHandler(BufferedHandler())
    _package_logger.setLevel(_LEVELS.get(verbosity, logging.DEBUG))


def log_and_print(message: str, *args: object, verbosity: int) -> None:
    """Log a line of level INFO, and print it to stderr if LOGGING keeps it from the terminal.

    Without any output, a process seems to hang. Verbosity 0 asks for no output.
    """
    logger.info(message, *args, stacklevel=2)
    if verbosity and not _is_shown():
        with suppress(OSError, ValueError):  # stderr may be closed
            stream = _stderr()
            stream.write(f"{one_line(message % args)}\n")
            stream.flush()


def _is_shown() -> bool:
    """Whether a handler writes our lines of level INFO to stderr or stdout."""
    record = logging.makeLogRecord({"name": logger.name, "levelno": logging.INFO, "levelname": "INFO"})
    for handler in _handlers() if logger.isEnabledFor(logging.INFO) else ():
        is_stream = isinstance(handler, logging.StreamHandler) and handler.stream in (sys.stderr, sys.stdout)
        is_console = is_stream or isinstance(handler, BufferedHandler)
        if is_console and handler.level <= logging.INFO and handler.filter(record):
            return True
    return False


def accepts_records(timeout: float) -> bool:
    """Whether no handler of our records blocks: each one's lock is free once within ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    for handler in _handlers():
        if handler.lock is not None:
            if not handler.lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                return False
            handler.lock.release()
    return True


def _handlers() -> Iterator[logging.Handler]:
    current: logging.Logger | None = logger
    while current is not None:
        yield from current.handlers
        current = current.parent if current.propagate else None


def log_later(row: ClaimedRow | None, message: str, *args: object, is_last: bool) -> None:
    """Log at INFO, about a task, what short tasks log thousands of times a second.

    If our own handler is the only one, the line may wait for the next line with ``is_last``, or for ``flush``.
    """
    console = _handler()
    if console is None or not console.write_later(message, *args):
        logger.info(message, *args, stacklevel=2, extra=log_attributes(row))
    elif is_last:
        console.flush()


def flush() -> None:
    """Write the lines that were kept."""
    if (console := _handler()) is not None:
        console.flush()


def _handler() -> BufferedHandler | None:
    for handler in _package_logger.handlers:
        if isinstance(handler, BufferedHandler):
            return handler
    return None


#: Records that wait for a handler that blocks; further ones are lost, and counted.
MAX_WAITING: Final = 1_000

#: Seconds that the thread waits for records.
_IDLE: Final = 60.0

#: Seconds that the last records may take.
CLOSE_TIMEOUT: Final = 1.0


class LogThread(logging.Filter):
    """Passes the records of our loggers to their handlers in a thread of its own, for the length of a ``with`` block.

    It is the last filter of each logger: it keeps a record, and the thread passes the record on.
    """

    def __init__(self) -> None:
        super().__init__()
        self._records: Mailbox[logging.LogRecord | None] = Mailbox()
        self._lock = threading.RLock()  # a signal handler may log
        self._lost = 0
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="horsies-log", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        for name in LOGGERS:
            logging.getLogger(name).addFilter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        for name in LOGGERS:
            logging.getLogger(name).removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep the record for the thread, which passes it on. Once this is closed, let it through."""
        if threading.current_thread() is self._thread:
            return True
        with self._lock:
            if self._is_closed or not self._thread.is_alive():
                return True
            if len(self._records) < MAX_WAITING:
                self._records.put(record)
            else:
                self._lost += 1
        return False

    def close(self) -> None:
        """End the thread after its last record; wait at most :data:`CLOSE_TIMEOUT` seconds.

        Records that a handler still blocks then may be lost, and are not counted.
        """
        with self._lock:
            self._is_closed = True
        self._records.put(None)
        self._thread.join(CLOSE_TIMEOUT)

    def _run(self) -> None:
        is_open = True
        while is_open:
            for record in self._records.take(_IDLE):
                if record is None:
                    is_open = False
                else:  # its logger's filters have seen it
                    logging.getLogger(record.name).callHandlers(record)
            with self._lock:
                lost, self._lost = self._lost, 0
            if lost:
                logger.warning("log lines lost count=%d: a handler blocked", lost)
