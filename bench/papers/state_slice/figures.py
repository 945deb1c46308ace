"""Figures 11, 17, 18 and 19: counts of the reference beside the formulas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from anabranch.share.cpu_opt import cpu_opt
from anabranch.share.formulas import savings
from anabranch.share.mem_opt import mem_opt
from anabranch.share.nested_loop import Cost, NestedLoopModel
from anabranch.share.reference.plans import SharedPlan, pull_up, push_down, sliced
from anabranch.share.reference.rows import KeyBand
from anabranch.share.window_queries import WindowQuery, distinct_windows
from bench.papers.state_slice.measure import Measured, mean, measure, results_per_s
from bench.papers.state_slice.settings import (
    CHAIN_JOIN,
    JOINS,
    SELECTIVITIES,
    SIGMA,
    WINDOWS_S,
    Size,
    chain_queries,
    poisson,
    spread,
    three_queries,
    two_queries,
)

Rows = list[dict[str, Any]]
Build = Callable[..., SharedPlan]
WAYS: dict[str, Build] = {"state-slice": sliced, "pull-up": pull_up, "push-down": push_down}


def said(way: str, model: NestedLoopModel) -> Cost:
    """What the formulas say of a way."""
    if way == "state-slice":
        return model.chain(mem_opt(distinct_windows(model.queries)).chain)
    return model.pull_up() if way == "pull-up" else model.push_down()


def off(counted: float, formula: float) -> float:
    """By how many percent a count is off its formula."""
    return 100 * (counted / formula - 1)


def compare(
    queries: tuple[WindowQuery, ...], rate_per_s: int, selectivity: float, join_selectivity: float, seeds: int
) -> Rows:
    """A row for each way: what it stores and compares, beside the formulas, in the mean over seeds."""
    condition, results = JOINS[join_selectivity], 0.0
    found: dict[str, list[Measured]] = {way: [] for way in WAYS}
    for seed in range(seeds):
        rows = poisson(rate_per_s, seed, condition.keys, selectivity)
        for way, build in WAYS.items():
            plan = build(queries, condition, is_counted=True)
            found[way].append(measure(plan, rows))
            if way == "state-slice":
                results += results_per_s(plan, queries) / seeds
    model = NestedLoopModel(queries, rate_per_s, rate_per_s, join_selectivity, {SIGMA: selectivity})
    slices = mean(found["state-slice"])
    table: Rows = []
    for way in WAYS:
        counted, formula = mean(found[way]), said(way, model)
        table.append({
            "S_σ": selectivity, "S_⋈": join_selectivity, "rows/s": rate_per_s, "way": way, "seeds": seeds,
            "stored": counted.stored_rows, "C_m": formula.stored_rows,
            "C_m off %": off(counted.stored_rows, formula.stored_rows),
            "saved %": 100 * (1 - slices.stored_rows / counted.stored_rows),
            "comparisons/s": counted.comparisons_per_s, "C_p": formula.comparisons_per_s,
            "C_p off %": off(counted.comparisons_per_s, formula.comparisons_per_s),
            "CPU saved %": 100 * (1 - slices.comparisons_per_s / counted.comparisons_per_s),
            "visits/s": counted.visits_per_s, "results/comparison": results / counted.comparisons_per_s,
        })  # fmt: skip
    return table


# -- figure 11 -----------------------------------------------------------------------------------------------------------

RATIOS = (0.1, 0.3, 0.5, 0.7, 0.9)
LOW_RATES_PER_S = (1, 2)
"""Below the crossover with push-down: by equations 2 and 3 at 10 rows/s with ρ 0.5, S_σ 0.2, S_⋈ 0.025 and W2 30 s."""
GRID = tuple((n + 0.5) / 50 for n in range(50))


def figure_11() -> Rows:
    """Equation 4 over ρ and S_σ: mean, least and most over the open square."""
    table: Rows = []
    for join_selectivity in JOINS:
        every = [savings(ratio, selectivity, join_selectivity) for ratio, selectivity in product(GRID, GRID)]
        for panel, name in (
            ("a", "memory_of_pull_up"), ("a", "memory_of_push_down"), ("b", "cpu_of_pull_up"), ("c", "cpu_of_push_down"),
        ):  # fmt: skip
            values = [100 * getattr(each, name) for each in every]
            if panel != "a" or join_selectivity == min(JOINS):
                table.append({
                    "panel": panel, "saved of": name.replace("_of_", " of ").replace("_", "-"),
                    "S_⋈": None if panel == "a" else join_selectivity,
                    "mean %": sum(values) / len(values), "least %": min(values), "most %": max(values),
                })  # fmt: skip
    return table


def figure_11_counted(size: Size) -> Rows:
    """Two queries, counted: the savings of equation 4 at some points; and rates so low that the linear terms count."""
    rate = size.rates_per_s[-1]
    points = [(ratio, selectivity, 0.1, rate) for ratio, selectivity in product(RATIOS[::2], SELECTIVITIES)]
    points += [(0.5, 0.2, 0.025, low) for low in (*LOW_RATES_PER_S, 20)]
    table: Rows = []
    for ratio, selectivity, join_selectivity, rate_per_s in points:
        found = compare(two_queries(ratio), rate_per_s, selectivity, join_selectivity, size.seeds)
        equation_4 = savings(ratio, selectivity, join_selectivity)
        for row, memory, cpu in (
            (found[1], equation_4.memory_of_pull_up, equation_4.cpu_of_pull_up),
            (found[2], equation_4.memory_of_push_down, equation_4.cpu_of_push_down),
        ):
            table.append({"ρ": ratio, **row, "eq. 4 memory %": 100 * memory, "eq. 4 CPU %": 100 * cpu})
        table.append({"ρ": ratio, **found[0]})
    return table


# -- figures 17 and 18 ---------------------------------------------------------------------------------------------------

Setting = tuple[str, float, float]
"""A distribution of windows, S_σ and S_⋈: a combination of table 3."""

PANELS_17: dict[str, Setting] = {
    "17a": ("mostly-small", 0.5, 0.025), "17b": ("uniform", 0.5, 0.025), "17c": ("mostly-large", 0.5, 0.025),
    "17d": ("uniform", 0.2, 0.1), "17e": ("uniform", 0.5, 0.1), "17f": ("uniform", 0.8, 0.1),
}  # fmt: skip
"""The text says that (a) to (c) vary windows, (d) to (f) S_σ, and that (b) and (e) differ in S_⋈ alone."""

PANELS_18: dict[str, Setting] = {
    "18a": ("mostly-small", 0.5, 0.1), "18b": ("uniform", 0.5, 0.1), "18c": ("mostly-large", 0.5, 0.1),
    "18d": ("uniform", 0.5, 0.025), "18e": ("uniform", 0.5, 0.1), "18f": ("uniform", 0.5, 0.4),
}  # fmt: skip
"""The text says that (a) to (c) vary windows and (d) to (f) S_⋈; what is not varied is in the middle here."""

EVERY_SETTING: tuple[Setting, ...] = tuple(product(WINDOWS_S, SELECTIVITIES, JOINS))


def figures_17_and_18(size: Size, tell: Callable[[str], None]) -> Rows:
    """All combinations of table 3; those that a figure shows with all seeds."""
    shown = {*PANELS_17.values(), *PANELS_18.values()}
    table: Rows = []
    for setting, rate in product(EVERY_SETTING, size.rates_per_s):
        windows, selectivity, join_selectivity = setting
        seeds = size.seeds if setting in shown else size.other_seeds
        found = compare(three_queries(WINDOWS_S[windows]), rate, selectivity, join_selectivity, seeds)
        table += [{"windows": windows, **row} for row in found]
        if rate == size.rates_per_s[-1]:
            tell(f"{windows}, S_σ {selectivity}, S_⋈ {join_selectivity}: {len(table)} rows")
    return table


def overhead_at_which_push_down_wins(size: Size) -> tuple[float, Setting, int]:
    """The least C_sys with which push-down needs no more CPU than state-slice, over all settings; by the formulas."""
    found = []
    for setting, rate in product(EVERY_SETTING, size.rates_per_s):
        windows, selectivity, joins = setting
        queries = three_queries(WINDOWS_S[windows])
        costs = [
            [said(way, NestedLoopModel(queries, rate, rate, joins, {SIGMA: selectivity}, overhead)).comparisons_per_s
             for overhead in (0.0, 1.0)]
            for way in ("state-slice", "push-down")
        ]  # fmt: skip
        ahead = costs[1][0] - costs[0][0]
        more_visits = (costs[0][1] - costs[0][0]) - (costs[1][1] - costs[1][0])
        found.append((ahead / more_visits, setting, rate))
    return min(found)


# -- figure 19 -----------------------------------------------------------------------------------------------------------

OVERHEADS = (1.5, 24.0, 119.0)
"""C_sys, which the paper does not give. With the first, uniform windows stay apart at all rates, as published; with the
last, ten small windows merge at all rates, and small and large ones give two slices at 40 rows/s."""

PANELS_19: dict[str, tuple[str, int]] = {
    "19a": ("uniform", 12), "19b": ("mostly-small", 12), "19c": ("small-large", 12),
    "19d": ("small-large", 24), "19e": ("small-large", 36),
}  # fmt: skip
"""The text does not say which windows (d) and (e) have."""


def figure_19(size: Size, tell: Callable[[str], None]) -> Rows:
    """Mem-Opt against CPU-Opt, for each C_sys."""
    table: Rows = []
    condition: KeyBand = JOINS[CHAIN_JOIN]
    for panel, (name, count) in PANELS_19.items():
        if count not in size.queries:
            continue
        windows_s = spread(name, count)
        queries = chain_queries(windows_s)
        for rate in size.rates_per_s:
            streams = [poisson(rate, seed, condition.keys) for seed in range(size.seeds)]
            models = {c: NestedLoopModel(queries, rate, rate, CHAIN_JOIN, overhead=c) for c in OVERHEADS}
            chosen = {c: cpu_opt(windows_s, models[c].edge_cost).chain for c in OVERHEADS}
            least = mem_opt(windows_s).chain
            counted = {
                chain: mean([measure(sliced(queries, condition, chain, is_counted=True), rows) for rows in streams])
                for chain in {least, *chosen.values()}
            }
            for overhead, chain in chosen.items():
                before, after = counted[least], counted[chain]
                formula = models[overhead].chain(chain).comparisons_per_s
                table.append({
                    "panel": panel, "windows": name, "queries": count, "rows/s": rate, "C_sys": overhead,
                    "(1+C_sys)/x": (1 + overhead) / (rate * CHAIN_JOIN), "slices": len(chain.ends), "chain": str(chain),
                    "Mem-Opt": before.cpu_per_s(overhead), "CPU-Opt": after.cpu_per_s(overhead), "C_p": formula,
                    "C_p off %": off(after.cpu_per_s(overhead), formula),
                    "service rate +%": 100 * (before.cpu_per_s(overhead) / after.cpu_per_s(overhead) - 1),
                    "stored": after.stored_rows, "stored by Mem-Opt": before.stored_rows,
                    "probing": after.probing_per_s, "probing of Mem-Opt": before.probing_per_s,
                })  # fmt: skip
        tell(f"{panel}: {name}, {count} queries")
    return table


def growth(table: Rows, way: str, first: int, last: int) -> list[tuple[float, float]]:
    """By how many points the CPU that state-slice saves of a way's grows from one rate to another, in each setting: as
    counted, and by the formulas."""
    found = []
    slices = {_setting(row, row["rows/s"]): row for row in of_way(table, "state-slice")}
    others = {_setting(row, row["rows/s"]): row for row in of_way(table, way)}
    for key, row in others.items():
        if key[-1] == last:
            before = (*key[:-1], first)
            formulas = [100 * (1 - slices[k]["C_p"] / others[k]["C_p"]) for k in (before, key)]
            found.append((row["CPU saved %"] - others[before]["CPU saved %"], formulas[1] - formulas[0]))
    return found


def _setting(row: dict[str, Any], rate: int) -> tuple[Any, ...]:
    return row["windows"], row["S_σ"], row["S_⋈"], rate


def panel_rows(table: Rows, setting: Setting) -> Rows:
    windows, selectivity, joins = setting
    return [r for r in table if (r["windows"], r["S_σ"], r["S_⋈"]) == (windows, selectivity, joins)]


def of_way(table: Sequence[dict[str, Any]], way: str) -> Rows:
    return [row for row in table if row["way"] == way]
