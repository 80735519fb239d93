"""What an operator is told in numbers. The overview of the admin and ``horsies_status`` tell the same.

Nothing here costs more the more has ended: small sets are counted by their own indexes and no further than a bound,
large ones are estimated by the planner, and what has been is read from the reaper's roll-ups.
"""

from .counts import Count, Exactness
from .snapshot import Snapshot, collect

__all__ = ["Count", "Exactness", "Snapshot", "collect"]
