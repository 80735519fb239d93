"""Retries: a policy sets which failures are retried, how often and when."""

import project

project.setup()

from horsies_django import RetryPolicy, task
from horsies_django.testing import drain

policy = RetryPolicy.fixed([60, 300], auto_retry_for=[ConnectionError, "WORKER_CRASHED"])


@task(retry_policy=policy, takes_context=True)
def charge(context, order):
    print(f"order {order}, attempt {context.attempt} of {context.max_attempts}")
    if order < 0:
        raise ValueError("no such order")  # the policy does not list it
    if context.attempt < 3:
        raise ConnectionError("the bank is closed")
    return "paid"


paid, unknown = charge.send(7), charge.send(-1)
print(drain())

info = paid.info()
print(f"{info.status} after {info.error_code}, retries: {info.retry_count} of {info.max_retries}")

print(drain(retries=True))  # a worker waits 60 s, then 300 s
print(paid.value(), "-", unknown.get().err.message)

hasty = charge.with_options(max_attempts=1).send(8)  # this call is never retried
drain()
print(hasty.status())

# Output:
# order 7, attempt 1 of 3
# order -1, attempt 1 of 3
# 1 PENDING, 1 FAILED
# PENDING after UNHANDLED_EXCEPTION, retries: 1 of 2
# order 7, attempt 2 of 3
# order 7, attempt 3 of 3
# 1 COMPLETED
# paid - no such order
# order 8, attempt 1 of 1
# FAILED
