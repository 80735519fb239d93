"""Running bodies: time limits, cancelling, control exceptions, progress."""
