"""Schedules in the admin."""
