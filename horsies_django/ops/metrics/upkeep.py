"""The scheduler's last pass, and what PostgreSQL knows about the queue's tables and open transactions."""

from __future__ import annotations

from dataclasses import dataclass

from django.apps import apps
from django.db import connections

from ...core.backends import backends_on
from ...db import postgres
from ...db.expressions import SecondsUntil
from ...db.multi_query import decode_rows, run_queries
from ...db.statements import Statement
from ...models import Lease
from ...schedules.scheduler import lease_name


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The seconds since the scheduler's last pass, None if there was none; rows and transactions, None on SQLite.

    ``oldest_transaction`` is its age in seconds, 0 if no other transaction is open.
    """

    scheduler_ago: float | None
    live_rows: int | None = None
    dead_rows: int | None = None
    oldest_transaction: float | None = None


def upkeep(database: str) -> Upkeep:
    """Read all of it in one statement."""
    names = [lease_name(alias) for alias in backends_on(database)]
    leases = Lease.objects.using(database).filter(name__in=names).order_by("-renewed_at")
    asked = {"scheduler": Statement.select(leases.values_list(SecondsUntil("renewed_at"))[:1])}
    if connections[database].vendor != "postgresql":
        return Upkeep(_ago(run_queries(database, asked)["scheduler"]))
    config = apps.get_app_config("horsies_django")
    asked["rows"] = Statement(postgres.TUPLES, (sorted(model._meta.db_table for model in config.get_models()),))
    asked["oldest"] = Statement(postgres.OLDEST_TRANSACTION, ())
    answers = run_queries(database, asked)
    live, dead = decode_rows(answers["rows"])
    return Upkeep(_ago(answers["scheduler"]), int(live), int(dead), max(0.0, float(answers["oldest"] or 0)))


def _ago(until: float | None) -> float | None:
    return None if until is None else max(0.0, -float(until))
