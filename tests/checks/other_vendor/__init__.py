"""A database engine of a vendor on which the queue does not run."""
