"""Figures in words, and lines of a table whose columns never shift."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from anabranch.optimize.planner import show_bytes

__all__ = ["aligned", "cores_text", "count_text", "listed", "percent_text", "show_bytes", "versus"]


def count_text(value: float) -> str:
    """A number of rows.

    >>> count_text(12345.6), count_text(0.01234), count_text(0), count_text(1e-7)
    ('12,346', '0.0123', '0', '<0.001')
    """
    if 0 < value < 0.001:
        return "<0.001"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def percent_text(share: float) -> str:
    """A share of one core.

    >>> percent_text(0.0421), percent_text(12.5)
    ('4.21 %', '1,250 %')
    """
    return f"{count_text(share * 100)} %"


def cores_text(cores: float) -> str:
    """
    >>> cores_text(1), cores_text(0.01234)
    ('1 core', '0.0123 cores')
    """
    return f"{cores:.3g} core{'s' if cores != 1 else ''}"


def versus(other: float, own: float) -> str:
    """By how much one cost is more or less than another.

    >>> versus(1.2, 1.0), versus(0.5, 1.0), versus(1.001, 1.0), versus(30.0, 1.0)
    ('20 % more', '50 % less', 'as much', '30 times the')
    """
    if not own or abs(other - own) < 0.005 * own:
        return "as much"
    if other > 10 * own:
        return f"{other / own:.0f} times the"
    return f"{abs(other / own - 1) * 100:.0f} % {'more' if other > own else 'less'}"


def listed(words: Sequence[str]) -> str:
    """
    >>> listed(["a", "b", "c"]), listed(["a"])
    ('a, b and c', 'a')
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def aligned(rows: Sequence[Sequence[str] | str], left: Collection[int] = (0,)) -> list[str]:
    """Lines of cells in columns as wide as their widest cell: those named by `left` to the left, others to the right. A row
    that is a text is a line of its own, which may be longer.

    >>> for line in aligned([["", "rows/s"], ["orders", "12"], "  on o.id", ["a", "1,000"]]): print(line)
            rows/s
    orders      12
      on o.id
    a        1,000
    """
    cells = [row for row in rows if not isinstance(row, str)]
    widths = [max((len(row[place]) for row in cells), default=0) for place in range(max(map(len, cells), default=0))]
    lines = []
    for row in rows:
        if isinstance(row, str):
            lines.append(row.rstrip())
        else:
            padded = (c.ljust(widths[i]) if i in left else c.rjust(widths[i]) for i, c in enumerate(row))
            lines.append("  ".join(padded).rstrip())
    return lines
