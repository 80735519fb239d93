"""The parts of ``horsies_task``: its flags, its actions on one task, and those on many."""
