"""Backoff: the delay before each retry is fixed, is doubled each time, or is computed from the exception."""

import project

project.setup()

from horsies_django import RetryPolicy, task
from horsies_django.testing import drain


class TooManyRequests(Exception):
    def __init__(self, retry_after):
        super().__init__(f"Retry-After: {retry_after}")
        self.retry_after = retry_after


def as_the_server_says(exception, task_result):
    print(f"{exception}:", "wait" if exception.retry_after <= 3600 else "give up")
    return exception.retry_after if exception.retry_after <= 3600 else None  # None: no retry


@task(max_attempts=8, backoff=as_the_server_says, takes_context=True)
def call_api(context):
    raise TooManyRequests(retry_after=60**context.attempt)


@task(max_attempts=3, backoff=30)  # 30 s each time; without a backoff 2, 4, 8 … s
def refresh(): ...


# By default, jitter moves each delay by up to a quarter.
doubling = RetryPolicy.exponential(
    base_seconds=10, max_retries=5, max_delay_seconds=100, auto_retry_for=["*"], jitter=False
)


@task(backoff=doubling)
def sync(): ...


print("sync waits", ", ".join(f"{doubling.delay(retry):g} s" for retry in range(1, 6)))

handle = call_api.send()
drain(retries=True)  # without waiting
print(handle.status(), "after attempt", handle.info().attempt)

# Output:
# sync waits 10 s, 20 s, 40 s, 80 s, 100 s
# Retry-After: 60: wait
# Retry-After: 3600: wait
# Retry-After: 216000: give up
# FAILED after attempt 3
