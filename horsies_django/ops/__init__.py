"""What operators look at: metrics, searches, and why a task waits."""
