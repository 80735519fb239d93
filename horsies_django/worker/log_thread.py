"""The thread that writes the log of a supervisor's process: a handler that blocks stops nothing else there."""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import Final, Self

from ..core.printable import LOGGERS
from ..core.sync import Mailbox

logger = logging.getLogger("horsies_django.worker")

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
