"""What follows from the transitions of tasks in the code above ``models``, which subscribes when the app is ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from django.dispatch import Signal

if TYPE_CHECKING:
    from .transitions import TaskQuerySet

    FollowNodes: TypeAlias = Callable[[TaskQuerySet], AbstractContextManager[None]]
    RetryNodes: TypeAlias = Callable[[TaskQuerySet], int]
    SendEnded: TypeAlias = Callable[[Signal, str, Sequence[UUID]], None]


@dataclass(slots=True)
class Subscribers:
    """The functions that transitions call. To call one before the app is ready raises AttributeError."""

    #: Wraps a block that ends tasks: the workflows of those that are nodes advance in the same transaction.
    follow_nodes: FollowNodes = field(init=False)

    #: Retries the nodes of failed tasks in their workflows; returns how many.
    retry_nodes: RetryNodes = field(init=False)

    #: Sends a signal for each of these tasks of a database, once the current transaction has committed.
    send_ended: SendEnded = field(init=False)

    def subscribe(self, *, follow_nodes: FollowNodes, retry_nodes: RetryNodes, send_ended: SendEnded) -> None:
        """Set all three."""
        self.follow_nodes, self.retry_nodes, self.send_ended = follow_nodes, retry_nodes, send_ended


subscribers: Final = Subscribers()
