"""Retry, Snooze and Discard: a body decides what happens next."""

import project

project.setup()

from horsies_django import Discard, Retry, Snooze, task
from horsies_django.testing import drain


@task(takes_context=True, max_attempts=3)
def import_file(context, name):
    print(f"{name}: attempt {context.attempt}")
    if name == "empty.csv":
        raise Discard("There is nothing to import.")  # fails, even if retries are left
    if name == "locked.csv" and context.attempt == 1:
        raise Retry("Another program has locked it.", after=5)  # counts as a retry
    if name == "growing.csv" and context.state is None:
        context.save("seen")
        raise Snooze(after=30)  # as if this run had not happened: no attempt, no retry
    return "imported"


handles = [import_file.send(name) for name in ["empty.csv", "locked.csv", "growing.csv"]]
drain()
print([handle.status().value for handle in handles])
print([handle.info().retry_count for handle in handles])

drain(scheduled=True, retries=True)  # without waiting 5 s and 30 s
print([handle.status().value for handle in handles])
print(handles[0].get().err.error_code, handles[0].get().err.message)

# Output:
# empty.csv: attempt 1
# locked.csv: attempt 1
# growing.csv: attempt 1
# ['FAILED', 'PENDING', 'PENDING']
# [0, 1, 0]
# locked.csv: attempt 2
# growing.csv: attempt 1
# ['FAILED', 'COMPLETED', 'COMPLETED']
# TASK_DISCARDED There is nothing to import.
