"""A large database, as a queue has it after a month: what the admin's pages are measured on."""
