"""Admin pages of error groups."""
