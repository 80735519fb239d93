"""Expressions, statements and what depends on the vendor of the database."""
