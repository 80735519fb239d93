"""Tasks with a sensitive argument: a PIN, short enough to be guessed."""

from horsies_django import Gather, TaskError, TaskResult, Unique, task


@task(sensitive={"pin", "result"})
def check_pin(pin: str, customer: int = 1) -> str:
    return pin


@task(sensitive={"result"})
def gives_text(pin) -> int:
    return pin


@task(sensitive={"result"})
def errs_with(pin):
    return TaskResult(err={"pin": pin})


@task(sensitive={"pin"})
def errs_with_data(pin):
    return TaskResult(err=TaskError(error_code="NO", message="no", data={"pin": pin, "object": object()}))


@task
def takes_config(config: str) -> None: ...


@task(sensitive={"pin"}, concurrency_key="pin-{pin}", max_concurrency=1)
def limited_by_pin(pin, customer=1): ...


@task(sensitive={"pin"}, concurrency_key=lambda pin, customer=1: f"customer-{customer}", max_concurrency=1)
def limited_by_callable(pin, customer=1): ...


@task(sensitive={"pin"}, concurrency_key="customer-{customer}", max_concurrency=1)
def limited_by_customer(pin, customer=1): ...


@task(sensitive={"iban"}, concurrency_key="{account[iban]}", max_concurrency=1)
def limited_by_iban(account): ...


@task(sensitive={"pin"}, concurrency_key="{pin}" * 60, max_concurrency=1)
def too_long_a_key(pin): ...


@task(sensitive={"pin"}, unique=Unique(by=("pin",)))
def unique_by_pin(pin): ...


@task(sensitive={"pin"}, unique=Unique(key="pin-{pin}"))
def unique_by_text(pin): ...


@task(sensitive={"pin"}, unique=Unique(key=lambda pin: f"pin-{pin}"))
def unique_by_callable(pin): ...


@task(sensitive={"pin"}, gather=Gather("{pin}", max_size=10))
def gathered_by_pin(calls: list): ...


@task(sensitive={"pin"}, gather=Gather(lambda pin: f"pin-{pin}", max_size=10))
def gathered_by_callable(calls: list): ...
