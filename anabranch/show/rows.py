"""Rows as an aligned text."""

from __future__ import annotations

import pyarrow as pa


def rows_text(rows: pa.Table, most: int) -> str:
    """The first rows of a table, a line each below the names of the columns; how many more there are.

    >>> print(rows_text(pa.table({"symbol": ["ibm", None], "price": [262.5, 9.0]}), 20))
    symbol  price
    ------  -----
    ibm     262.5
    NULL      9.0
    >>> print(rows_text(pa.table({"n": [1, 2, 3]}), 2))
    n
    -
    1
    2
    … and 1 more
    """
    shown = rows.slice(0, most)
    named = zip(rows.column_names, shown.columns, strict=True)
    columns = [[name, *map(_text, column.to_pylist())] for name, column in named]
    widths = [max(map(len, cells)) for cells in columns]
    to_the_right = [pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_decimal(t) for t in rows.schema.types]
    columns = [[cells[0], "-" * width, *cells[1:]] for cells, width in zip(columns, widths, strict=True)]
    lines = [
        "  ".join(c.rjust(w) if right else c.ljust(w) for c, w, right in zip(line, widths, to_the_right, strict=True))
        for line in zip(*columns, strict=True)
    ]
    if rows.num_rows > most:
        lines.append(f"… and {rows.num_rows - most:,} more")
    return "\n".join(line.rstrip() for line in lines)


def _text(value: object) -> str:
    return "NULL" if value is None else str(value)
