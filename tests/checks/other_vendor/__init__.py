"""A database engine of an unsupported vendor."""
