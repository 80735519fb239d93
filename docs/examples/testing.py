"""Testing: run, find and capture tasks in your own tests, without a worker."""

import project
from django.test.utils import setup_test_environment

project.setup()
setup_test_environment()  # your test runner does this

from horsies_django import RetryPolicy, task
from horsies_django.testing import assert_enqueued, captured, drain, immediate, refute_enqueued, task_context, travel


@task
def send_mail(to: str) -> str:
    return f"mail to {to}"


@task(takes_context=True, retry_policy=RetryPolicy.fixed([3600], auto_retry_for=["*"], jitter=False))
def charge(context, order: int) -> str:
    context.progress(context.attempt, context.max_attempts)
    if context.attempt == 1:
        raise ConnectionError("the bank is closed")
    return "paid"


mail = send_mail.send("ann@example.com")
assert_enqueued(send_mail, kwargs={"to": "ann@example.com"}, count=1)
refute_enqueued(charge)
print(drain(raise_errors=True), mail.value(0))  # with raise_errors, a failure is raised with its own traceback

with captured() as calls:  # stores nothing and makes no query
    send_mail.send("ben@example.com")
print(calls[0].task_name, calls[0].args)

with immediate():  # runs each task when it is sent
    print(send_mail.send("cem@example.com").value(0))

handle = charge.send(7)
drain()
with travel(hours=2):  # now the retry is due
    drain(raise_errors=True)
print(handle.value(0))

context = task_context(charge, attempt=2)  # to call the function directly
print(charge.func(context, 8), context.reports)

# Output:
# 1 COMPLETED mail to ann@example.com
# testing.send_mail ['ben@example.com']
# mail to cem@example.com
# paid
# paid [Progress(done=2, total=2, message='')]
