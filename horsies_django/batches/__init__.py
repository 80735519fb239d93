"""Batches: many calls, and what follows once all of them have ended.

A batch is a workflow whose first node stands for all its calls, as a map does for its items, and whose callbacks wait
for that node. So its locks, its recovery, its pages and its verbs are those of workflows.
"""
