"""Chaos tests: they disrupt workers, database and clocks, and check that every guarantee about tasks holds."""
