"""What operators do is logged."""
