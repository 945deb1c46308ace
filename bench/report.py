"""Tables for people, and the same rows as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

OUT = Path(__file__).parent / "out"


def write(name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Writes the rows of a benchmark to bench/out/<name>.json."""
    OUT.mkdir(exist_ok=True)
    path = OUT / f"{name}.json"
    path.write_text(json.dumps(list(rows), indent=1) + "\n")
    return path


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """The rows as an aligned text table.

    >>> print(table([{"way": "a", "rows/s": 12345.6}, {"way": "bb", "rows/s": 7}]))
    way  rows/s
    ---  ------
    a    12,346
    bb        7
    """
    names = list(columns or rows[0])
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    widths = [max(len(name), *(len(c[i]) for c in cells)) for i, name in enumerate(names)]
    numeric = [all(not isinstance(row.get(name), str) for row in rows) for name in names]
    return "\n".join(
        "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, numeric, strict=True)).rstrip()
        for line in [names, ["-" * w for w in widths], *cells]
    )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
