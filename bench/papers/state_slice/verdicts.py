"""Each published claim, and what the counts say of it: reproduced, partly, or not."""

from __future__ import annotations

from typing import Any

from anabranch.share.formulas import TwoQueries, crossover_with_push_down, pull_up
from anabranch.share.nested_loop import NestedLoopModel
from anabranch.share.window_queries import WindowQuery
from bench.papers.state_slice.figures import (
    OVERHEADS,
    Rows,
    growth,
    of_way,
    overhead_at_which_push_down_wins,
    panel_rows,
)
from bench.papers.state_slice.settings import SIGMA, Size
from bench.papers.verdict import how_far, verdict

OTHERS = ("pull-up", "push-down")

WITHIN_PERCENT = 5.0
"""So near to the formulas counts must be."""


def between(values: list[float]) -> str:
    """
    >>> between([3.04, 33.0])
    '3.0 to 33.0 %'
    """
    return f"{min(values):.1f} to {max(values):.1f} %"


def deviations(*tables: Rows) -> list[float]:
    """How far counts are off the formulas, in percent; without the rows at rates so low that chance decides."""
    return [
        abs(row[name]) for table in tables for row in table for name in ("C_m off %", "C_p off %")
        if name in row and row["rows/s"] >= 20
    ]  # fmt: skip


def gain(row: dict[str, Any]) -> float:
    """By how many percent the service rate of state-slice is above a way's, by the CPU that it saves."""
    saved: float = row["CPU saved %"]
    return 100 / (1 - saved / 100) - 100


def of_the_introduction() -> Rows:
    """Section 1: windows of 1 and 60 minutes, σ of 1 %."""
    naive = pull_up(TwoQueries(1.0, 60.0, 3600.0, 0.01, 0.1)).memory_kb
    first, second = (
        naive / NestedLoopModel((query,), 1.0, 1.0, 0.1, {SIGMA: 0.01}).unshared().stored_rows
        for query in (WindowQuery("Q1", 60.0), WindowQuery("Q2", 3600.0, SIGMA))
    )
    return [verdict("1", "the naive plan keeps 60 times the state of Q1, 100 times that of Q2",
                    how_far([round(first) == 60, round(second) == 100]),
                    f"{first:.0f} times and {second:.2f} times: σ filters A, and not B")]  # fmt: skip


def of_figure_11(grid: Rows, counted: Rows) -> Rows:
    means = {(row["saved of"], row["S_⋈"]): row["mean %"] for row in grid}
    memory = [means[f"memory of {other}", None] for other in OTHERS]
    cpu = {other: [value for (name, _), value in means.items() if name == f"cpu of {other}"] for other in OTHERS}
    most = {row["saved of"]: max(r["most %"] for r in grid if r["saved of"] == row["saved of"]) for row in grid}
    low = [row for row in counted if row["rows/s"] < 20 and row["way"] == "push-down"]
    others = [row for row in counted if row["way"] != "state-slice" and row["rows/s"] >= 20]
    apart = [abs(row["CPU saved %"] - row["eq. 4 CPU %"]) for row in others]
    selectivity, joins, long_s = 0.2, 0.025, 30.0
    crossover = crossover_with_push_down(selectivity, joins) / long_s
    # Rows that fail σ neither purge the second slice nor punctuate: of equation 3's 7λ, (5 + 2S)λ are left, beside 4λ.
    counted_crossover = crossover * (1 + 2 * selectivity) / 3
    return [
        verdict("4.3, fig. 11", "about 20 to 30 % of memory saved on average",
                how_far(20 <= value <= 30 for value in memory),
                f"by equation 4 over all ρ and S_σ {memory[0]:.1f} % of pull-up's, {memory[1]:.1f} % of push-down's"),
        verdict("4.3, fig. 11", "about 10 to 40 % of CPU saved on average",
                how_far(10 <= value <= 40 for values in cpu.values() for value in values),
                f"of pull-up's {between(cpu['pull-up'])}, of push-down's {between(cpu['push-down'])}, by S_⋈"),
        verdict("4.3, fig. 11", "at most about 50 % of memory and 100 % of CPU",
                how_far([45 < most["memory of pull-up"] <= 50, 95 < most["cpu of pull-up"] <= 100]),
                f"of pull-up's up to {most['memory of pull-up']:.0f} % and {most['cpu of pull-up']:.0f} % on the grid, "
                f"of push-down's {most['memory of push-down']:.0f} % and {most['cpu of push-down']:.0f} %"),
        verdict("4.3", "λ may be left out of equation 4: its effect is small", max(apart) < 2.0,
                f"counted savings of CPU are up to {max(apart):.1f} points off at 20 rows/s and more"),
        verdict("4.3", "all savings are positive", all(row["CPU saved %"] > 0 for row in low),
                "at " + ", ".join(f"{row['rows/s']} rows/s {row['CPU saved %']:.1f} %" for row in low)
                + f" of push-down's CPU (ρ 0.5, S_σ 0.2, S_⋈ 0.025); by equations 2 and 3 from {crossover:.0f} rows/s down, "
                f"as counted from {counted_crossover:.1f} down, for rows that fail σ do less than equation 3 says"),
    ]  # fmt: skip


