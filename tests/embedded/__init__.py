"""The worker in threads of a web process."""
