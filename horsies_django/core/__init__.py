"""What the rest of the package builds on; nothing here needs a database."""
