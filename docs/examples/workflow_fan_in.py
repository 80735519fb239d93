"""Workflows: fan out and in, and joins that do not wait for all."""

import project

project.setup()

from horsies_django import Join, Workflow, task
from horsies_django.testing import drain


@task
def ask(shop: str) -> int:
    if shop == "closed":
        raise ConnectionError("no answer")
    return len(shop)


@task
def lowest(prices: list[int]) -> str:
    return f"{min(prices)} of {len(prices)} prices"


@task
def close(table: str) -> None: ...


all_of_them = [ask.node()(shop=shop) for shop in ["Berlin", "Paris", "Rome"]]  # in parallel
best = lowest.node()(prices=all_of_them)  # a list of nodes is the list of their values
handle = Workflow("all", [*all_of_them, best], output=best).start()
drain()
print(handle.value())

some = [ask.node()(shop=shop) for shop in ["Berlin", "closed", "Rome"]]
best = lowest.node(join=Join.QUORUM, min_success=2)(prices=some)  # or Join.ANY: as soon as one has completed
handle = Workflow("quorum", [*some, best], output=best).start()
drain()
print(handle.result_for(best).unwrap(), "-", handle.status())  # a node has failed, and no success policy allows it

first, left, right, last = (close.node()(table=table) for table in ["first", "left", "right", "last"])
handle = Workflow("order", first >> [left, right] >> last).start()  # order without values
drain()
print(handle.status())

# Output:
# 4 of 3 prices
# 4 of 2 prices - FAILED
# COMPLETED
