"""Handles: read the status and the result of a task that you have sent."""

import project

project.setup()

from horsies_django import TaskFailed, TaskHandle, task
from horsies_django.testing import drain


@task
def withdraw(balance: int, amount: int) -> int:
    if amount > balance:
        raise ValueError(f"only {balance} left")
    return balance - amount


good = withdraw.send(100, 30)
bad = withdraw.send(100, 130)
print(good.status(), good.get(timeout=0).err.error_code)  # without a timeout, get() waits for the end

drain()
print(good.status(), good.value())

result = bad.get()  # never raises because the task failed
print(result.is_ok(), result.err.error_code, result.err.message)
try:
    bad.value()  # returns the value, or raises TaskFailed
except TaskFailed as failed:
    print(f"TaskFailed: {failed}")

rebuilt = TaskHandle(str(good.id))  # in any process, from the id alone
print(rebuilt.value(), rebuilt.info().attempt, rebuilt.info().queue_name)

# Output:
# PENDING WAIT_TIMEOUT
# COMPLETED 70
# False UNHANDLED_EXCEPTION only 100 left
# TaskFailed: UNHANDLED_EXCEPTION: only 100 left
# 70 1 default
