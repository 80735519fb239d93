"""The reaper: turns, bounded batches, rows and duties that fail, reclaiming by hand."""
