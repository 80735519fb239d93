"""Fill an incident: for 25 minutes more and more orders can't be charged, so a queue falls behind.

The jobs of an operator begin with it. Nothing else in the database is newer than that on average, or grows:

- ``shop.orders.tasks.charge`` fails for good, ever more often, with an error that has not been seen before;
- its queue ``payments`` has due tasks, and wait times grow from a second to minutes;
- one tenant has flooded the queue with 400 due tasks;
- of the workflows of the last two hours some have failed (see :mod:`.workflows`).
"""

from __future__ import annotations

from typing import Final

from horsies_django.models import Queue, Rollup, Task, TaskAttempt

from .fill import fill

#: The minutes that the incident has lasted for.
MINUTES: Final = 25

#: The failed attempts of its minute m, the first of which is 1, are m times this.
GROWTH: Final = 4

#: The task that fails, its queue, and its error.
CHARGE, PAYMENTS, DECLINED = "shop.orders.tasks.charge", "payments", "shop.errors.PaymentProviderDown"

#: The tenant that floods the queue, and the number of its tasks.
TENANT, FLOOD = 4711, 400

_FINGERPRINT: Final = "substr(encode(sha256('charge'), 'hex'), 1, 12)"

_STACK: Final = """'Traceback (most recent call last):
  File "/srv/shop/orders/tasks.py", line 58, in charge
    provider.charge(order, token)
  File "/srv/shop/payments/provider.py", line 117, in charge
    raise PaymentProviderDown(order)
shop.errors.PaymentProviderDown: order ' || n || ': the provider refused the connection'"""

_MESSAGE: Final = "'order ' || n || ': the provider refused the connection'"

_ARGUMENTS: Final = {
    "args": "jsonb_build_array(n)",
    "kwargs": """jsonb_build_object('user_id', user_id, 'token', 'tok_' || md5(n::text))""",
}


def incident(database: str) -> None:
    """Insert the tasks, attempts and roll-ups of the incident, and its queue."""
    fill(database, Queue, "(VALUES (1)) AS one", name=f"'{PAYMENTS}'")
    _failed_tasks(database)
    _due_tasks(database)
    _rollups(database)


def _failed_tasks(database: str) -> None:
    ended = f"now() - ({MINUTES} - minute + part) * interval '1 minute'"
    source = f"""(SELECT *, failed_at - interval '1 second' AS begun, row_number() OVER (ORDER BY failed_at) AS n,
            1 + (minute * 37 + at * 11) % 50000 AS user_id
        FROM (SELECT minute, at, {ended} AS failed_at FROM generate_series(1, {MINUTES}) AS minute,
            generate_series(1, minute * {GROWTH}) AS at, LATERAL (SELECT at / (minute * {GROWTH} + 1.0) AS part) AS part
        ) AS failures) AS plan"""
    fill(
        database,
        Task,
        source,
        id="pg_temp.key_at(begun - interval '2 seconds', 'charge' || n)",
        task_name=f"'{CHARGE}'",
        queue_name=f"'{PAYMENTS}'",
        **_ARGUMENTS,
        status="'FAILED'",
        sent_at="begun - interval '2 seconds'",
        enqueued_at="begun - interval '2 seconds'",
        claim="1",
        claimed_at="begun",
        started_at="begun",
        failed_at="failed_at",
        claimed_by_worker_id="pg_temp.worker(4)",
        attempt="1",
        kept_until="now() + interval '40 days'",
        result=f"""jsonb_build_object('err', jsonb_build_object('error_code', 'UNHANDLED_EXCEPTION',
            'message', {_MESSAGE}, 'data', NULL,
            'exception', jsonb_build_object('type', '{DECLINED}', 'traceback', {_STACK})))""",
        error_code="'UNHANDLED_EXCEPTION'",
        fingerprint=_FINGERPRINT,
    )
    fill(
        database,
        TaskAttempt,
        f"(SELECT *, (args->>0)::int AS n FROM horsies_tasks WHERE fingerprint = {_FINGERPRINT}) AS task",
        task_id="id",
        attempt="1",
        outcome="'FAILED'",
        due_at="enqueued_at",
        started_at="started_at",
        finished_at="failed_at",
        error_code="error_code",
        error_message=_MESSAGE,
        exception_class=f"'{DECLINED}'",
        location="'shop.payments.provider.charge'",
        fingerprint="fingerprint",
        traceback=_STACK,
        worker_id="claimed_by_worker_id",
        hostname="'node4.example.org'",
        pid="1004",
    )


def _due_tasks(database: str) -> None:
    """Insert due tasks, evenly over the incident, and those of the tenant beside them."""
    source = f"""(SELECT n, now() - n * interval '{MINUTES} minutes' / {2 * FLOOD} AS sent_at,
            CASE n % 2 WHEN 0 THEN {TENANT} ELSE n END AS user_id
        FROM generate_series(1, {2 * FLOOD}) AS n) AS plan"""
    fill(
        database,
        Task,
        source,
        id="pg_temp.key_at(sent_at, 'due' || n)",
        task_name=f"'{CHARGE}'",
        queue_name=f"'{PAYMENTS}'",
        **_ARGUMENTS,
        status="'PENDING'",
        sent_at="sent_at",
        enqueued_at="sent_at",
    )


def _rollups(database: str) -> None:
    """Insert attempts that completed in each minute, and those that failed during the incident.

    Wait times are about a second before it, and then 30 seconds longer in each minute.
    """
    source = f"""(SELECT span, start, bad,
            CASE WHEN minute > 0 THEN minute * 30 WHEN bad = 1 THEN 400 ELSE 1 END AS wait,
            CASE bad WHEN 0 THEN 30 * minutes ELSE failures END AS number
        FROM (SELECT 'M' AS span, 1 AS minutes, date_trunc('minute', now()) - ago * interval '1 minute' AS start,
                {MINUTES} - ago AS minute, greatest(0, {MINUTES} - ago) * {GROWTH} AS failures
                FROM generate_series(0, 179) AS ago
            UNION ALL SELECT 'H', 60, date_trunc('hour', now()) - ago * interval '1 hour', 0,
                (SELECT {GROWTH} * coalesce(sum(minute), 0) FROM generate_series(1, {MINUTES}) AS minute
                    WHERE date_trunc('hour', now() - ({MINUTES} - minute) * interval '1 minute')
                        = date_trunc('hour', now()) - ago * interval '1 hour')
                FROM generate_series(0, 719) AS ago) AS spans, generate_series(0, 1) AS bad) AS plan WHERE number > 0"""
    fill(
        database,
        Rollup,
        source,
        span="span",
        start="start",
        queue_name=f"'{PAYMENTS}'",
        task_name=f"'{CHARGE}'",
        outcome="CASE bad WHEN 0 THEN 'COMPLETED' ELSE 'FAILED' END",
        will_retry="false",
        error_code="CASE bad WHEN 0 THEN '' ELSE 'UNHANDLED_EXCEPTION' END",
        fingerprint=f"CASE bad WHEN 0 THEN '' ELSE {_FINGERPRINT} END",
        count="number",
        waits="jsonb_build_object(pg_temp.bucket(wait)::text, number)",
        runs="jsonb_build_object(pg_temp.bucket(1)::text, number)",
        run_seconds="number",
    )
