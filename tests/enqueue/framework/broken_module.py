"""A module that can't be imported, though it is there: what a bad deployment leaves behind."""

raise RuntimeError("this module is broken")
