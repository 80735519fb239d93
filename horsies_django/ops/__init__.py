"""Tools for operators: metrics, the task inspector, and the diagnosis of waiting tasks."""
