"""Batches: many calls, and callbacks that run once all of them have ended.

A batch is a workflow. Its first node stands for all calls, as a map does for its items, and its callbacks wait for that
node. So locks, recovery, admin pages and operations are those of workflows.
"""
