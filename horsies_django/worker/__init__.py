"""The worker: a supervisor starts runners; in each a producer feeds executors with claimed tasks."""
