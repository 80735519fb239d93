"""Schedules: declare them in code, store them as rows and send their tasks and workflows when due."""
