"""Metrics for operators, as the admin's overview and ``horsies_status`` show them.

The cost does not grow with the number of ended tasks: rows are counted by their indexes up to a bound, and the history
comes from the reaper's roll-ups.
"""

from .counts import Count, count_by_state
from .snapshot import MetricsSnapshot, collect

__all__ = ["Count", "MetricsSnapshot", "collect", "count_by_state"]
