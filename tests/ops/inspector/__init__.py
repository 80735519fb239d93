"""The inspector: listing and showing tasks, and acting on one, on several, or on all that a filter matches."""
