"""A turn: what the engine does in one transaction, under the locks of the trees that it concerns."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from .nodes import NodeRows
from .phrases import Phrases


@dataclass(slots=True)
class Turn:
    """``enqueued`` are the tasks that were made, each with its queue and whether it is a coroutine's.

    Workers are told of them, unless ``is_quiet``: then who takes the turn does so.
    """

    phrases: Phrases
    is_quiet: bool = False
    enqueued: dict[UUID, tuple[str, bool]] = field(default_factory=dict)

    @property
    def database(self) -> str:
        """The alias of the database."""
        return self.phrases.database

    @property
    def nodes(self) -> NodeRows:
        """All nodes of the database."""
        return self.phrases.nodes
