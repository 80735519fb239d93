"""``a >> [b, c] >> d``: which node comes after which, beside the nodes themselves.

A node is never changed: ``>>`` gives a :class:`Flow`, which knows its nodes and the order between them and goes into a
workflow in the place of a node. So one node can have its place in several workflows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .nodes import Node


class Part:
    """A node, or a flow of nodes."""

    __slots__ = ()

    def __rshift__(self, later: Part | Iterable[Part]) -> Flow:
        """``self >> later``: what ``later`` begins with waits for what this ends with."""
        return NotImplemented if (flow := _flow(later)) is None else _joined(_one(self), flow)

    def __rrshift__(self, earlier: Iterable[Part]) -> Flow:
        """``[a, b] >> self``: what this begins with waits for all of them."""
        return NotImplemented if (flow := _flow(earlier)) is None else _joined(flow, _one(self))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Flow(Part):
    """Nodes and their order.

    ``parts`` stand beside each other; but with ``is_chain`` they are two, and the heads of the second wait for the
    tails of the first.
    """

    parts: tuple[Part, ...]
    heads: tuple[Node[Any], ...]
    tails: tuple[Node[Any], ...]
    is_chain: bool = False

    def __repr__(self) -> str:
        return f"<Flow from {list(self.heads)} to {list(self.tails)}>"


@dataclass(frozen=True, slots=True)
class Order:
    """Each of ``later`` waits for each of ``earlier``."""

    earlier: tuple[Node[Any], ...]
    later: tuple[Node[Any], ...]


def together(*parts: Part) -> Flow:
    """Return nodes, or flows, that stand beside each other: ``together(a, b) >> [c, d]``.

    Only needed at the beginning: Python itself has to say what ``[a, b] >> [c, d]`` is, and says TypeError.
    """
    if (flow := _flow(parts)) is None:
        raise TypeError(f"together() got {parts!r}; allowed: nodes, and flows of them.")
    return flow


def walk(part: Part) -> Iterator[Node[Any] | Order]:
    """Yield the nodes of a part in the order in which they are written, and the orders between them."""
    stack = [part]
    while stack:
        if isinstance(one := stack.pop(), Flow):
            if one.is_chain:
                yield Order(_one(one.parts[0]).tails, _one(one.parts[1]).heads)
            stack.extend(reversed(one.parts))
        else:
            yield one  # type: ignore[misc]  # what is not a flow is a node


def _one(part: Part) -> Flow:
    return part if isinstance(part, Flow) else Flow((part,), (part,), (part,))  # type: ignore[arg-type]  # a node


def _flow(value: object) -> Flow | None:
    if isinstance(value, Part):
        return _one(value)
    if not isinstance(value, Iterable):
        return None
    parts = tuple(value)
    if not all(isinstance(part, Part) for part in parts):
        return None
    flows = [_one(part) for part in parts]
    return Flow(
        parts,
        tuple(node for flow in flows for node in flow.heads),
        tuple(node for flow in flows for node in flow.tails),
    )


def _joined(first: Flow, second: Flow) -> Flow:
    if not (first.parts and second.parts):
        return first if first.parts else second  # an empty list between two nodes does not part them
    return Flow((first, second), first.heads, second.tails, is_chain=True)
