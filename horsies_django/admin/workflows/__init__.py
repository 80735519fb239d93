"""Admin pages of workflows."""
