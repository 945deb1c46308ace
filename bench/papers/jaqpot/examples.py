"""The paper's worked examples, its figures beside ours: fig. 2a, table 2 and table 4.

The figures with the plans are lost; the rates, states and selectivities here are those by which the numbers of the text
come out.
"""

from __future__ import annotations

from typing import Any

from anabranch.overload.algorithms import ALGORITHMS
from anabranch.overload.allocation import Limits
from anabranch.overload.best_hjp import best_hjp
from anabranch.overload.grepp import fill, grepp
from anabranch.overload.half_way import Join, Plan, Stream, join
from anabranch.overload.jda_knapsack import PathItem, by_dynamic_programming, in_order
from anabranch.overload.paths import allowances_of, input_paths

Rows = list[dict[str, Any]]

FIGURE_2A = Plan(Join((Stream("a", 500, 1000, 0.005), Stream("b", 700, 500, 0.005))))
"""ρ_h 2.5 and 5; the figure is lost, the text has rates and productivities."""

FIGURE_4 = Plan(Join((
    Join((Stream("a", 11, 5, 1 / 11), Stream("b", 11, 4, 1 / 11)), state_rows=1, selectivity=0.1),
    Stream("c", 10, 1, 1.0),
)))  # fmt: skip
"""Table 2: 11 rows of a become 4 of ab, 11 of b become 5, and each finds one of c; 10 of c find one of ab."""

FIGURE_10 = Plan(join(
    join(Stream("a", 500, 5000, 0), Stream("b", 700, 500, 0), 0.001, 200), Stream("c", 600, 1000, 0), 0.005
))  # fmt: skip
"""Table 4: the ratios of GlobalHJPR say that S_A, S_B, S_C, S_AB have 5,000, 500, 1,000, 200 rows."""

TABLE_2 = [PathItem("a", 15, 4), PathItem("b", 16, 5), PathItem("c", 10, 1)]
CAPACITIES = {"2a": 300.0, "table 2": 30.0, "table 4": 300.0}
"""µ of each."""
PUBLISHED_4 = {
    "EqualHJ": (450.0, "75, 75, 75, 75"), "GlobalHJPR": (677.0, "13, 130, 130, 27"), "EBestHJP": (750.0, "0, 150, 150, 0"),
    "SBestHJP": (750.0, "0, 50, 250, 0"),
}  # fmt: skip
"""Table 4: results per second, and the allowances of a, b, ab and c."""


def examples() -> Rows:
    """What is computed in each, the published number and ours."""
    table: Rows = []

    def note(where: str, what: str, published: float | None, ours: float, how: str = "") -> None:
        table.append({"where": where, "what": what, "published": published, "ours": ours, "allowances": how})

    for half, published in zip(FIGURE_2A.half_way_joins, (2.5, 5.0), strict=True):
        note("fig. 2a", f"productivity of {half.input}", published, half.productivity)
    note("fig. 2a", "results of BestHJP", 1_500, best_hjp(FIGURE_2A, Limits(CAPACITIES["2a"])).results_per_s)
    paths, most = input_paths(FIGURE_4), CAPACITIES["table 2"]
    for path, published in zip(paths, (0.2667, 0.3125, 0.1), strict=True):
        note("table 2", f"productivity of the path of {path.stream}", published, path.productivity)
    note("table 2", "results by greed in whole multiples", 6, in_order(TABLE_2, int(most)).results)
    note("table 2", "results by dynamic programming", 8, by_dynamic_programming(TABLE_2, int(most)).results)
    endless = allowances_of(paths, fill(paths, {stream.name: 1e9 for stream in FIGURE_4.streams}, most))
    note("table 2", "rows of b under GrePP, without end", 20.625, endless["b"])
    note("table 2", "rows of ab under GrePP, without end", 9.375, endless["(a b)"])
    note("table 2", "results of GrePP within rates", None, grepp(FIGURE_4, Limits(most)).results_per_s)
    for name in (*PUBLISHED_4, "GrePP"):
        found = ALGORITHMS[name](FIGURE_10, Limits(CAPACITIES["table 4"]))
        how = ", ".join(f"{found.of(each):.0f}" for each in ("a", "b", "(a b)", "c"))
        note("table 4", f"results of {name}", PUBLISHED_4.get(name, (None,))[0], found.results_per_s, how)
    return table
