"""A large database, like that of a queue after a month, on which the admin's pages are measured."""
