"""Progress and saved state: a body reports its progress, and the next attempt continues from the saved state."""

import project

project.setup()

from horsies_django import TaskContext, task
from horsies_django.testing import drain


@task(takes_context=True, max_attempts=2)
def index_pages(context: TaskContext, total: int) -> str:
    done = context.state or 0
    print(f"attempt {context.attempt} begins after page {done}")
    while done < total:
        done += 1
        context.progress(done, total, f"page {done}")  # in memory; the worker stores it once a second
        if done % 100 == 0:
            context.save(done)  # stored immediately
        if done == 250 and context.attempt == 1:
            raise ConnectionError("the index is away")
    return f"{done} pages"


handle = index_pages.send(300)
drain()
progress = handle.info().progress
print(f"{progress.done}/{progress.total}: {progress.message}")

drain(retries=True)
print(handle.value())

# Output:
# attempt 1 begins after page 0
# 250/300: page 250
# attempt 2 begins after page 200
# 300 pages
