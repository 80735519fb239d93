"""Admin pages of tasks."""
