"""Format rows as a text table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from horsies_django.core.printable import one_line


def number_text(number: int, is_more: bool = False) -> str:
    """Return a number as commands print it in every language, with a plus sign if it is a lower bound."""
    return f"{number:,}" + ("+" if is_more else "")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> Iterable[str]:
    """Yield the lines of a table. The first ``left`` columns and columns without a head are left-aligned."""
    heads, rows = tuple(heads), [tuple(map(one_line, row)) for row in rows]
    widths = [max(len(row[at]) for row in (heads, *rows)) for at in range(len(heads))]
    for row in (heads, *rows):
        cells = [
            text.ljust(width) if at < left or not heads[at] else text.rjust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
