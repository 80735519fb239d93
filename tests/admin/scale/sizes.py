"""The layout of the large database.

The number of a task, ``n``, determines its outcome: see ``STATUS``. The number of its workflow, ``w``, is a fiftieth of
it.
"""

from __future__ import annotations

from typing import Final

TASKS: Final = 1_000_000

#: The worst tasks: one with 50 attempts, one with a megabyte of arguments and another of result.
FIFTY_ATTEMPTS, HUGE = 999_957, 999_907

#: The only task of its name, queue, priority and error code: only a full scan would find it.
ONLY_ONE: Final = 7

#: The numbers of the workflows with 10,000 nodes, with a map of 1,000 items, and with a graph of 500 nodes.
LARGE, MAP, GRAPH = 1, 2, 3

#: The outcome of task n.
STATUS: Final = """
CASE
    WHEN n % 50 IN (20, 22, 24) AND (n + 30) / 50 % 33 = 0 AND n > 997500 THEN 'COMPLETED'
    WHEN n % 50 IN (7, 23, 41) THEN 'FAILED'
    WHEN n % 200 = 3 THEN 'CANCELLED'
    WHEN n % 1000 IN (11, 511, 911) THEN 'EXPIRED'
    WHEN n % 100 = 1 THEN 'SCHEDULED'
    WHEN n % 50 = 9 AND n > 900000 THEN 'RETRYING'
    WHEN n % 50 = 13 AND n > 990000 THEN 'RUNNING'
    WHEN n % 250 = 17 AND n > 990000 THEN 'CLAIMED'
    WHEN n % 100 = 0 AND n <= 50000 THEN 'FORGOTTEN'
    WHEN n % 2 = 0 AND n > 961000 THEN 'DUE'
    WHEN n % 50 IN (33, 37) AND n > 990000 THEN 'DUE'
    ELSE 'COMPLETED'
END
"""

QUEUES: Final = "(ARRAY['default', 'emails', 'reports', 'imports', 'media', 'billing', 'webhooks', 'search'])"
APPS: Final = "(ARRAY['orders', 'accounts', 'mailing', 'search', 'stock', 'billing', 'media', 'reports', 'crm', 'api'])"
