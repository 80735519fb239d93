"""Sending: a call of a task becomes a row."""
