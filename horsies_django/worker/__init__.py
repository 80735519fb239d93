"""The worker: supervisor → runner → pump → executors."""
