"""The table: what people read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .measures.catalog import MEASURES
from .registry import OURS, PEERS
from .results import Figure, Results


def markdown(results: Results) -> str:
    """Return the whole table: a part for each measure, then who took part with what."""
    title = "# Benchmarks" + (", interrupted before the end" if results.interrupted else "")
    parts = [title, *(_measure(results, name) for name in MEASURES if _has(results, name)), _peers(results)]
    if left_out := results.failures.get("install"):
        parts.append(_pairs("Left out", left_out.items()))
    parts += [_pairs("Machine", results.machine.items()), _pairs("Settings", results.settings.items())]
    return "\n\n".join(parts) + "\n"


def _has(results: Results, measure: str) -> bool:
    return bool(results.rounds.get(measure) or results.failures.get(measure))


def _measure(results: Results, name: str) -> str:
    measure = MEASURES[name]
    columns = results.names(name)
    ranked = sorted(
        results.rounds.get(name, {}),
        key=lambda peer: _order(results.figure(name, peer, measure.figure), measure.less_is_better),
    )
    ours = next((results.figure(name, peer, measure.figure) for peer in OURS if peer in ranked), None)
    rows = [
        [peer, _beside(results.figure(name, peer, measure.figure), ours)]
        + [shown(results.figure(name, peer, column)) for column in columns]
        for peer in ranked
    ]
    lines = [f"## {name}: {measure.about}", "", grid(["", "× ours", *columns], rows)]
    lines += [f"\n{peer}: {reason}" for peer, reason in results.failures.get(name, {}).items()]
    return "\n".join(lines)


def _beside(figure: Figure | None, ours: Figure | None) -> str:
    return number(figure.median / ours.median) if figure and ours and ours.median else "–"


def _order(figure: Figure | None, less_is_better: bool) -> float:
    if figure is None:
        return float("inf")
    return figure.median if less_is_better else -figure.median


def _peers(results: Results) -> str:
    rows = [[name, version, PEERS[name].store, PEERS[name].keeps] for name, version in results.versions.items()]
    return "## Who took part\n\n" + grid(["", "version", "store", "keeps of each task"], rows)


def _pairs(title: str, pairs: Iterable[tuple[str, object]]) -> str:
    return f"## {title}\n\n" + "\n".join(f"- {name}: {value}" for name, value in pairs)


def shown(figure: Figure | None) -> str:
    """Show a median with the lowest and the highest beside it, where they differ."""
    if figure is None:
        return "–"
    middle, low, high = map(number, (figure.median, figure.low, figure.high))
    return middle if low == high else f"{middle} ({low} … {high})"


def number(value: float) -> str:
    """Show three digits that say something."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table that is a table to the eye too."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    rule = [("-" * width) if not column else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    return "\n".join(_line(row, widths) for row in [head, rule, *rows])


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (
        cell.rjust(width) if column else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return f"| {' | '.join([first, *others])} |"
