"""Rate limits: a maximum of started calls per key and period."""

import project

project.setup()

from horsies_django import task
from horsies_django.ops.inspector import tasks
from horsies_django.testing import drain


@task(concurrency_key="{shop}", rate_limit="2/h")  # "100/m, 10": a bucket of 10, refilled at 100 a minute
def push_stock(shop, article):
    print(f"{shop}: article {article}")


handles = [push_stock.send("Berlin", article) for article in range(4)]
push_stock.send("Paris", 0)  # another key

print(drain())
print(*[handle.status() for handle in handles])
print(tasks().show(handles[2].id).why[0])

# Output:
# Berlin: article 0
# Berlin: article 1
# Paris: article 0
# 3 COMPLETED
# COMPLETED COMPLETED PENDING PENDING
# The rate limit of rate_limit.push_stock:Berlin is reached: 2/h. (in 30 min)
