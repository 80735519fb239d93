"""How far the roll-ups are behind: up to when attempts are counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...db.expressions import SecondOf, SecondsUntil
from ...db.now import Now
from ...db.statements import Statement, run_queries, scalar
from ...models import Rollup
from ...reaper.rollup import SETTLE_DELAY, uncounted


def max_lag(reaper_interval: float) -> float:
    """Return the seconds that roll-ups may be behind before pages and commands say so: two intervals of the reaper."""
    return 2 * reaper_interval + SETTLE_DELAY


@dataclass(frozen=True, slots=True)
class RollupClock:
    """The time by the database's clock, in seconds since 1970, and how many seconds the roll-ups are behind it."""

    second: float
    lag: float

    @property
    def minute(self) -> int:
        """The minutes since 1970."""
        return int(self.second // 60)


def rollup_clock(database: str | None) -> RollupClock:
    """Read the database's clock and the lag, in one statement."""
    rows = Rollup.objects.using(database)
    answers = run_queries(rows.db, {"second": scalar(SecondOf(Now()), rows), "lag": query(rows.db)})
    return RollupClock(float(answers["second"]), lag_of(answers["lag"]))


def query(database: str) -> Statement:
    """Return the query for the end of the first attempt that is not counted."""
    return Statement.part(uncounted(database).order_by("pk").values_list(SecondsUntil("finished_at"))[:1])


def lag_of(answer: Any) -> float:
    """Return the seconds since that end; 0 if all attempts are counted."""
    return 0.0 if answer is None else max(0.0, -float(answer))
