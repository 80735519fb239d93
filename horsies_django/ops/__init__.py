"""Tools for operators: metrics, searches, the task inspector, the diagnosis of waiting tasks, the check of a deploy."""
