"""The inspector: listing, showing, and acting on one task, on many, or on all of some kind."""
