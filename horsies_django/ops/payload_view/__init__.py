"""What a task carries, as people may see it: masked, and read no further than it is shown."""
