"""Tests of long work: steps, waits, batches."""
