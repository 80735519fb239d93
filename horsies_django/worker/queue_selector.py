"""The shares: from which queues a claim is made, in which order, how much of each; and which of them have to wait.

Where no queue has a limit, and the order is that of the tasks, there is nothing to share.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from ..core.queue_policy import QueueRules
from ..models.claim.scan import Waiting
from ..models.claims import ClaimedTask
from ..models.queue_limiter import Admission, Admitted
from ..models.transitions import TaskQuerySet
from .config import WorkerConfig

#: Seconds until a queue that nothing may begin in, or that somebody else just claims from, is asked again; each time in
#: vain doubles them. An end in that queue is told, so the longest is for what was never told, or got lost.
LOCKED_PAUSE: Final = 0.002
FULL_PAUSE: Final = 0.025
MAX_PAUSE: Final = 3.0
#: Where nobody is told anything.
MAX_PAUSE_UNNOTIFIED: Final = 0.2

#: Seconds for which tokens gather at least, so that a high rate is no claim for each of them.
MIN_TOKEN_WAIT: Final = 0.01

#: One of so many claims begins with the queues that have waited too long.
AGED_CLAIM_EVERY: Final = 4

#: Claims from so many tasks of these queues and returns what it got.
TakeTasks = Callable[[Sequence[str], int], list[ClaimedTask]]


class QueueSelector:
    """Knows what holds for the queues, as of the last look."""

    def __init__(self, config: WorkerConfig) -> None:
        self._options = config.options.queues
        self._order = config.order
        self._aging = config.aging
        self._rules: dict[str, QueueRules] = {}
        self._limited: frozenset[str] = frozenset()
        self._stopped: frozenset[str] = frozenset()
        self._blocked_until: dict[str, float] = {}
        self._pauses: dict[str, float] = {}
        self._refused_kinds: dict[str, set[bool]] = {}
        self._half_free: set[str] = set()
        self._credits: dict[bool, dict[str, float]] = {False: {}, True: {}}
        self._aged: dict[bool, tuple[str, ...]] = {False: (), True: ()}
        self._claims = 0
        self._admission: Admission | None = None
        self._max_pause = MAX_PAUSE_UNNOTIFIED
        self.set_policies({})

    def set_notified(self, is_notified: bool) -> None:
        """Retry refused queues less often while notifications arrive."""
        self._max_pause = MAX_PAUSE if is_notified else MAX_PAUSE_UNNOTIFIED

    def set_policies(self, rows: Mapping[str, Mapping[str, Any]]) -> bool:
        """Take what the rows of queues say now, those that say anything; return whether that is anything new."""
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
        """For how long the tasks of queues are kept, as their rows say."""
        return {name: rules.retention for name, rules in self._rules.items() if rules.retention is not None}

    def policy_of(self, name: str, row: Mapping[str, Any] | None) -> QueueRules:
        """Return what holds for a queue that has this row."""
        return QueueRules.of(self._options.get(name), row)

    @property
    def is_plain(self) -> bool:
        """Whether every claim is simply of what comes first."""
        return not self._limited and self._order == "priority" and self._aging is None

    def limited(self, queues: Iterable[str]) -> list[str]:
        """Return those of these queues that have a limit."""
        return [name for name in queues if name in self._limited]

    def notify_on_release(self, queues: Iterable[str]) -> list[str]:
        """Return those of these queues whose places others may wait for: not while more than half of them are free."""
        counted = (name for name in self.limited(queues) if self._rules[name].max_concurrency is not None)
        return [name for name in counted if name not in self._half_free]

    def admission(self, tasks: TaskQuerySet) -> Admission:
        """Return what asks for tasks of queues with a limit."""
        if self._admission is None:
            self._admission = Admission(tasks, self.policy_of)
        return self._admission

    @property
    def has_rates(self) -> bool:
        """Whether any queue has a limit of starts a time."""
        return any(self._rules[name].rate is not None for name in self._limited)

    # What has to wait.

    def unblocked(self, queues: Iterable[str]) -> tuple[str, ...]:
        """Return those of these queues that need not wait: one in which nothing may begin waits for other rules."""
        if not (self._blocked_until or self._stopped):
            return tuple(queues)
        now = time.monotonic()
        self._blocked_until = {name: until for name, until in self._blocked_until.items() if until > now}
        return tuple(name for name in queues if name not in self._blocked_until and name not in self._stopped)

    def may_have_tasks(self, queues: Iterable[str]) -> bool:
        """Whether any of these queues may have something to give: not one that refused when it was last asked."""
        return any(name not in self._pauses for name in queues)

    def will_resume(self, queues: Iterable[str]) -> bool:
        """Whether any of these queues is to go on by itself: not one that nothing may begin in."""
        return any(name in self._rules and name not in self._stopped for name in queues)

    @property
    def unblocks_at(self) -> float:
        """When the first of those that wait may be asked again."""
        return min(self._blocked_until.values(), default=float("inf"))

    def record_result(self, is_async: bool, asked: Iterable[str], admitted: Mapping[str, Admitted]) -> None:
        """After a claim: let those wait from which no more is to be had for now."""
        for name in asked:
            answer = admitted.get(name)
            if answer is None:
                self._block(name, LOCKED_PAUSE)
            elif answer.is_full:
                self._block(name, FULL_PAUSE)
            elif answer.token_in > 0:
                self._blocked_until[name] = time.monotonic() + max(answer.token_in, MIN_TOKEN_WAIT)
            else:
                self._pauses.pop(name, None)
                continue
            self._refused_kinds.setdefault(name, set()).add(is_async)
        for name, answer in admitted.items():
            limit = answer.rules.max_concurrency
            is_roomy = limit is not None and answer.places is not None and answer.places * 2 > limit
            (self._half_free.add if is_roomy else self._half_free.discard)(name)

    def _block(self, name: str, first: float) -> None:
        pause = self._pauses[name] = max(first, min(self._pauses.get(name, 0.0) * 2, self._max_pause))
        self._blocked_until[name] = time.monotonic() + pause

    def unblock(self, name: str) -> set[bool]:
        """Something has ended in this queue: return for which kinds of body that was waited for."""
        self._pauses.pop(name, None)
        self._blocked_until.pop(name, None)
        return self._refused_kinds.pop(name, set())

    def reset(self) -> None:
        """Whatever has happened: let none of them wait."""
        self._pauses.clear()
        self._blocked_until.clear()
        self._refused_kinds.clear()
        self._half_free.clear()

    # The order.

    def in_order(self, is_async: bool, waiting: Sequence[Waiting], now: str) -> tuple[str, ...]:
        """Return the queues that a look saw, those first that are to be claimed from first."""
        names = tuple(queue.queue_name for queue in waiting)
        if self._order == "strict":
            return self._by_rank(names)
        if self._order == "weighted":  # of more than one claim can take from, others each time
            return tuple(sorted(names, key=lambda name: random.expovariate(self._weight(name))))
        if self._aging is not None:
            aged = [queue for queue in waiting if _seconds(queue.enqueued_at, now) >= self._aging]
            aged.sort(key=lambda queue: queue.enqueued_at)
            self._aged[is_async] = tuple(queue.queue_name for queue in aged)
            return (*self._aged[is_async], *(name for name in names if name not in self._aged[is_async]))
        return names

    def claim(self, is_async: bool, queues: Sequence[str], room: int, take: TakeTasks) -> list[ClaimedTask]:
        """Claim at most ``room`` tasks of these queues, with as many calls of ``take`` as the order needs."""
        if not queues:
            return []
        if self._order == "strict":
            return _take_in_order(((name, room) for name in self._by_rank(queues)), room, take)
        if self._order == "weighted":
            return self._by_weight(is_async, queues, room, take)
        claims: list[ClaimedTask] = []
        if aged := [name for name in self._aged[is_async] if name in queues]:
            self._claims += 1
            if self._claims % AGED_CLAIM_EVERY == 0:
                claims = _take_in_order(((name, room) for name in aged), room, take)
        return claims + take(queues, room - len(claims)) if len(claims) < room else claims

    def _by_rank(self, names: Sequence[str]) -> tuple[str, ...]:
        none = QueueRules()
        return tuple(sorted(names, key=lambda name: -self._rules.get(name, none).priority))

    def _weight(self, name: str) -> int:
        rules = self._rules.get(name)
        return 1 if rules is None else rules.weight

    def _by_weight(self, is_async: bool, queues: Sequence[str], room: int, take: TakeTasks) -> list[ClaimedTask]:
        """What a share has of a whole task is kept for the next claim; who had nothing more gets nothing for it."""
        total, kept = sum(map(self._weight, queues)), self._credits[is_async]
        due = {name: kept.get(name, 0.0) + room * self._weight(name) / total for name in queues}
        parts = _whole_parts(due, room)
        claims, left, dry = [], {}, set()
        for name, part in parts.items():
            got = take((name,), part) if part else []
            claims += got
            left[name] = due[name] - part
            if len(got) < part:
                dry.add(name)
                left[name] = 0.0
        self._credits[is_async] = left
        rest = [name for name in queues if name not in dry]
        return claims + _take_in_order(((name, room) for name in rest), room - len(claims), take) if dry else claims


def _whole_parts(due: Mapping[str, float], room: int) -> dict[str, int]:
    """Return as many whole tasks of each as its share, ``room`` in all; what is over goes to the largest rests."""
    parts = {name: max(0, int(share)) for name, share in due.items()}
    while sum(parts.values()) < room:
        parts[max(due, key=lambda name: due[name] - parts[name])] += 1
    while sum(parts.values()) > room:
        parts[min(filter(parts.get, due), key=lambda name: due[name] - parts[name])] -= 1
    return parts


def _take_in_order(parts: Iterable[tuple[str, int]], room: int, take: TakeTasks) -> list[ClaimedTask]:
    claims: list[ClaimedTask] = []
    for name, part in parts:
        if len(claims) >= room:
            break
        claims += take((name,), min(part, room - len(claims)))
    return claims


def _seconds(since: str, now: str) -> float:
    return (_moment(now) - _moment(since)).total_seconds()


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
