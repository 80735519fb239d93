"""Faults for tests: a network that goes silent or slow, a frozen server, held locks, a database clock that jumps.

The fixtures ``own_cluster`` and ``start`` give a separate PostgreSQL server for the test, and processes on it.
``network.Proxy`` forwards between them on this machine. ``network.Host`` gives the server its own address in a network
namespace, where all packets can be dropped, as when a machine loses power.
"""
