"""Time limits: a body that runs too long is interrupted, and can clean up."""

import asyncio
import time

import project

project.setup()

from horsies_django import task
from horsies_django.exceptions import TaskInterrupt
from horsies_django.testing import drain


@task(timeout=0.1)
def convert(path):
    try:
        while True:
            time.sleep(0.001)
    except TaskInterrupt:  # not an Exception: "except Exception" does not catch it
        print(f"removing the half of {path}")
        raise


@task(timeout=0.1)
async def download(url):
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        print(f"closing {url}")
        raise


handles = [convert.send("film.mp4"), download.send("https://example.com")]
drain()
for handle in handles:
    print(handle.status(), handle.get().err.error_code, "-", handle.get().err.message)

# Output:
# removing the half of film.mp4
# closing https://example.com
# FAILED TASK_TIMEOUT - The task ran longer than its time limit of 0.1 seconds.
# FAILED TASK_TIMEOUT - The task ran longer than its time limit of 0.1 seconds.
