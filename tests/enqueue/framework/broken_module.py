"""A module that exists but can't be imported, as after a bad deployment."""

raise RuntimeError("this module is broken")
