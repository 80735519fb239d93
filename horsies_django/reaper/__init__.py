"""The reaper: recovers tasks of dead workers, expires overdue work and deletes old rows."""
