"""How long ended tasks and workflows are kept, and how they are deleted."""
