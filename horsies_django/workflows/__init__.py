"""Workflows: the spec that a user writes, and the engine that advances it."""
