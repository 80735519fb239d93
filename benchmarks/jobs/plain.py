"""The same two bodies as plain functions, for peers that name a function by its path."""

from benchmarks import probe


def noop(number: int) -> int:
    probe.mark(number)
    return number


def sleep(number: int) -> int:
    probe.sleep(number)
    return number
