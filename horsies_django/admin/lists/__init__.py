"""Change lists of tables with millions of rows: keyset pages, filters and search with bounded reads."""
