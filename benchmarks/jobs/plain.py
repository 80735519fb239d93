"""The same two bodies as plain functions, for peers that name a function by its path."""

from benchmarks import probe


def noop(number: int) -> int:
    probe.mark(number)
    return number


def nap(number: int) -> int:
    probe.nap(number)
    return number
