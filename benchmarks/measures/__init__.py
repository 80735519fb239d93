"""The measures. Each module has a function that takes a Stage and returns named numbers."""
