"""``python -m benchmarks``: this queue and its peers, side by side on one machine."""
