"""Sending: a call of a task becomes a row. Handles, which wait for its end, and the nodes of workflows."""
