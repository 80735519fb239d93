"""The reaper: recovers tasks of dead workers, expires overdue work, counts attempts and deletes old rows."""
