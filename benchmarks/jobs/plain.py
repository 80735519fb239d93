"""The task bodies as plain functions, for peers that take the import path of a function."""

from benchmarks import probe


def noop(number: int) -> int:
    probe.mark(number)
    return number


def sleep(number: int) -> int:
    probe.sleep(number)
    return number
