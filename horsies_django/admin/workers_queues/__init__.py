"""The pages of queues, workers and their beats."""
