"""What is where in the large database.

By ``n``, the number of a task, it is known what became of it: see ``STATUS``. The number of its workflow, ``w``, is a
fiftieth of its own.
"""

from __future__ import annotations

from typing import Final

TASKS: Final = 1_000_000

#: The tasks that are worse than the others: with 50 attempts; with a megabyte of arguments and another of result.
TRIED_FIFTY_TIMES, HUGE = 999_957, 999_907

#: What nothing but a walk through everything would find: the only task of its name, queue, priority and code.
ONLY_ONE: Final = 7

#: The numbers of workflows of 10,000 nodes, of a map with 1,000 items, of a graph of 500 nodes.
LARGE, MAP, GRAPH = 1, 2, 3

#: What became of task n.
STATUS: Final = """
CASE
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
