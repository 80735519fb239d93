"""The page of the tasks that workers hold now."""
