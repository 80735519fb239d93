"""What can happen to a body while it runs: time limits, cancelling, its own wishes, its progress."""
