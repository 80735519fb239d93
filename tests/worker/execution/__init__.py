"""Running bodies: timeouts, cancelling, control exceptions, progress."""
