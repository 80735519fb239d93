"""Admin pages of queues, limits, workers and heartbeats."""
