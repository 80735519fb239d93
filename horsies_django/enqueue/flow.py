"""``a >> [b, c] >> d``: the order of nodes, kept apart from the nodes.

Nodes never change: ``>>`` returns a :class:`Flow`, which has the nodes and their order and goes into a workflow like a
node. So one node can be part of several workflows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .nodes import Node


class FlowPart:
    """A node, or a flow of nodes."""

    __slots__ = ()

    def __rshift__(self, later: FlowPart | Iterable[FlowPart]) -> Flow:
        """``self >> later``: the heads of ``later`` wait for the tails of this."""
        return NotImplemented if (flow := _flow(later)) is None else _chain(_as_flow(self), flow)

    def __rrshift__(self, earlier: Iterable[FlowPart]) -> Flow:
        """``[a, b] >> self``: the heads of this wait for all of them."""
        return NotImplemented if (flow := _flow(earlier)) is None else _chain(flow, _as_flow(self))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Flow(FlowPart):
    """Nodes and their order.

    ``parts`` run in parallel. With ``is_chain`` there are two parts, and the heads of the second wait for the tails of
    the first.
    """

    parts: tuple[FlowPart, ...]
    heads: tuple[Node[Any], ...]
    tails: tuple[Node[Any], ...]
    is_chain: bool = False

    def __repr__(self) -> str:
        return f"<Flow from {list(self.heads)} to {list(self.tails)}>"


@dataclass(frozen=True, slots=True)
class Dependency:
    """Each of ``later`` waits for each of ``earlier``."""

    earlier: tuple[Node[Any], ...]
    later: tuple[Node[Any], ...]


def together(*parts: FlowPart) -> Flow:
    """Return nodes, or flows, that run in parallel: ``together(a, b) >> [c, d]``.

    Needed only at the beginning: ``[a, b] >> [c, d]`` is an operation of two lists, and raises TypeError.
    """
    if (flow := _flow(parts)) is None:
        raise TypeError(f"together() got {parts!r}; allowed: nodes, and flows of them.")
    return flow


def walk(part: FlowPart) -> Iterator[Node[Any] | Dependency]:
    """Yield the nodes of a part in the order in which they are written, and the dependencies between them."""
    stack = [part]
    while stack:
        if isinstance(one := stack.pop(), Flow):
            if one.is_chain:
                yield Dependency(_as_flow(one.parts[0]).tails, _as_flow(one.parts[1]).heads)
            stack.extend(reversed(one.parts))
        else:
            yield one  # type: ignore[misc]  # a part that is no flow is a node


def _as_flow(part: FlowPart) -> Flow:
    return part if isinstance(part, Flow) else Flow((part,), (part,), (part,))  # type: ignore[arg-type]  # a node


def _flow(value: object) -> Flow | None:
    if isinstance(value, FlowPart):
        return _as_flow(value)
    if not isinstance(value, Iterable):
        return None
    parts = tuple(value)
    if not all(isinstance(part, FlowPart) for part in parts):
        return None
    flows = [_as_flow(part) for part in parts]
    return Flow(
        parts,
        tuple(node for flow in flows for node in flow.heads),
        tuple(node for flow in flows for node in flow.tails),
    )


def _chain(first: Flow, second: Flow) -> Flow:
    if not (first.parts and second.parts):
        return first if first.parts else second  # an empty list between two nodes changes nothing
    return Flow((first, second), first.heads, second.tails, is_chain=True)