def of_figures_17_and_18(table: Rows, size: Size) -> Rows:
    slices, others = of_way(table, "state-slice"), [row for row in table if row["way"] != "state-slice"]
    memory, cpu = [row["saved %"] for row in others], [row["CPU saved %"] for row in others]
    panels = [panel_rows(slices, ("uniform", 0.5, joins)) for joins in (0.025, 0.1)]
    apart = [100 * abs(one["stored"] / other["stored"] - 1) for one, other in zip(*panels, strict=True)]
    faster = {way: [gain(row) for row in of_way(table, way)] for way in OTHERS}
    first, last = size.rates_per_s[0], size.rates_per_s[-1]
    shown = [row for row in table if row["seeds"] == size.seeds]
    grown = [each for way in OTHERS for each in growth(shown, way, first, last)]
    said = [formula for way in OTHERS for _, formula in growth(table, way, first, last)]
    overhead, (windows, selectivity, joins), rate = overhead_at_which_push_down_wins(size)
    high = [row for row in others if row["S_⋈"] == 0.4 and row["rows/s"] == last]
    by_way = {way: [gain(row) for row in of_way(high, way)] for way in OTHERS}
    ratio = [row["comparisons/s"] / other["comparisons/s"]
             for row, other in zip(of_way(table, "push-down"), of_way(table, "pull-up"), strict=True)]  # fmt: skip
    return [
        verdict("3.2", "push-down needs much less CPU than pull-up", how_far(share < 0.75 for share in ratio),
                f"{100 * min(ratio):.0f} to {100 * max(ratio):.0f} % of it over all settings"),
        verdict("7.2, fig. 17", "state-slice always stores least", min(memory) > 0,
                f"saved in all {len(memory)} comparisons, {between(memory)}"),
        verdict("7.2, fig. 17", "20 to 30 % of memory saved", how_far(20 <= value <= 30 for value in memory),
                f"{between(memory)}; {sum(20 <= value <= 30 for value in memory)} of {len(memory)} within 20 to 30 %"),
        verdict("7.2, fig. 17", "S_⋈ does not matter to memory", max(apart) < 2.0,
                f"at most {max(apart):.1f} % between (b) and (e), whose rows differ in their keys"),
        verdict("7.2, fig. 18", "state-slice always has the highest service rate", min(cpu) > 0,
                f"by {between(faster['pull-up'])} above pull-up, {between(faster['push-down'])} above push-down; "
                f"a C_sys above {overhead:.1f} puts push-down ahead first "
                f"({windows}, S_σ {selectivity}, S_⋈ {joins}, {rate} rows/s)"),
        verdict("7.2, fig. 18", "the more rows, the larger the advantage", how_far(each > 0 for each, _ in grown),
                f"it grows by {min(said):.2f} to {max(said):.2f} points of CPU from {first} to {last} rows/s by the "
                f"formulas, as counted by {min(each for each, _ in grown):.2f} to {max(each for each, _ in grown):.2f}: "
                "too little to be seen in a figure, for purging and merging are a small part of all comparisons"),
        verdict("7.2, fig. 18", "up to 40 % more at a large S_⋈ and many rows",
                how_far(35 <= max(values) <= 45 for values in by_way.values()) or (None if max(cpu) > 40 else False),
                f"{between(by_way['push-down'])} above push-down, {between(by_way['pull-up'])} above pull-up "
                f"at S_⋈ 0.4 and {last} rows/s"),
    ]  # fmt: skip


