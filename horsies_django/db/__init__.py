"""Expressions, statements, notifications, and what depends on the vendor of the database."""
