"""Workflows: the definition that a user writes, and the engine that advances it."""
