"""The measures. Each module has a function that takes a Harness and returns named numbers."""
