"""Admin pages of schedules."""
