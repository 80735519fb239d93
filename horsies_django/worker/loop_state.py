"""The state of a runner's loop, in one place.

Only :class:`~.producer.Producer` writes it. The collaborators that the producer asks (budget, poller, tick, limits,
watchdog, requests) read it, keep at most private timers of their own, and return values that the producer applies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from .execution import Execution
from .exit_reason import ExitReason
from .slot_pool import SlotPool

NEVER: Final = float("inf")


@dataclass(slots=True)
class LoopState:
    """What the loop remembers between two rounds. Times are monotonic, in seconds; infinity means never."""

    #: The pools in the order in which the next tick fills them.
    pool_order: list[SlotPool]
    next_heartbeat: float

    # How much more the runner claims, and when it leaves.
    claimed: int = 0
    stop_by: float | None = None  # set by a stop: running executions have until then
    exit_reason: ExitReason | None = None  # set when the runner retires without having been stopped
    has_outgrown_memory: bool = False
    is_aborted: bool = False
    is_quiet: bool = False  # it claims nothing until it is resumed
    is_done: bool = False
    leaves_executions: bool = False  # some run on or could not be stored: they are recovered after the process's end

    # What the runner knows of the tables.
    is_in_doubt: bool = False  # a transaction may have committed although its answer was lost
    is_poll_requested: bool = True
    is_held_back: bool = False  # tasks are due that limits hold back for now
    has_found_work: bool = False  # in this round of polls that each see only some of the queues
    unmarked_nodes: list[Execution] = field(default_factory=list)  # workflow nodes not yet shown as running
    signals_seen: int = 0

    # Timers.
    ticked_at: float = -NEVER
    hand_back_at: float = 0.0
