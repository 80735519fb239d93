"""Selects the queues of a claim: in which order, how many tasks of each, and which queues pause after a refusal.

If no queue has a limit and tasks are claimed by priority, every claim takes from all queues together.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from ..core.queue_policy import QueuePolicy
from ..models.queue_limiter import Allowance
from .config import WorkerConfig

#: Seconds until a queue is asked again that another worker is claiming from, or that is at its limit. Each refusal
#: doubles the pause. The end of a task is notified, so the longest pause is for lost notifications.
LOCKED_PAUSE: Final = 0.002
FULL_PAUSE: Final = 0.025
MAX_PAUSE: Final = 3.0
#: The longest pause where no notifications arrive.
MAX_PAUSE_UNNOTIFIED: Final = 0.2

#: The shortest wait in seconds for tokens of a rate limit, so that a high rate does not cost a claim for each token.
MIN_TOKEN_WAIT: Final = 0.01


class QueueSelector:
    """Keeps the policies of the queues as of the last poll, and which queues refused when they were last asked."""

    def __init__(self, config: WorkerConfig) -> None:
        self._options = config.options.queues
        self._order = config.order
        self._rules: dict[str, QueuePolicy] = {}
        self._limited: frozenset[str] = frozenset()
        self._stopped: frozenset[str] = frozenset()
        self._blocked_until: dict[str, float] = {}
        self._pauses: dict[str, float] = {}
        self._refused_kinds: dict[str, set[bool]] = {}
        self._half_free: set[str] = set()
        self._credits: dict[bool, dict[str, int]] = {False: {}, True: {}}
        self._max_pause = MAX_PAUSE_UNNOTIFIED
        self.set_policies({})

    def set_notified(self, is_notified: bool) -> None:
        """Ask refused queues less often while notifications arrive."""
        self._max_pause = MAX_PAUSE if is_notified else MAX_PAUSE_UNNOTIFIED

    def set_policies(self, rows: Mapping[str, Mapping[str, Any]]) -> bool:
        """Set the policies from the rows of queues that have any; return whether anything has changed."""
        rules = {name: self.policy_of(name, rows.get(name)) for name in {*self._options, *rows}}
        if rules == self._rules:
            return False
        self._rules = rules
        self._limited = frozenset(name for name, rule in rules.items() if rule.is_limited)
        self._stopped = frozenset(name for name, rule in rules.items() if rule.max_concurrency == 0)
        self.reset()
        return True

    @property
    def retention(self) -> dict[str, timedelta]:
        """How long each queue keeps its ended tasks, where its row says so."""
        return {name: rules.retention for name, rules in self._rules.items() if rules.retention is not None}

    def policy_of(self, name: str, row: Mapping[str, Any] | None) -> QueuePolicy:
        """Return the policy of a queue from its options and its row."""
        return QueuePolicy.of(self._options.get(name), row)

    @property
    def is_plain(self) -> bool:
        """Whether every claim simply takes the first tasks of all queues."""
        return not self._limited and self._order == "priority"

    def limited(self, queues: Iterable[str]) -> list[str]:
        """Return those of these queues that have a limit."""
        return [name for name in queues if name in self._limited]

    def notify_on_release(self, queues: Iterable[str]) -> list[str]:
        """Return those of these queues whose freed slots to notify: not while more than half of the slots are free."""
        counted = (name for name in self.limited(queues) if self._rules[name].max_concurrency is not None)
        return [name for name in counted if name not in self._half_free]

    @property
    def has_rates(self) -> bool:
        """Whether any queue has a rate limit."""
        return any(self._rules[name].rate is not None for name in self._limited)

    # Queues that pause.

    def unblocked(self, queues: Iterable[str]) -> tuple[str, ...]:
        """Return those of these queues that may be asked now. A queue with a limit of 0 waits for another policy."""
        if not (self._blocked_until or self._stopped):
            return tuple(queues)
        now = time.monotonic()
        self._blocked_until = {name: until for name, until in self._blocked_until.items() if until > now}
        return tuple(name for name in queues if name not in self._blocked_until and name not in self._stopped)

    def may_have_tasks(self, queues: Iterable[str]) -> bool:
        """Whether any of these queues did not refuse when it was last asked."""
        return any(name not in self._pauses for name in queues)

    def will_resume(self, queues: Iterable[str]) -> bool:
        """Whether any of these queues will give tasks by itself: one with a limit of 0 does not."""
        return any(name in self._rules and name not in self._stopped for name in queues)

    @property
    def unblocks_at(self) -> float:
        """When the first paused queue may be asked again."""
        return min(self._blocked_until.values(), default=float("inf"))

    def record_result(self, is_async: bool, asked: Iterable[str], allowances: Mapping[str, Allowance]) -> None:
        """Pause the queues that refused a claim: those that are locked, full, or out of tokens."""
        for name in asked:
            allowance = allowances.get(name)
            if allowance is None:
                self._block(name, LOCKED_PAUSE)
            elif allowance.is_full:
                self._block(name, FULL_PAUSE)
            elif allowance.token_in > 0:
                self._blocked_until[name] = time.monotonic() + max(allowance.token_in, MIN_TOKEN_WAIT)
            else:
                self._pauses.pop(name, None)
                continue
            self._refused_kinds.setdefault(name, set()).add(is_async)
        for name, allowance in allowances.items():
            limit = allowance.rules.max_concurrency
            is_half_free = limit is not None and allowance.places is not None and allowance.places * 2 > limit
            (self._half_free.add if is_half_free else self._half_free.discard)(name)

    def _block(self, name: str, first: float) -> None:
        pause = self._pauses[name] = max(first, min(self._pauses.get(name, 0.0) * 2, self._max_pause))
        self._blocked_until[name] = time.monotonic() + pause

    def unblock(self, name: str) -> set[bool]:
        """Ask this queue again at once: a task in it has ended. Return the kinds of task that it had refused."""
        self._pauses.pop(name, None)
        self._blocked_until.pop(name, None)
        return self._refused_kinds.pop(name, set())

    def reset(self) -> None:
        """Ask every queue again at once."""
        self._pauses.clear()
        self._blocked_until.clear()
        self._refused_kinds.clear()
        self._half_free.clear()

    # The order.

    def in_order(self, queues: Sequence[str]) -> Sequence[str]:
        """Return queues with due tasks, those first from which to claim first; a claim takes from a few of them."""
        if self._order == "strict":
            return self._by_rank(queues)
        if self._order == "weighted":
            return sorted(queues, key=lambda name: random.expovariate(self._weight(name)))
        return queues

    def shares(self, is_async: bool, queues: Sequence[str], room: int) -> Iterable[tuple[Sequence[str], int]]:
        """Return what to claim until ``room`` tasks are claimed: queues, and the maximum number of their tasks."""
        if self._order == "priority":
            return [(queues, room)]
        each = [([name], room) for name in self._by_rank(queues)]
        return each if self._order == "strict" else [*self._weighted(is_async, queues, room), *each]

    def _by_rank(self, names: Sequence[str]) -> Sequence[str]:
        none = QueuePolicy()
        return sorted(names, key=lambda name: -self._rules.get(name, none).priority)

    def _weight(self, name: str) -> int:
        rules = self._rules.get(name)
        return 1 if rules is None else rules.weight

    def _weighted(self, is_async: bool, queues: Collection[str], room: int) -> Iterable[tuple[Sequence[str], int]]:
        """Share ``room`` by weight: each queue gains credit by its weight, and each task costs one queue all of it."""
        balance = {name: self._credits[is_async].get(name, 0) for name in queues}
        total, counts = sum(map(self._weight, queues)), Counter[str]()
        for _ in range(room):
            for name in queues:
                balance[name] += self._weight(name)
            first = max(queues, key=balance.__getitem__)
            balance[first] -= total
            counts[first] += 1
        self._credits[is_async] = balance
        return [([name], count) for name, count in counts.items()]
