"""How long ended tasks are kept, and what becomes of them after."""
