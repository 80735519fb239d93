"""Workers, their database and their clocks, mistreated: what was promised of tasks has to hold all the same."""
