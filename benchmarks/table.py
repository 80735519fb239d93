"""Renders the results as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from .measures.catalog import MEASURES
from .registry import OURS, PEERS
from .results import Results, Summary

#: A measure with more metrics than this has a row for each metric and a column for each peer.
_MAX_COLUMNS: Final = 12


def markdown(results: Results) -> str:
    """Return the report: a table for each measure, then the peers, the machine and the settings."""
    title = "# Benchmarks" + (", interrupted before the end" if results.interrupted else "")
    parts = [title, *(_measure(results, name) for name in MEASURES if _has_results(results, name)), _peers(results)]
    if left_out := results.failures.get("install"):
        parts.append(_bullet_list("Left out", left_out.items()))
    parts += [_bullet_list("Machine", results.machine.items()), _bullet_list("Settings", results.settings.items())]
    return "\n\n".join(parts) + "\n"


def _has_results(results: Results, measure: str) -> bool:
    return bool(results.rounds.get(measure) or results.failures.get(measure))


def _measure(results: Results, name: str) -> str:
    measure = MEASURES[name]
    columns = list(filter(measure.in_table, results.metrics(name)))
    ranked = sorted(
        results.rounds.get(name, {}),
        key=lambda peer: _sort_key(results.summary(name, peer, measure.main_metric), measure.lower_is_better),
    )
    ours = next((results.summary(name, peer, measure.main_metric) for peer in OURS if peer in ranked), None)
    rows = [
        [peer, _ratio(results.summary(name, peer, measure.main_metric), ours)]
        + [format_summary(results.summary(name, peer, column)) for column in columns]
        for peer in ranked
    ]
    table = [["", "× ours", *columns], *rows]
    if len(columns) > _MAX_COLUMNS:
        table = [list(row) for row in zip(*table, strict=True)]
    lines = [f"## {name}: {measure.about}", "", markdown_table(table[0], table[1:])]
    lines += [f"\n{peer}: {reason}" for peer, reason in results.failures.get(name, {}).items()]
    return "\n".join(lines)


def _ratio(summary: Summary | None, ours: Summary | None) -> str:
    return format_number(summary.median / ours.median) if summary and ours and ours.median else "–"


def _sort_key(summary: Summary | None, lower_is_better: bool) -> float:
    if summary is None:
        return float("inf")
    return summary.median if lower_is_better else -summary.median


def _peers(results: Results) -> str:
    rows = [[name, version, PEERS[name].store, PEERS[name].keeps] for name, version in results.versions.items()]
    return "## Peers\n\n" + markdown_table(["", "version", "store", "keeps of each task"], rows)


def _bullet_list(title: str, pairs: Iterable[tuple[str, object]]) -> str:
    return f"## {title}\n\n" + "\n".join(f"- {name}: {value}" for name, value in pairs)


def format_summary(summary: Summary | None) -> str:
    """Format the median, with the range if there is one."""
    if summary is None:
        return "–"
    middle, low, high = map(format_number, (summary.median, summary.low, summary.high))
    return middle if low == high else f"{middle} ({low} … {high})"


def format_number(value: float) -> str:
    """Format with three significant digits, or all digits before the decimal point."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    rule = [("-" * width) if not column else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    return "\n".join(_line(row, widths) for row in [head, rule, *rows])


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (
        cell.rjust(width) if column else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return f"| {' | '.join([first, *others])} |"
