"""Settings that put another look over Django's admin."""
