"""Rows as an aligned text."""

from __future__ import annotations

import pyarrow as pa


def rows_text(rows: pa.Table, count: int) -> str:
    """Rows, a line each below the names of the columns; how many more there are, of so many.

    >>> print(rows_text(pa.table({"symbol": ["ibm", None], "price": [262.5, 9.0]}), 2))
    symbol  price
    ------  -----
    ibm     262.5
    NULL      9.0
    >>> print(rows_text(pa.table({"n": [1, 2]}), 3))
    n
    -
    1
    2
    … and 1 more
    """
    named = zip(rows.column_names, rows.columns, strict=True)
    columns = [[name, *map(_text, column.to_pylist())] for name, column in named]
    widths = [max(map(len, cells)) for cells in columns]
    to_the_right = [pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_decimal(t) for t in rows.schema.types]
    columns = [[cells[0], "-" * width, *cells[1:]] for cells, width in zip(columns, widths, strict=True)]
    lines = [
        "  ".join(c.rjust(w) if right else c.ljust(w) for c, w, right in zip(line, widths, to_the_right, strict=True))
        for line in zip(*columns, strict=True)
    ]
    if count > rows.num_rows:
        lines.append(f"… and {count - rows.num_rows:,} more")
    return "\n".join(line.rstrip() for line in lines)


def _text(value: object) -> str:
    return "NULL" if value is None else str(value)
