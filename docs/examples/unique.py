"""Unique tasks: equal calls are one task."""

import project

project.setup()

from horsies_django import Unique, UniqueConflict, task
from horsies_django.testing import drain


@task(unique=Unique(by=("shop_id",)))  # until it ends, by default
def rebuild_index(shop_id, note):
    print(f"shop {shop_id}: {note}")


first = rebuild_index.send(7, "first")
second = rebuild_index.send(7, "second")  # inserts nothing: the first task stands for both
other = rebuild_index.send(8, "other")
print(f"replayed: {second.replayed}, same task: {second == first}, other shop: {other.replayed}")
drain()
print("the key is free again:", not rebuild_index.send(7, "third").replayed)

strict = rebuild_index.with_options(unique=Unique(by=("shop_id",), on_conflict="raise"))
try:
    strict.send(7, "fourth")
except UniqueConflict as conflict:
    print(f"UniqueConflict: a task is {conflict.status}")
drain()

newest = rebuild_index.with_options(unique=Unique(by=("shop_id",), on_conflict="replace"))
newest.send(9, "old arguments")
newest.send(9, "new arguments")  # replaces the waiting task's arguments
drain()

# Output:
# replayed: True, same task: True, other shop: False
# shop 7: first
# shop 8: other
# the key is free again: True
# UniqueConflict: a task is PENDING
# shop 7: third
# shop 9: new arguments
