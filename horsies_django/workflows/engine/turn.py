"""A turn: what the engine does in one transaction, under the locks of the trees that it concerns."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from .nodes import NodeRows
from .phrases import Phrases


@dataclass(slots=True)
class Turn:
    """``enqueued`` are the tasks that were made, each with its queue and whether it is a coroutine's.

    Those that wait at the gates of ``limit_keys`` are not among them. Workers are told, and gates looked at, after the
    commit, unless ``is_quiet``: then who takes the turn does so.
    """

    phrases: Phrases
    is_quiet: bool = False
    enqueued: dict[UUID, tuple[str, bool]] = field(default_factory=dict)
    limit_keys: set[str] = field(default_factory=set)

    @property
    def database(self) -> str:
        """The alias of the database."""
        return self.phrases.database

    @property
    def nodes(self) -> NodeRows:
        """All nodes of the database."""
        return self.phrases.nodes
