"""GH-WMSCP: which paths keep all states fresh at little cost (JAQPOT, section 4.2, problem 2, equations 11 and 12; the
greedy heuristic is that of Yang and Leung, Naval Research Logistics 2005). O(m·k + m²) in the paper, O(m·(m+k)·k) as
written here.

    X^I        `InputPath.cost_per_row`      what a row of the path takes
    b_j X_j^I  `inflow[I, j]`                rows that it brings into state j
    M_I        `Cover.leaf_rows`             rows per second of each stream
    R_Sj       `rates`                       rows per second that state j needs
    Δµ         `Cover.cost_per_s`

In each round the path that covers most for its cost is taken, until the first of the states that it helps has what it
needs, or its stream has no more rows. What a path covers is the sum over states of the share of the requirement that a
row brings; rows beyond the requirement do not count.

Deviations. In the weighted multiple set cover problem a set covers each of its members once; here a path brings another
number of rows into each state, so covering is counted by shares of requirements (as Dobson does for covering
programmes, 1982). M is not whole but any number, as in GrePP: with that the problem is a linear programme, and no
longer NP-hard as the paper says; greed remains, and is compared with the optimum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from anabranch.overload.allocation import CLOSE
from anabranch.overload.paths import InputPath


@dataclass(frozen=True)
class Cover:
    """Rows per second of each stream that keep states fresh, and what they cost."""

    leaf_rows: tuple[tuple[str, float], ...]
    cost_per_s: float
    """Infinite if the streams bring too little."""


def gh_wmscp(paths: Sequence[InputPath], rates: Mapping[str, float]) -> Cover:
    """A cover of all states that need rows, or one that costs infinitely much."""
    needed = [name for name, rate in rates.items() if rate > 0]
    nothing = Cover(tuple((path.stream, 0.0) for path in paths), 0.0)
    if not needed:
        return nothing
    left = np.array([rates[name] for name in needed])
    if not np.isfinite(left).all():
        return Cover(nothing.leaf_rows, inf)
    inflow = np.zeros((len(paths), len(needed)))
    for row, path in enumerate(paths):
        for name, count in zip(path.states, path.rows[1:], strict=False):
            if name in needed:
                inflow[row, needed.index(name)] = count
    shares = inflow / left
    costs = np.array([path.cost_per_row for path in paths])
    available = np.array([path.rate_per_s for path in paths])
    taken, enough = np.zeros(len(paths)), left * CLOSE
    while (is_open := left > enough).any():
        gains = np.where(available > 0, shares[:, is_open].sum(axis=1), 0.0)
        if gains.max() <= 0:
            return Cover(nothing.leaf_rows, inf)
        best = int(np.lexsort((costs, -gains / np.maximum(costs, np.finfo(float).tiny)))[0])
        helps = is_open & (inflow[best] > 0)
        rows = min(available[best], (left[helps] / inflow[best, helps]).min())
        taken[best] += rows
        available[best] -= rows
        left = np.where(helps, left - rows * inflow[best], left)
    return Cover(
        tuple((path.stream, float(rows)) for path, rows in zip(paths, taken, strict=True)), float(taken @ costs)
    )  # fmt: skip
