"""Pages of task names: how often each runs, how long, how it fails, its options and its schedules."""
