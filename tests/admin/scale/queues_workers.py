"""Fill the queues and the workers."""

from __future__ import annotations

from horsies_django.models import Lease, Queue, Worker

from .fill import fill
from .sizes import QUEUES


def queues_and_workers(database: str) -> None:
    """Insert nine queues, one of which no worker serves, and 40 live and 10 dead workers."""
    fill(
        database,
        Queue,
        f"unnest({QUEUES} || 'forgotten'::text) WITH ORDINALITY AS q (name, n)",
        name="name",
        paused="name = 'media'",
        max_concurrency="CASE WHEN n % 3 = 0 THEN 20 END",
    )
    fill(
        database,
        Worker,
        "generate_series(1, 50) AS n",
        id="pg_temp.worker(n)",
        name="'web-' || n",
        hostname="'node' || n % 12 || '.example.org'",
        pid="1000 + n",
        version="'0.1'",
        threads="8",
        async_slots="64",
        queues=f"CASE WHEN n % 4 = 0 THEN '[]' ELSE to_jsonb({QUEUES}[1 + n % 4 : 4 + n % 4]) END",
        memory="100000000 + n * 1000000",
        started_at="now() - n * interval '3 hours'",
        last_beat_at="CASE WHEN n > 40 THEN now() - interval '2 days' ELSE now() END",
    )
    fill(database, Lease, "unnest(ARRAY['reaper', 'scheduler']) AS name", name="name", holder="pg_temp.worker(1)")
