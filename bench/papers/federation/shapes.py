"""The trees of the paper: those of table 2, and CQ1 to CQ6 as figure 4 draws them, with joins of two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

from anabranch.place.operators import Kind, Operator, Window

Shape = object
"""A branch `"x"`, or two shapes that are joined."""

TWO_WAY: Shape = ("x", "x")
FIVE_WAY: Shape = (("x", "x"), ("x", ("x", "x")))
EIGHT_WAY: Shape = ("x", ("x", ("x", (("x", "x"), ("x", ("x", "x"))))))
"""The shapes with which the printed numbers of plans come out exactly."""

PLUGS, HOUSEHOLDS = 2125.0, 40.0
LOADS = 0.5
"""A plug has two sensors, and one of them measures the load."""


def comparing_means(shape: Shape, rate_per_s: float = 2000.0) -> Operator:
    """A join of mean loads over windows of 1, 3, 5, … minutes, as section 8.2 builds it after CQ4."""
    number = count(1)

    def branch() -> Operator:
        n = next(number)
        return _groups(f"avg {n}", _loads(str(n), 2 * n - 1, rate_per_s))

    def joined(shape: Shape) -> Operator:
        if not isinstance(shape, tuple):
            return branch()
        left, right = shape
        sides = joined(left), joined(right)
        return _by_plug(f"join {next(number)}", *sides)

    return Operator("project", Kind.PROJECT, (joined(shape),))


def _loads(name: str, minutes: float, rate_per_s: float) -> Operator:
    window = Window(f"w{name}", rate_per_s, rate_per_s * 60 * minutes)
    return Operator(f"select {name}", Kind.SELECT, (window,), selectivity=LOADS)


def _groups(name: str, rows: Operator, groups: float = PLUGS) -> Operator:
    return Operator(name, Kind.AGGREGATE, (rows,), groups=groups)


def _by_plug(name: str, left: Operator, right: Operator) -> Operator:
    return Operator(name, Kind.JOIN, (left, right), selectivity=1 / PLUGS)


def _correlated(function: str) -> Callable[[float], Operator]:
    """CQ1 and CQ2: rows are counted that are above what an aggregate of their own window says."""

    def built(rate_per_s: float) -> Operator:
        inner = _groups(function, _loads("1", 5, rate_per_s))
        join = _by_plug("join", _loads("2", 5, rate_per_s), inner)
        return _groups("count", Operator("above", Kind.SELECT, (join,), selectivity=0.5))

    return built


def _compared(function: str, *minutes: float) -> Callable[[float], Operator]:
    """CQ3, CQ4 and CQ6: aggregates of windows of several lengths, side by side."""

    def built(rate_per_s: float) -> Operator:
        branches = [_groups(f"{function} {m:g}", _loads(f"{m:g}", m, rate_per_s)) for m in minutes]
        top = branches[0]
        for n, branch in enumerate(branches[1:], 1):
            top = _by_plug(f"join {n}", top, branch)
        return Operator("project", Kind.PROJECT, (top,))

    return built


def _nested(rate_per_s: float) -> Operator:
    """CQ5: the maximum of sums."""
    return _groups("max", _groups("sum", _loads("1", 5, rate_per_s)), HOUSEHOLDS)


FIGURE_4: dict[str, Callable[[float], Operator]] = {
    "CQ1": _correlated("max"), "CQ2": _correlated("avg"), "CQ3": _compared("max", 5, 1), "CQ4": _compared("avg", 5, 1),
    "CQ5": _nested, "CQ6": _compared("avg", 1, 3, 5),
}  # fmt: skip
"""By the rate of the stream."""


def of_kind(root: Operator, *kinds: Kind) -> Iterator[str]:
    """The names of the operators of some kinds."""
    return (each.name for each in root if each.kind in kinds)
