"""Figures 6 and 7: results of the algorithms as selectivities change, and as resources do."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean
from typing import Any

from anabranch.overload.algorithms import ALGORITHMS, HEURISTICS
from anabranch.overload.allocation import Limits
from anabranch.overload.grepp import grepp
from anabranch.overload.jaqpot import jaqpot
from bench.papers.jaqpot.count_windows import CountWindows
from bench.papers.jaqpot.optimum import most_results
from bench.papers.jaqpot.settings import (
    CHAIN,
    FRESHNESS,
    SHAPES,
    SHARES,
    STREAMS,
    Setting,
    Size,
    drawn,
    freshness_s,
    poisson_rows,
)

Rows = list[dict[str, Any]]

# -- figure 6 ------------------------------------------------------------------------------------------------------------

SELECTIVITIES_6 = ((0.01, 0.01, 0.05), (0.03, 0.03, 0.05), (0.03, 0.03, 0.1))
"""SEL1 to SEL3: the two joins below, and the root."""
CHANGES_6 = (0.3, 0.7, 1.0)
"""Minutes 3, 7 and 10 of 10."""
SHARE_6, FRESHNESS_6 = 0.3, 1.5
RATES_6, STATES_6, VIEWS_6 = (300.0, 600.0, 900.0, 1200.0), (1000.0,) * 4, (500.0, 500.0)
"""The paper does not give these; they are within table 3."""
TICK_6_S = 0.1
WARM_S = 5.0
"""More than any window: streams' states are full when counting begins."""


def setting_6(shape: str, phase: int) -> Setting:
    """The root of the bushy plan is the join of B and C, that of the linear one of C and D."""
    below, other, root = SELECTIVITIES_6[phase]
    return Setting(RATES_6, STATES_6, VIEWS_6, (below, other, root) if shape == "linear" else (below, root, other))


def figure_6(size: Size, tell: Callable[[str], None]) -> Rows:
    """A row for each plan, algorithm and phase: results and stale results per minute, beside what the formulas expect. The
    capacity is 30 % of saturation with SEL1, throughout; allocations follow selectivities at once."""
    table: Rows = []
    total_s = 60 * size.minutes
    for shape, build in SHAPES.items():
        plans = [build(setting_6(shape, phase)) for phase in range(3)]
        capacity = SHARE_6 * plans[0].saturation
        limits = Limits(capacity, freshness_s(plans[0], FRESHNESS_6))
        phases = [(WARM_S + end * total_s, setting_6(shape, phase).selectivities) for phase, end in enumerate(CHANGES_6)]
        rows = poisson_rows(dict(zip(STREAMS, RATES_6, strict=True)), phases, seed=6)
        for name, algorithm in ALGORITHMS.items():
            run = CountWindows(plans[0], rows, CHAIN, TICK_6_S, [limits.freshness_s])
            run.fill(WARM_S)
            began_s = 0.0
            for phase, end in enumerate(CHANGES_6):
                allocated = algorithm(plans[phase], limits)
                counted = run.run(WARM_S + end * total_s, allocated.by_input)
                minutes = (end * total_s - began_s) / 60
                table.append({
                    "plan": shape, "algorithm": name, "selectivities": f"SEL{phase + 1}",
                    "results/min": float(counted.results.sum()) / minutes,
                    "expected": 60 * allocated.results_per_s,
                    "stale %": 100 * float(counted.stale.sum()) / max(1, int(counted.results.sum())),
                    "probes % of µ": 100 * sum(counted.probes.values()) / (60 * minutes * capacity),
                    "freshness kept": allocated.freshness_factor if name == "JAQPOT" else None,
                    "minutes": minutes,
                })  # fmt: skip
                began_s = end * total_s
            tell(f"figure 6, {shape}, {name}")
    return table


# -- figure 7 ------------------------------------------------------------------------------------------------------------


def figure_7(size: Size, tell: Callable[[str], None]) -> Rows:
    """A row for each plan and share of saturation: what algorithms give in percent of saturation, in the mean over settings
    of table 3, by the formulas. JAQPOT keeps a freshness of 1.5, 3 or 5 windows, in turns; settings where it cannot are
    left out of the means of all algorithms, and counted."""
    table: Rows = []
    for shape, build in SHAPES.items():
        plans = [build(drawn(seed)) for seed in range(size.settings)]
        for share in SHARES:
            means: dict[str, list[float]] = {name: [] for name in (*ALGORITHMS, "optimum with freshness")}
            everywhere, infeasible, apart = [], 0, 0.0
            for number, plan in enumerate(plans):
                limits = Limits(share * plan.saturation, freshness_s(plan, FRESHNESS[number % len(FRESHNESS)]))
                everything = plan.saturation_results_per_s
                everywhere.append(100 * grepp(plan, limits).results_per_s / everything)
                without = most_results(plan, limits)
                assert without is not None
                apart = max(apart, abs(everywhere[-1] - 100 * without / everything))
                fresh = jaqpot(plan, limits)
                if fresh.freshness_factor > 1:
                    infeasible += 1
                    continue
                for name, algorithm in ALGORITHMS.items():
                    found = fresh if name == "JAQPOT" else algorithm(plan, limits)
                    means[name].append(100 * found.results_per_s / everything)
                best = most_results(plan, limits, keeps_freshness=True)
                assert best is not None
                means["optimum with freshness"].append(100 * best / everything)
            row: dict[str, Any] = {"plan": shape, "µ %": round(100 * share)}
            row |= {name: mean(values) if values else None for name, values in means.items()}
            row |= {"GrePP, all settings": mean(everywhere), "off the programme": apart,
                    "infeasible %": 100 * infeasible / len(plans)}  # fmt: skip
            if means["JAQPOT"]:
                row["best heuristic"] = max(HEURISTICS, key=lambda name: row[name])
                row["times"] = row["JAQPOT"] / row[row["best heuristic"]]
            table.append(row)
        tell(f"figure 7, {shape}")
    return table
