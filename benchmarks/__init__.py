"""``python -m benchmarks`` compares this queue with its peers on one machine."""
