"""Settings with third-party skins of Django's admin."""
