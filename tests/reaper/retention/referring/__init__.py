"""``python -m tests.reaper.retention.referring FILE``: a project whose rows refer to tasks, which are deleted."""
