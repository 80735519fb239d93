"""Claims from queues that have limits or a configured order, with several statements in one transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from django.db import OperationalError, transaction

from ..db import postgres
from ..models.claim.complete_and_claim import CompleteAndClaim
from ..models.claims import ClaimedTask, Completion
from ..models.queue_limiter import Allowance, store_tokens
from ..models.transitions import TaskQuerySet
from .queue_selector import QueueSelector
from .slot_pool import SlotPool

#: Claims so many tasks of some queues, and at most the number given for each of them.
TakeCapped = Callable[[int, Sequence[str], Mapping[str, int]], list[ClaimedTask]]


def complete_and_claim(
    selector: QueueSelector,
    tasks: TaskQuerySet,
    pool: SlotPool,
    statement: CompleteAndClaim,
    ends: Sequence[Completion],
    room: int,
) -> list[ClaimedTask]:
    """Store successes, then claim and start tasks for a pool."""
    if ends:  # first: ended tasks free places for those that start, and this waits for no lock
        statement.run(ends, 0, ())

    def take(room: int, queues: Sequence[str], most: Mapping[str, int]) -> list[ClaimedTask]:
        return statement.run((), room, queues, most)

    return _claim_within_limits(selector, tasks, pool, selector.unblocked(pool.queues), room, take)


def prefetch(
    selector: QueueSelector, tasks: TaskQuerySet, pool: SlotPool, worker_id: str
) -> tuple[list[ClaimedTask], list[ClaimedTask]]:
    """Claim tasks for a pool; return those that were started and those that were prefetched."""
    free, taken = max(0, pool.free - len(pool.prefetched)), 0

    def take(room: int, queues: Sequence[str], most: Mapping[str, int]) -> list[ClaimedTask]:
        nonlocal taken
        to_start = min(room, max(0, free - taken))
        claims = tasks.claim(
            worker_id, start=to_start, prefetch=room - to_start, is_async=pool.is_async, queues=queues, most=most
        )
        taken += len(claims)
        return claims

    queues = sorted(selector.unblocked(pool.queues))
    if selector.is_plain:
        claims = take(pool.room, queues, {})
    else:
        claims = _claim_within_limits(selector, tasks, pool, queues, pool.room, take)
    return claims[:free], claims[free:]


def _claim_within_limits(
    selector: QueueSelector, tasks: TaskQuerySet, pool: SlotPool, queues: Sequence[str], room: int, take: TakeCapped
) -> list[ClaimedTask]:
    if not queues:
        return []
    limited = selector.limited(queues)

    def take_within_limits(names: Sequence[str], room: int) -> list[ClaimedTask]:
        limits = {name: allowances[name].most for name in names if name in allowances}
        most = {name: limit for name, limit in limits.items() if limit is not None}
        names = [name for name in names if most.get(name, 1)]
        claims = take(room, names, most) if names else []
        for name, count in Counter(claim.queue_name for claim in claims).items():
            if name in allowances:
                allowances[name].take(count)
        return claims

    allowances: dict[str, Allowance] = {}
    claims: list[ClaimedTask] = []
    try:
        with transaction.atomic(using=tasks.db):
            allowances = selector.limiter(tasks).lock_allowances(limited) if limited else {}
            known = [name for name in queues if name not in limited or name in allowances]
            claims = selector.claim(pool.is_async, known, room, take_within_limits)
            store_tokens(
                tasks.db, [allowances[name] for name in {claim.queue_name for claim in claims} if name in allowances]
            )
    except OperationalError as error:
        if allowances or not postgres.is_lock_timeout(error):
            raise
    selector.record_result(pool.is_async, limited, allowances)
    return claims
