"""Faults for tests: a network that goes silent or slow, a frozen server, held locks, a database clock that jumps.

The fixtures ``own_cluster`` and ``start`` give a PostgreSQL server of the test's own and processes on it.
``network.Proxy`` stands between them on this machine. ``network.Host`` puts the server behind an address of its own,
in a network namespace, and its packets can be dropped with no answer, as when a machine loses its power.
"""
