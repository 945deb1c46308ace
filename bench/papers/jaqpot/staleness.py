"""Figure 9 and section 5.4: stale results without a cover, what a cover takes, and how far greed is from the least cover."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean
from time import process_time
from typing import Any

import numpy as np

from anabranch.overload.algorithms import HEURISTICS
from anabranch.overload.allocation import Limits
from anabranch.overload.by_cpu import Direction, by_results_per_cpu
from anabranch.overload.freshness import refresh_rates
from anabranch.overload.gh_wmscp import gh_wmscp
from anabranch.overload.grepp import grepp
from anabranch.overload.half_way import Join, Plan, Stream, join
from anabranch.overload.jaqpot import jaqpot
from anabranch.overload.paths import input_paths
from bench.papers.jaqpot.count_windows import CountWindows
from bench.papers.jaqpot.optimum import least_cover, most_results
from bench.papers.jaqpot.settings import (
    CHAIN,
    FRESHNESS,
    RATES_PER_S,
    SELECTIVITIES,
    SHAPES,
    STATE_ROWS,
    STREAMS,
    Size,
    drawn,
    freshness_s,
    poisson_rows,
)

Rows = list[dict[str, Any]]
WITHOUT_COVER = {**HEURISTICS, "GrePP": grepp}
CAPACITY_9 = 300.0
TICK_9_S = 0.5
WARM_S = 20.0
"""More than any window of table 3: 5,000 rows at 300 per second take 16.7 s."""


def figure_9_stale(size: Size, tell: Callable[[str], None]) -> Rows:
    """Fig. 9a and b: the share of results that are stale with µ = 300, by plan, algorithm and freshness; mean over
    settings."""
    table: Rows = []
    ends_s = WARM_S + size.stale_after_s + size.stale_counted_s
    for shape, build in SHAPES.items():
        stale: dict[str, list[list[float]]] = {name: [] for name in WITHOUT_COVER}
        for seed in range(size.simulated):
            setting = drawn(seed)
            plan = build(setting)
            asked = [freshness_s(plan, times) for times in FRESHNESS]
            rows = poisson_rows(
                dict(zip(STREAMS, setting.rates_per_s, strict=True)), [(ends_s, setting.selectivities)], seed
            )  # fmt: skip
            for name, algorithm in WITHOUT_COVER.items():
                run = CountWindows(plan, rows, CHAIN, TICK_9_S, asked, seed)
                run.fill(WARM_S)
                allowances = algorithm(plan, Limits(CAPACITY_9)).by_input
                run.run(WARM_S + size.stale_after_s, allowances)
                counted = run.run(ends_s, allowances)
                if found := int(counted.results.sum()):
                    stale[name].append([100 * float(each) / found for each in counted.stale.sum(axis=0)])
            tell(f"figure 9, {shape}, setting {seed + 1} of {size.simulated}")
        for name, shares in stale.items():
            row = {"plan": shape, "algorithm": name, "settings with results": len(shares)}
            table.append(row | {
                f"stale % at {times:g} windows": mean(share[n] for share in shares) if shares else None
                for n, times in enumerate(FRESHNESS)
            })  # fmt: skip
    return table


def figure_9_cover(size: Size) -> Rows:
    """Fig. 9d: the share of resources that keeps states fresh, and how often JAQPOT cannot keep them so; over settings of
    table 3 with any share of saturation as µ, and with µ = 300. Two more columns: how many of these remain infeasible with
    the least cover in place of the greedy one, and if the rows that refresh a state need not go on to the root."""
    table: Rows = []
    for shape, build in SHAPES.items():
        for times in FRESHNESS:
            for name in ("any share of saturation", "300"):
                taken, infeasible, by_paths, by_any = [], 0, 0, 0
                for seed in range(size.settings):
                    plan = build(drawn(seed))
                    share = float(np.random.default_rng((9, seed)).uniform(0.0, 1.0))
                    limits = Limits(CAPACITY_9 if name == "300" else share * plan.saturation, freshness_s(plan, times))
                    found = jaqpot(plan, limits)
                    if found.freshness_factor == 1:
                        taken.append(100 * found.for_freshness / limits.capacity)
                    else:
                        infeasible += 1
                        least = least_cover(input_paths(plan), refresh_rates(plan, limits))
                        by_paths += least is not None and least <= limits.capacity
                        by_any += most_results(plan, limits, keeps_freshness=True) is not None
                table.append({
                    "plan": shape, "µ": name, "windows": times, "for freshness %": mean(taken) if taken else None,
                    "settings": size.settings, "infeasible": infeasible, "not with other paths": infeasible - by_paths,
                    "not if rows may end in a state": infeasible - by_any,
                })  # fmt: skip
    return table


# -- section 5.4 -----------------------------------------------------------------------------------------------------------


def random_plan(seed: int, streams: int) -> Plan:
    """Any binary tree, with the values of table 3; selectivities are divided so that a row finds about two partners, or
    products of a dozen joins would overflow every budget."""
    chosen = np.random.default_rng((54, seed))
    parts: list[Stream | Join] = [
        Stream(f"s{n}", float(chosen.uniform(*RATES_PER_S)), float(chosen.uniform(*STATE_ROWS)), 0.0) for n in range(streams)
    ]
    while len(parts) > 1:
        left = int(chosen.integers(0, len(parts) - 1))
        partners = (parts[left].state_rows + parts[left + 1].state_rows) / 2
        selectivity = float(chosen.uniform(*SELECTIVITIES)) / SELECTIVITIES[1] * 4 / partners
        parts[left : left + 2] = [join(parts[left], parts[left + 1], selectivity, float(chosen.uniform(*STATE_ROWS)))]
    root = parts[0]
    assert isinstance(root, Join)
    return Plan(Join(root.inputs))


def greedy_cover(size: Size) -> Rows:
    """How much more greed takes than the least cover, and how long it does; by the number of streams, over random plans
    and a freshness of five windows and more: as many as make it feasible."""
    table: Rows = []
    for streams in (4, 6, 10, 20):
        over, times_s = [], []
        for seed in range(size.settings // 2):
            plan = random_plan(seed, streams)
            paths = input_paths(plan)
            rates = _feasible_rates(plan)
            if rates is None:
                continue
            began = process_time()
            greedy = gh_wmscp(paths, rates)
            times_s.append(process_time() - began)
            best = least_cover(paths, rates)
            if best:
                over.append(100 * (greedy.cost_per_s / best - 1))
        table.append({
            "streams": streams, "plans": len(over), "mean % above": mean(over), "most % above": max(over),
            "at the optimum %": 100 * sum(each < 0.01 for each in over) / len(over),
            "cover ms": 1000 * max(times_s), "JAQPOT ms": 1000 * _jaqpot_s(streams), "ours ms": 1000 * _ours_s(streams),
        })  # fmt: skip
    return table


def _feasible_rates(plan: Plan) -> dict[str, float] | None:
    """Refresh rates of the tightest freshness, a multiple of five windows, that the streams suffice for."""
    for times in (5.0, 10.0, 20.0, 40.0, 80.0, 160.0):
        rates = refresh_rates(plan, Limits(0.0, freshness_s(plan, times)))
        if gh_wmscp(input_paths(plan), rates).cost_per_s < float("inf"):
            return rates
    return None


def _jaqpot_s(streams: int) -> float:
    """The longest of a few allocations, the tightest freshness looked for included, in CPU seconds."""
    found = []
    for seed in range(5):
        plan = random_plan(seed, streams)
        limits = Limits(0.01 * plan.saturation, freshness_s(plan, FRESHNESS[0]))
        began = process_time()
        jaqpot(plan, limits)
        found.append(process_time() - began)
    return max(found)


def _ours_s(streams: int) -> float:
    """The longest of a few allocations of the product, for 200 slots each, in CPU seconds."""
    found = []
    for seed in range(5):
        costs_s = np.random.default_rng(seed).uniform(1e-4, 1e-3, streams)
        directions = [Direction(f"s{n}", 1_000.0, float(each), 5.0) for n, each in enumerate(costs_s)]
        began = process_time()
        for _ in range(200):
            by_results_per_cpu(directions, 0.5 * sum(each.cpu_s for each in directions))
        found.append(process_time() - began)
    return max(found)