def of_figure_19(table: Rows) -> Rows:
    def rows(panel: str, overhead: float) -> Rows:
        return [row for row in table if row["panel"] == panel and row["C_sys"] == overhead]

    def gains(panel: str, overhead: float) -> list[float]:
        return [row["service rate +%"] for row in rows(panel, overhead)]

    def told(values: list[float]) -> str:
        return f"{sum(values) / len(values):.1f} %"

    low, middle, high = OVERHEADS
    same = [row["slices"] == row["queries"] for row in table if row["panel"] == "19a" and row["C_sys"] == low]
    other = [row["slices"] for row in table if row["panel"] == "19a" and row["C_sys"] == high]
    small = {c: [not _ends_between(row["chain"], 0.0, 10.0) for row in rows("19b", c)] for c in OVERHEADS}
    two = {c: [row["rows/s"] for row in rows("19c", c) if row["chain"] == "[0, 6) [6, 30)"] for c in OVERHEADS}
    means = {panel: [sum(gains(panel, c)) / len(gains(panel, c)) for c in OVERHEADS]
             for panel in dict.fromkeys(row["panel"] for row in table)}  # fmt: skip
    all_gains = {c: [row["service rate +%"] for row in table if row["C_sys"] == c] for c in OVERHEADS}
    skewed = [means["19a"][n] < means["19b"][n] and means["19a"][n] < means["19c"][n] for n in range(len(OVERHEADS))]
    found = [
        verdict("5.1, theorem 3", "all chains store and probe as much as one join",
                all(r["stored"] == r["stored by Mem-Opt"] and r["probing"] == r["probing of Mem-Opt"] for r in table),
                "the same numbers, to the row"),
        verdict("7.3, fig. 19a", "with uniform windows CPU-Opt is Mem-Opt",
                how_far(row["slices"] == row["queries"] for row in table if row["panel"] == "19a"),
                f"with C_sys {low} at {'all' if all(same) else 'some'} rates; with {high:.0f} it has "
                f"{min(other)} to {max(other)} slices"),
        verdict("7.3, fig. 19b", "with mostly small windows all small ones merge",
                how_far(each for values in small.values() for each in values),
                f"with C_sys {high:.0f} at {sum(small[high])} of {len(small[high])} rates, with {middle:.0f} at "
                f"{sum(small[middle])}, with {low} at {sum(small[low])}"),
        verdict("7.3, fig. 19c", "small-large windows give two slices",
                how_far(row["slices"] == 2 for row in table if row["panel"] == "19c"),
                f"with C_sys {high:.0f} at {', '.join(map(str, two[high])) or 'no'} rows/s, with {low} and {middle:.0f} at "
                f"{len(two[low]) + len(two[middle])} rates; no C_sys gives 19a and 19b or 19c"),
        verdict("7.3", "the more skewed the windows, the larger the gain", how_far(skewed),
                "; ".join(f"C_sys {c:g}: {told(gains('19a', c))} uniform, {told(gains('19b', c))} mostly small, "
                          f"{told(gains('19c', c))} small-large" for c in OVERHEADS)),
        verdict("7.3", "20 to 30 % more on average",
                how_far(20 <= sum(values) / len(values) <= 30 for values in all_gains.values()),
                "in the mean " + ", ".join(f"{told(all_gains[c])} with C_sys {c:g}" for c in OVERHEADS)),
    ]  # fmt: skip
    if "19e" in means:
        grows = [means["19c"][n] < means["19d"][n] < means["19e"][n] for n in range(len(OVERHEADS))]
        found.append(verdict(
            "7.3, fig. 19d, e", "the more queries, the larger the gain", how_far(grows),
            "; ".join(f"C_sys {c:g}: {means['19c'][n]:.1f}, {means['19d'][n]:.1f}, {means['19e'][n]:.1f} %"
                      for n, c in enumerate(OVERHEADS)) + " for 12, 24, 36 queries",
        ))  # fmt: skip
    return found


def _ends_between(chain: str, above_s: float, below_s: float) -> bool:
    """Whether a slice ends strictly between two windows.

    >>> _ends_between("[0, 5) [5, 10) [10, 30)", 0.0, 10.0), _ends_between("[0, 10) [10, 30)", 0.0, 10.0)
    (True, False)
    """
    ends = [float(part.split(", ")[1]) for part in chain.rstrip(")").split(") ")]
    return any(above_s < end < below_s for end in ends)


def all_verdicts(grid: Rows, two: Rows, three: Rows, chains: Rows, size: Size) -> Rows:
    counted = deviations(two, three, chains)
    beyond = sum(value > WITHIN_PERCENT for value in counted)
    return [
        *of_the_introduction(), *of_figure_11(grid, two), *of_figures_17_and_18(three, size), *of_figure_19(chains),
        verdict("equations 1 to 3, 5.2", f"counts are within {WITHIN_PERCENT:g} % of the formulas", beyond == 0,
                f"at most {max(counted, default=0.0):.1f} % off, {beyond} of {len(counted)} beyond"),
    ]  # fmt: skip
