"""How commands lay out what they print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from horsies_django.core.printable import one_line


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> Iterable[str]:
    """Lay out rows below their heads, numbers to the right after the first ``left`` columns and before the last."""
    heads, rows = tuple(heads), [tuple(map(one_line, row)) for row in rows]
    widths = [max(len(row[at]) for row in (heads, *rows)) for at in range(len(heads))]
    for row in (heads, *rows):
        cells = [
            text.ljust(width) if at < left or not heads[at] else text.rjust(width)
            for at, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
