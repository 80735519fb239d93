"""Values, options and policies that the rest of the package builds on. Nothing here needs a database."""
