"""Where bodies run: threads for sync tasks, an event loop for coroutines, the caller's own thread for a test."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Protocol

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import close_old_connections, connections

from ..models.claims import ClaimedTask
from . import body
from .outcome import Outcome

logger = logging.getLogger("horsies_django.worker")

Deliver = Callable[[Outcome], None]

#: Seconds that an executor's threads get to close their connections.
CLOSING: Final = 2.0


class Executor(Protocol):
    """Runs bodies and delivers each one's outcome."""

    def submit(self, claim: ClaimedTask) -> None:
        """Begin a body. The caller has a free slot; nothing waits."""

    def close(self) -> None:
        """Let the idle threads go. Bodies that still run are left to end, or to die with the process."""


class ThreadExecutor:
    """A body on each of at most ``slots`` threads, which begin when they are first needed.

    A bare queue hands a body over in a quarter of the time that ``ThreadPoolExecutor`` takes.
    """

    def __init__(self, slots: int, database: str, deliver: Deliver) -> None:
        self._slots = slots
        self._database = database
        self._deliver = deliver
        self._queue: SimpleQueue[ClaimedTask | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._running = 0
        self._lock = threading.Lock()

    def submit(self, claim: ClaimedTask) -> None:
        with self._lock:
            self._running += 1
            needed = self._running > len(self._threads) < self._slots
        self._queue.put(claim)
        if needed:
            thread = threading.Thread(target=self._loop, name=f"horsies-slot-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        for _ in self._threads:
            self._queue.put(None)
        limit = time.monotonic() + CLOSING
        for thread in self._threads:
            thread.join(max(0.0, limit - time.monotonic()))

    def _loop(self) -> None:
        while (claim := self._queue.get()) is not None:
            try:
                close_old_connections()
                outcome = body.run(claim, self._database)
                close_old_connections()
            except BaseException as error:  # noqa: BLE001  # whatever it is, the pump has to hear of the body's end
                outcome = body.broken(claim, error)
            with self._lock:
                self._running -= 1
            self._deliver(outcome)
        connections.close_all()


class LoopExecutor:
    """Coroutines on one event loop in a thread of its own.

    Each body has its own thread for the sync code it calls (the ORM, mostly), as a request has under ASGI, so that one
    body's slow query does not hold up the others.
    """

    def __init__(self, database: str, deliver: Deliver) -> None:
        self._database = database
        self._deliver = deliver
        self._loop: asyncio.AbstractEventLoop | None = None
        self._bodies: set[asyncio.Task[None]] = set()  # the loop itself keeps weak references only
        self._thread = threading.Thread(target=self._main, name="horsies-loop", daemon=True)
        self._is_up = threading.Event()
        self._is_closing = False

    def submit(self, claim: ClaimedTask) -> None:
        if self._loop is None:
            self._thread.start()
            self._is_up.wait()
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._begin, self._loop, claim)

    def close(self) -> None:
        self._is_closing = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSING)

    def _main(self) -> None:
        with asyncio.Runner() as runner:  # it cancels what is left, and closes the loop
            self._loop = runner.get_loop()
            self._is_up.set()
            while not self._is_closing:
                try:
                    self._loop.run_forever()
                except (SystemExit, KeyboardInterrupt):  # of a task that a body has started and left behind
                    logger.exception("a coroutine's own task tried to end the event loop; it goes on")

    def _begin(self, loop: asyncio.AbstractEventLoop, claim: ClaimedTask) -> None:
        task = loop.create_task(self._run(claim))
        self._bodies.add(task)
        task.add_done_callback(self._bodies.discard)

    async def _run(self, claim: ClaimedTask) -> None:
        try:
            async with ThreadSensitiveContext() as context:
                outcome = await body.arun(claim, self._database)
                if context in SyncToAsync.context_to_thread_executor:  # it has used its thread
                    await sync_to_async(connections.close_all)()
        except BaseException as error:  # noqa: BLE001  # whatever it is, the pump has to hear of the body's end
            outcome = body.broken(claim, error)
        self._deliver(outcome)


class InlineExecutor:
    """Bodies one after the other in the pump's own thread and on its connection.

    For a database that only one connection can see: SQLite in memory, or a test's transaction.
    """

    def __init__(self, database: str, deliver: Deliver) -> None:
        self._database = database
        self._deliver = deliver

    def submit(self, claim: ClaimedTask) -> None:
        self._deliver(body.run(claim, self._database))

    def close(self) -> None:
        """There is nothing to let go."""
