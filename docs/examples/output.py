"""Output: chunks that a body writes, and its log records, are kept in their order."""

import project

project.setup(attempt_log={"level": "INFO"})

import logging

from horsies_django import TaskContext, task
from horsies_django.testing import drain

logger = logging.getLogger("shop")


@task(takes_context=True, max_attempts=2, backoff=0)
def report(context: TaskContext) -> None:
    for month in ("January", "February"):
        context.write(f"{month}\n")
    if not context.is_last_attempt:
        raise ConnectionError("the shop is away")
    logger.info("no orders in %s", "March")
    context.write({"months": 2})


handle = report.send()
drain(retries=True)
for chunk in handle.output():
    print(chunk.sequence, f"attempt {chunk.attempt}", chunk.kind, repr(chunk.data))
print([chunk.data for chunk in handle.output(after=4)])

# Output:
# 1 attempt 1 output 'January\n'
# 2 attempt 1 output 'February\n'
# 3 attempt 2 output 'January\n'
# 4 attempt 2 output 'February\n'
# 5 attempt 2 log {'level': 'INFO', 'logger': 'shop', 'message': 'no orders in March'}
# 6 attempt 2 output {'months': 2}
# [{'level': 'INFO', 'logger': 'shop', 'message': 'no orders in March'}, {'months': 2}]
