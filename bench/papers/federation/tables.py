"""Tables 2 and 3: how many plans are looked at, and how long both phases take here. Times are medians of process time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from time import process_time
from typing import Any

from anabranch.place.cost import OURS, Costs, size_of
from anabranch.place.operators import Kind, Operator, Window
from anabranch.place.parts import by_parts
from anabranch.place.search import by_front, pruned
from bench.papers.federation.phase_one import phase_one
from bench.papers.federation.published import JOIN_S, TABLE_2, TABLE_3_MS, fitted
from bench.papers.federation.shapes import FIGURE_4, PLUGS, comparing_means

PART = 15
"""The paper's parts have so many operators."""


def timed_ms(times: int, run: Callable[[], Any]) -> float:
    """Milliseconds, the median of some runs."""
    spent = []
    for _ in range(times):
        began = process_time()
        run()
        spent.append((process_time() - began) * 1e3)
    return median(spent)


def by_resource(costs: Costs) -> Costs:
    return replace(costs, corrections=OURS)


def table_2(times: int) -> list[dict[str, Any]]:
    found = []
    for row in TABLE_2:
        root = comparing_means(row.shape)
        costs = fitted(root)
        paper, ours = pruned(root, costs), by_front(root, by_resource(costs))
        parts = by_parts(root, costs, PART, pruned)
        found.append({
            "join": f"{row.ways}-way", "operators": len(root), "printed operators": row.operators,
            "all plans": 2 ** len(root), "printed all": row.unpruned,
            "plans": paper.examined, "printed plans": row.pruned, "plans by resource": ours.examined,
            "plans in parts": parts.examined,
            "phase one ms": timed_ms(times, partial(phase_one, row.ways, _join_u)),
            "printed one ms": row.phase_one_ms,
            "phase two ms": timed_ms(times, partial(pruned, root, costs)), "printed two ms": row.phase_two_ms,
            "by resource ms": timed_ms(times, partial(by_front, root, by_resource(costs))),
            "in parts ms": timed_ms(times, partial(by_parts, root, costs, PART, pruned)),
        })  # fmt: skip
    return found


def _join_u(left: int, right: int) -> float:
    """All inputs have a row for each plug, and so has every join of them: each order takes the same."""
    return 2 * PLUGS * JOIN_S


def table_3(times: int, rate_per_s: float = 2000.0) -> list[dict[str, Any]]:
    found = []
    for name, built in FIGURE_4.items():
        root = built(rate_per_s)
        costs = fitted(root)
        joins = sum(1 for each in root if each.kind is Kind.JOIN)
        one = timed_ms(times, partial(phase_one, joins + 1, _join_u))
        two = timed_ms(times, partial(pruned, root, costs))
        found.append({
            "query": name, "operators": len(root), "plans": pruned(root, costs).examined, "phase one ms": one,
            "phase two ms": two, "by resource ms": timed_ms(times, partial(by_front, root, by_resource(costs))),
            "total ms": one + two, "printed total ms": TABLE_3_MS[name],
        })  # fmt: skip
    return found


def chains(most: int = 12) -> list[dict[str, Any]]:
    """Plans of unary chains and of complete trees, beside n + 1 and f(h)."""
    found = []
    for length in (1, 2, 5, most):
        found.append({"tree": f"chain of {length}", "plans": _plans(_chain(length)), "by the paper": length + 1})
    bound = 2
    for height in range(1, 5):
        complete = _complete(height)
        assert isinstance(complete, Operator)
        found.append({"tree": f"complete, height {height}", "plans": _plans(complete), "by the paper": bound})
        bound = 1 + bound**2
    return found


def _plans(root: Operator) -> int:
    return pruned(root, fitted(root)).examined


def _chain(length: int) -> Operator:
    found: Operator | Window = Window("w", 100.0, 1000.0)
    for n in range(length):
        found = Operator(f"select {n}", Kind.SELECT, (found,), selectivity=0.5)
    assert isinstance(found, Operator)
    return found


def _complete(height: int, name: str = "") -> Operator | Window:
    if not height:
        return Window(f"w{name}", 10.0, 100.0)
    sides = _complete(height - 1, name + "l"), _complete(height - 1, name + "r")
    return Operator(f"join {name}", Kind.JOIN, sides, selectivity=0.001)


def join_rows() -> tuple[float, float]:
    """Rows that CQ4's join gives in a second: by eq. 2 as printed, and as two aggregates of one slide make them."""
    root = FIGURE_4["CQ4"](2000.0)
    join = next(each for each in root if each.kind is Kind.JOIN)
    return size_of(join, fitted(root).corrections).rate_per_s, size_of(join, OURS).rate_per_s
