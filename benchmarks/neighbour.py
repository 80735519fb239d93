"""``python -m benchmarks.neighbour URL`` runs short transactions, as another application in the same database does.

It ends when it can read from standard input, and writes a JSON list of pairs: when each transaction began, and how many
seconds it took.
"""

from __future__ import annotations

import json
import select
import sys
import time
from typing import Final

import psycopg

#: Its table, which is not one of the peer's, and its rows.
TABLE: Final = "benchmark_neighbour"
_ROWS: Final = 500

#: Seconds between transactions.
_PAUSE: Final = 0.005


def run_transactions(connection: psycopg.Connection) -> list[tuple[float, float]]:
    """Read a row, update it and commit, until standard input ends."""
    times: list[tuple[float, float]] = []
    while not select.select([sys.stdin], [], [], _PAUSE)[0]:
        # Visit all rows in an order without neighbours.
        row = [len(times) * 7 % _ROWS + 1]
        began = time.monotonic()
        connection.execute("SELECT value FROM benchmark_neighbour WHERE id = %s", row)
        connection.execute("UPDATE benchmark_neighbour SET value = value + 1 WHERE id = %s", row)
        connection.commit()
        times.append((began, time.monotonic() - began))
    return times


def main() -> None:
    """Create the table and run the transactions."""
    with psycopg.connect(sys.argv[1]) as connection:
        connection.execute("CREATE TABLE benchmark_neighbour (id int PRIMARY KEY, value int NOT NULL)")
        connection.execute("INSERT INTO benchmark_neighbour SELECT generate_series(1, %s), 0", [_ROWS])
        connection.commit()
        print("ready", flush=True)
        print(json.dumps(run_transactions(connection)))


if __name__ == "__main__":
    main()
