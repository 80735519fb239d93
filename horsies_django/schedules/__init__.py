"""Schedules: patterns and their slots, what code declares, and the beat that sends what is due."""
