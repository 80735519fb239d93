"""The critical path: for each node, the dependency that ended last. A shorter path makes the workflow faster."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from .boxes import GraphNode
from .node_times import clip_runs, run_time


class PathStep(NamedTuple):
    """A step of the path from the end of the one before to its own end: what of that it waited and what it ran.

    ``node`` is None for the time after the last node. ``percent`` is its share of the whole; the sum of all is 100.
    ``growing`` is *waited* or *ran* for the last step of a path that has not ended.
    """

    node: GraphNode | None
    began: datetime
    waited: timedelta
    ran: timedelta
    percent: int = 0
    growing: str = ""


def critical_path(nodes: Sequence[GraphNode]) -> list[GraphNode]:
    """Return the nodes on the critical path, first to last; while the workflow runs, up to the longest running node.

    Accepts incomplete rows: a node without times is not on the path, and a cycle ends it.
    """
    by_index = {node.position: node for node in nodes}
    here = _last_node(nodes)
    path: list[GraphNode] = []
    seen: set[int] = set()
    while here is not None and here.position not in seen:
        seen.add(here.position)
        path.append(here)
        here = _latest_source(here, [by_index[index] for index in here.waits_for if index in by_index])
    return path[::-1]


def path_steps(
    path: Sequence[GraphNode], began: datetime | None, ended: datetime | None, now: datetime | None
) -> list[PathStep]:
    """Return the steps of a path without gaps, from the workflow's start to its end or to ``now``.

    Where a node ran is known from its runs; if they are unknown, it ran all the time since its dependencies ended.
    """
    start = began or (path[0].began if path else None)
    if start is None:
        return []
    steps, at = [], start
    for node in path:
        end = max(at, node.ended or now or at)
        runs = node.runs if node.runs is not None else ((node.began or at, end),)
        ran = run_time(clip_runs(runs, at, end))
        is_running = node.runs is None or any(end <= run_end for _start, run_end in node.runs)
        growing = "" if node.ended or now is None else "ran" if is_running else "waited"
        steps.append(PathStep(node, at, end - at - ran, ran, growing=growing))
        at = end
    if (last := ended or now) is not None and steps and last > at:
        steps.append(PathStep(None, at, last - at, timedelta(), growing="" if ended else "waited"))
    steps = _with_shares(steps)
    is_worth_a_line = [step.node is not None or step.percent > 0 for step in steps]
    return [step for step, is_worth in zip(steps, is_worth_a_line, strict=True) if is_worth]


def drawn_steps(steps: Sequence[PathStep], longer: timedelta) -> list[PathStep]:
    """Return the steps as they are drawn: the one that has not ended is ``longer``, and the shares follow."""
    if not steps or not (growing := steps[-1].growing):
        return list(steps)
    last = steps[-1]._replace(**{growing: getattr(steps[-1], growing) + longer})
    return _with_shares([*steps[:-1], last])


def _with_shares(steps: Sequence[PathStep]) -> list[PathStep]:
    shares = _percentages([(step.waited + step.ran).total_seconds() for step in steps])
    return [step._replace(percent=share) for step, share in zip(steps, shares, strict=True)]


def _percentages(amounts: Sequence[float]) -> list[int]:
    """Return whole percentages whose sum is 100, each less than one off; zeros if there is nothing."""
    total = sum(amounts)
    if total <= 0:
        return [0] * len(amounts)
    exact = [100 * amount / total for amount in amounts]
    whole = [int(share) for share in exact]
    by_rest = sorted(range(len(exact)), key=lambda place: whole[place] - exact[place])
    for place in by_rest[: 100 - sum(whole)]:
        whole[place] += 1
    return whole


def _last_node(nodes: Sequence[GraphNode]) -> GraphNode | None:
    running = [node for node in nodes if node.began is not None and node.ended is None]
    if running:
        return min(running, key=lambda node: (node.began, node.position))
    ran = [node for node in nodes if node.ended is not None and node.status != "SKIPPED"]
    return max(ran, key=_end_key, default=None)


def _latest_source(node: GraphNode, sources: Sequence[GraphNode]) -> GraphNode | None:
    """Return the dependency that ended last before the node began; with ``join`` ANY others may have ended later."""
    ended = [source for source in sources if source.ended is not None]
    in_time = [source for source in ended if source.ended and node.began and source.ended <= node.began]
    return max(in_time or ended, key=_end_key, default=None)


def _end_key(node: GraphNode) -> tuple[Any, int]:
    return node.ended, -node.position  # all have ended
