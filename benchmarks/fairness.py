"""``python -m benchmarks.fairness`` simulates how long the backlogs of other tenants delay one tenant's ten tasks.

The table has how many tasks of others start between B's send and the start of its first and of its last task. ``turns``
is start-time fair queueing (Goyal, Vin and Cheng 1996; after Nagle 1987 and Demers, Keshav and Shenker 1989). Its
bound: before the k-th task of B start at most k tasks of each other key, and those that workers have claimed.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Final, NamedTuple, TypeAlias

#: The tenant whose delay is measured, how many tasks it sends, and after how many starts.
SMALL, SENT, WARM_UP = "B", 10, 2_000
#: Tasks that run at once; queues that a worker claims from, and the starts after which a poll chooses them anew.
SLOTS, LISTED, STARTS_PER_POLL = 16, 16, 1_000
#: The place of a waiting task in the order of time and id, and its key.
Row: TypeAlias = tuple[int, str]


class _Fifo:
    """The order of today: priority, time, id. Other policies keep rows by key, and something about each key."""

    def __init__(self, places: int = 0, **weights: int) -> None:
        self._places, self._weights, self._random = places, weights, random.Random(1)  # noqa: S311  # a simulation
        self._rows: list[tuple[float, Row]] = []
        self._waiting, self._held, self._turns = defaultdict[str, deque[Row]](deque), Counter[str](), dict[str, float]()
        self._listed, self._until_poll, self.floor = deque[str](), 0, 0.0

    def add(self, row: Row, floor: float) -> None:
        """Add a row; ``floor`` is the floor that its sender has read."""
        heapq.heappush(self._rows, (0.0, row))

    def claim(self) -> Row | None:
        """Take the next row."""
        return heapq.heappop(self._rows)[1] if self._rows else None

    def end(self, key: str) -> None:
        """Free the place of a task of this key."""


class _Limited(_Fifo):
    """A limit by key, as of today: ``places`` tasks of each key are released, and keep their old time."""

    def add(self, row: Row, floor: float) -> None:
        self._waiting[row[1]].append(row)
        self._held[row[1]] += 1
        self.end(row[1])

    def end(self, key: str) -> None:
        self._held[key] -= 1
        if self._waiting[key] and self._held[key] < self._places:
            self._held[key] += 1
            heapq.heappush(self._rows, (0.0, self._waiting[key].popleft()))


class _Queues(_Fifo):
    """A queue for each key, in the weighted order with equal weights: the queues that a worker lists take turns."""

    def add(self, row: Row, floor: float) -> None:
        self._waiting[row[1]].append(row)
        if row[1] not in self._listed and len(self._listed) < LISTED:
            self._listed.append(row[1])

    def claim(self) -> Row | None:
        self._until_poll -= 1
        self._listed = deque(name for name in self._listed if self._waiting[name])
        if not self._listed or self._until_poll < 0:
            names = [name for name, rows in self._waiting.items() if rows]
            self._listed, self._until_poll = deque(self._random.sample(names, len(names))[:LISTED]), STARTS_PER_POLL
        self._listed.rotate(-1)
        return self._waiting[self._listed[-1]].popleft() if self._listed else None


class _Turns(_Fifo):
    """A row gets the turn max(floor, last turn of its key + 1 / weight), and a claim raises the floor to its turn."""

    def add(self, row: Row, floor: float) -> None:
        key = row[1]
        self._turns[key] = max(floor, self._turns.get(key, -1.0) + 1 / self._weights.get(key, 1))
        heapq.heappush(self._rows, (self._turns[key], row))

    def claim(self) -> Row | None:
        if self._rows and self._rows[0][0] > self.floor:
            self.floor = self._rows[0][0]
            # A key whose next turn is the floor in any case needs no last turn.
            self._turns = {key: last for key, last in self._turns.items() if last + 1 > self.floor}
        return super().claim()


class _KeyTurns(_Queues):
    """Turns of keys, not of rows: a claim takes the first row of the key with the lowest turn, and raises that turn."""

    def claim(self) -> Row | None:
        turns = ((max(self.floor, self._turns.get(key, 0.0)), rows[0]) for key, rows in self._waiting.items() if rows)
        if (lowest := min(turns, default=None)) is None:
            return None
        self.floor, (_, key) = lowest
        self._turns[key] = self.floor + 1 / self._weights.get(key, 1)
        return self._waiting[key].popleft()


class _Case(NamedTuple):
    """What others send, as (after so many starts, key, tasks), and who claims ``batch`` tasks when none are left.

    ``retried`` is the share of others' tasks that wait again at their end. Each start of ``trickling`` sends another.
    ``stale`` are the starts between the time when a key's sender reads the floor and when its tasks can be seen.
    """

    name: str
    sends: Sequence[tuple[int, str, int]]
    workers: int = 1
    batch: int = 1
    retried: float = 0.0
    trickling: str = ""
    stale: Mapping[str, int] = {}
    fixed: bool = False


def simulate(policy: _Fifo, case: _Case) -> list[int]:
    """Return how many tasks of others start before each task of B."""
    rng, sends = random.Random(7), deque(sorted([*case.sends, (WARM_UP, SMALL, SENT)]))  # noqa: S311  # a simulation
    running: list[tuple[float, int, int, str]] = []
    held, free = [deque[Row]() for _ in range(case.workers)], [SLOTS // case.workers] * case.workers
    now, numbers, first, others, found, floors = 0.0, count(1), float("inf"), 0, list[int](), [0.0]

    def send(key: str) -> int:
        policy.add((number := next(numbers), key), floors[max(0, len(floors) - 1 - case.stale.get(key, 0))])
        return number

    def claim(worker: int) -> bool:
        claims = (policy.claim() for _ in range(0 if held[worker] else min(free[worker], 1) * case.batch))
        held[worker].extend(row for row in claims if row is not None)
        return bool(free[worker] and held[worker])

    while len(found) < SENT:
        while sends and len(floors) > sends[0][0]:
            after, key, tasks = sends.popleft()
            sent = [send(key) for _ in range(tasks)]
            first, others = (sent[0], 0) if after == WARM_UP else (first, others)
        if (worker := next(filter(claim, rng.sample(range(case.workers), case.workers)), None)) is None:
            now, _, worker, key = heapq.heappop(running)
            free[worker] += 1
            claim(worker)  # comes before the release of a blocked task
            policy.end(key)
            if key != SMALL and rng.random() < case.retried:
                send(key)
            continue
        number, key = held[worker].popleft()
        free[worker] -= 1
        floors.append(policy.floor)
        heapq.heappush(running, (now + (1.0 if case.fixed else rng.expovariate(1.0)), len(floors), worker, key))
        others += key != SMALL
        found += [others] if key == SMALL and number >= first else []
        if key == case.trickling:
            send(key)
    return found


_FLOOD, _MANY = [(0, "A", 20_000)], [(0, f"tenant {number}", 400) for number in range(50)]
_CASES: Final = [
    _Case("A sends 100,000", [(0, "A", 100_000)]),
    _Case("claims of 16, fixed durations", _FLOOD, batch=16, fixed=True),
    _Case("claims of 100 (prefetch)", _FLOOD, batch=100),
    _Case("2 workers, claims of 16", _FLOOD, 2, 16),
    _Case("the same, floors 32 starts old", _FLOOD, 2, 16, stale={SMALL: 32}),
    _Case("50 tenants send 400 each", _MANY),
    _Case("50 tenants, 2 workers, claims of 16", _MANY, 2, 16),
    _Case("C trickles", [*_FLOOD, (0, "C", 1)], trickling="C"),
    _Case("half of A's are retried", _FLOOD, retried=0.5),
    _Case("B returns after a pause", [*_FLOOD, (0, SMALL, 100)]),
    _Case("C's 1,500 commit 1,900 starts late", [*_FLOOD, (1_900, "C", 1_500)], stale={"C": 1_900}),
]
_POLICIES: Final[Mapping[str, Callable[[], _Fifo]]] = {
    "today": _Fifo,
    **{f"limit {places}": partial(_Limited, places) for places in (16, 4)},
    "queues": _Queues,
    "turns": _Turns,
    "A weighs 3": partial(_Turns, A=3),
    "turns of keys": _KeyTurns,
}


def main() -> None:
    """Print the table."""
    print(f"| case | {' | '.join(_POLICIES)} | bound of turns |\n|---|{'---|' * len(_POLICIES)}---|")
    for case in _CASES:
        found = [simulate(make(), case) for make in _POLICIES.values()]
        keys, claimed = len({key for _, key, _ in case.sends} - {SMALL}), case.batch * case.workers
        found.append([keys + claimed, SENT * keys + claimed])
        print(f"| {' | '.join([case.name, *(f'{numbers[0]:,} … {numbers[-1]:,}' for numbers in found)])} |")


if __name__ == "__main__":
    main()
