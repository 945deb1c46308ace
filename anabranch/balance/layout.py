"""Between a distribution and the record that names it."""

from __future__ import annotations

from anabranch.control.records import Layout
from anabranch.plan.distribution import Distribution


def layout_of(distribution: Distribution) -> Layout:
    """A distribution as commits record it."""
    grid = distribution.grid
    slots = tuple(range(grid.cells))
    return Layout(tuple(map(str, grid.dimensions)), grid.shares, slots, not distribution.needs_no_exchange)


def layout_text(layout: Layout) -> str:
    """By what rows are spread, into how many parts."""
    parts = [f"{d} in {s}" for d, s in zip(layout.dimensions, layout.shares, strict=True)]
    return "; ".join(parts) or "no dimension"
