"""Error codes: a mapper maps exceptions to codes, and a body may return an error with its own code."""

import project

project.setup(exception_mapper={OSError: "IO"})  # OPTIONS: for all tasks

from horsies_django import TaskError, TaskResult, task
from horsies_django.testing import drain


@task(exception_mapper={LookupError: "NO_SUCH_USER"})  # searched first
def send_mail(user: str) -> TaskResult[str, TaskError] | str:
    if user == "zoe":
        raise LookupError("There is no user zoe.")
    if user == "offline":
        raise ConnectionRefusedError("The mail server is down.")  # an OSError
    if user == "odd":
        raise RuntimeError("This is unexpected.")
    if user == "blocked":
        return TaskResult(err=TaskError(error_code="BLOCKED", message="No mail for this user.", data={"days": 3}))
    return "sent"


handles = [send_mail.send(user) for user in ["ann", "zoe", "offline", "odd", "blocked"]]
print(drain())

for handle in handles:
    result = handle.get()
    if result.is_ok():
        print("ok:", result.ok)
    else:
        print(f"{result.err.error_code}: {result.err.message}", f"data: {result.err.data}")

# Output:
# 1 COMPLETED, 4 FAILED
# ok: sent
# NO_SUCH_USER: There is no user zoe. data: None
# IO: The mail server is down. data: None
# UNHANDLED_EXCEPTION: This is unexpected. data: None
# BLOCKED: No mail for this user. data: {'days': 3}
