"""The parts of ``horsies_task``: its flags, and the actions ``list``, ``show``, ``enqueue`` and those on many tasks."""
