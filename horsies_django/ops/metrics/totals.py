"""Attempts of all time by queue and task, from the reaper's roll-ups: what only grows, as a metrics system needs it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...core.histogram import merge
from ...models import Rollup
from ...models.rollup import MAX_COUNTED_PAIRS, MAX_HISTOGRAM_PAIRS, RollupSpan, largest_pairs
from .history import RETRIED, outcome_of

#: A queue and a task. The pair without names stands for all that are not listed.
Pair = tuple[str, str]
OTHERS: Pair = ("", "")


@dataclass(slots=True)
class Durations:
    """A histogram, by the number of its bucket, and the sum of its durations in seconds."""

    histogram: Counter[int] = field(default_factory=Counter)
    seconds: float = 0.0

    def add(self, histogram: Mapping[str, int], seconds: float) -> None:
        """Add a stored histogram."""
        self.histogram.update(merge([histogram]))
        self.seconds += seconds


@dataclass(frozen=True, slots=True)
class Totals:
    """Attempts since the first roll-up, each by pair of queue and task.

    ``ended`` also has the outcome, completed or failed. ``retries`` are the attempts that another one followed.
    ``waits`` and ``runs`` list fewer pairs than the counts do. ``queues`` has the attempts of each queue.
    """

    ended: Mapping[tuple[str, str, str], int]
    retries: Mapping[Pair, int]
    waits: Mapping[Pair, Durations]
    runs: Mapping[Pair, Durations]
    queues: Mapping[str, int]


def totals(database: str) -> Totals:
    """Read the totals in two statements; the second reads the histograms of few pairs."""
    rows = Rollup.objects.using(database).filter(span=RollupSpan.TOTAL)
    columns = ("pk", "queue_name", "task_name", "outcome", "will_retry", "count")
    found = list(rows.order_by().values_list(*columns))
    counts: Counter[Pair] = Counter()
    for _, queue, task, _, _, count in found:
        counts[queue, task] += count
    counted = largest_pairs(counts, MAX_COUNTED_PAIRS) | {OTHERS}
    measured = largest_pairs(counts, MAX_HISTOGRAM_PAIRS) | {OTHERS}
    ended: Counter[tuple[str, str, str]] = Counter()
    retries: Counter[Pair] = Counter()
    queues: Counter[str] = Counter()
    for _, queue, task, outcome, will_retry, count in found:
        queues[queue] += count
        if (queue, task) in counted:
            result = outcome_of(outcome, will_retry)
            if result == RETRIED:
                retries[queue, task] += count
            else:
                ended[queue, task, result] += count
    keys = [pk for pk, queue, task, *_ in found if (queue, task) in measured]
    return Totals(ended, retries, *_durations(database, keys), queues)


def _durations(database: str, keys: Iterable[int]) -> tuple[dict[Pair, Durations], dict[Pair, Durations]]:
    waits, runs = defaultdict[Pair, Durations](Durations), defaultdict[Pair, Durations](Durations)
    rows = Rollup.objects.using(database).filter(pk__in=list(keys)).order_by()
    columns = ("queue_name", "task_name", "waits", "wait_seconds", "runs", "run_seconds")
    for queue, task, wait, wait_seconds, run, run_seconds in rows.values_list(*columns):
        waits[queue, task].add(wait, wait_seconds)
        runs[queue, task].add(run, run_seconds)
    return dict(waits), dict(runs)
