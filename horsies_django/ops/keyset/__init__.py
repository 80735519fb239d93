"""Finding and changing rows of tables that are never read whole: a bounded stretch at a time."""
