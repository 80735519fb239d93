"""How far the database's clock was set back behind the times in rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...core.option_parsers import LONGEST_DURATION
from ...db.expressions import SecondsUntil
from ...db.statements import Statement
from ...models import Task
from ...models.rollup import Rollup, RollupSpan

#: Seconds by which a time that the database has given may be later than its clock.
TOLERANCE: Final = 60.0

_NAMES: Final = ("newest_task", "newest_rollup")


def queries(database: str) -> dict[str, Statement]:
    """Return queries for the seconds until the newest times; each reads one row."""
    tasks = Task.objects.using(database).order_by("-pk").values_list(SecondsUntil("sent_at"))
    minutes = Rollup.objects.using(database).filter(span=RollupSpan.MINUTE).order_by("-start")
    newest = (tasks, minutes.values_list(SecondsUntil("start")))
    return {name: Statement.part(rows[:1]) for name, rows in zip(_NAMES, newest, strict=True)}


def seconds_behind(answers: Mapping[str, Any]) -> float:
    """Return how far the clock is behind the newest time; 0 if it is not."""
    ahead = [answers[name] or 0.0 for name in _NAMES]
    return max((seconds for seconds in ahead if TOLERANCE < seconds <= LONGEST_DURATION), default=0.0)
