"""Tasks that fail in each way that ends without a retry."""

from __future__ import annotations

from horsies_django import Discard, Retry, TaskError, TaskResult, task


class Declined(LookupError):
    """An error with a base class that a policy may name."""


@task
def discard() -> None:
    raise Discard("not needed")


@task
def decline(number: int = 1) -> None:
    raise Declined(number)


@task(exception_mapper={Declined: "DECLINED"})
def decline_with_code() -> None:
    raise Declined


@task
def return_error() -> TaskResult[None, TaskError[None]]:
    return TaskResult(err=TaskError(error_code="SOLD_OUT", message="none left"))


@task
def ask_again() -> None:
    raise Retry(after=0)


@task(exception_mapper={Declined: "DECLINED"})
def ask_again_because_of_an_error() -> None:
    raise Retry(after=0) from Declined()


@task(max_attempts=5, backoff=lambda exception, result: None)
def give_up() -> None:
    raise Declined
