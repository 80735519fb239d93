"""Payloads of tasks for people: masked, and read only as far as they are shown."""
