"""Each published claim, and what the runs say of it: reproduced, partly, or not."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

from anabranch.overload.algorithms import HEURISTICS
from bench.papers.jaqpot.sensors import CAPACITIES, FRESHNESS_8
from bench.papers.jaqpot.settings import FRESHNESS, SHAPES
from bench.papers.jaqpot.throughput import SELECTIVITIES_6
from bench.papers.verdict import how_far, verdict

Rows = list[dict[str, Any]]
PUBLISHED_8 = dict(zip(CAPACITIES, (2.8, 2.5, 3.4), strict=True))
NEAR = 0.2
"""A figure within a fifth of the published one is the same: published ones were read off other settings."""


ROUNDED = 0.005
"""Of worked examples."""

SOON_MS = {10: 20.0, 20: 300.0}
"""How long an allocation may take, by the number of streams: that is asked of ours."""


def near(value: float, published: float) -> bool:
    return abs(value / published - 1) <= NEAR


def about(times: float, published: float) -> bool | None:
    """Of a gain: whether it is the published one; in part if there is a gain, and it is another.

    >>> about(2.9, 2.5), about(1.3, 2.5), about(0.9, 2.5)
    (True, None, False)
    """
    return True if near(times, published) else None if times > 1 else False


def of_examples(table: Rows) -> Rows:
    """A verdict for each figure or table; what was rounded by the text is as published."""
    claims = {
        "fig. 2a": ("2", "all to the more productive direction, 1,500 results"),
        "table 2": ("4.1", "paths of 0.2667, 0.3125 and 0.1; 6 results by greed, 8 by dynamic programming"),
        "table 4": ("B", "the heuristics give 450, 677, 750 and 750 results"),
    }
    found = []
    for where, (section, claim) in claims.items():
        rows = [row for row in table if row["where"] == where]
        told = [f"{row['what']} {row['ours']:.4g}" for row in rows]
        same = how_far(abs(row["ours"] / row["published"] - 1) < ROUNDED for row in rows if row["published"] is not None)
        found.append(verdict(f"{section}, {where}", claim, same, "; ".join(told)))
    return found


def of_figure_6(table: Rows) -> Rows:
    phases = [f"SEL{n + 1}" for n in range(len(SELECTIVITIES_6))]
    found = {(row["plan"], row["algorithm"], row["selectivities"]): row for row in table}

    def results(shape: str, name: str, phase: str) -> float:
        return float(found[shape, name, phase]["results/min"])

    ahead, best = [], []
    for shape in SHAPES:
        for phase in phases:
            most, leader = max((results(shape, name, phase), name) for name in HEURISTICS)
            best.append(leader)
            ahead.append(results(shape, "JAQPOT", phase) / most)
    steps = {
        (shape, name, n): results(shape, name, phases[n + 1]) / results(shape, name, phases[n])
        for shape in SHAPES for name in ("JAQPOT", *HEURISTICS) for n in range(2)
    }  # fmt: skip
    grown = [steps[shape, name, 1] for shape in SHAPES for name in HEURISTICS]
    off = [100 * abs(row["results/min"] / row["expected"] - 1) for row in table if row["algorithm"] != "GrePP"]
    starved = [row for row in table if row["algorithm"] == "GrePP" and row["selectivities"] == "SEL3"]
    return [
        verdict("5.1, fig. 6", "JAQPOT gives more than every heuristic, whatever the selectivities",
                how_far(each > 1 for each in ahead),
                f"{min(ahead):.2f} to {max(ahead):.2f} times the best heuristic over plans and phases"),
        verdict("5.1, fig. 6", "a change at the root changes JAQPOT's results more than one below",
                how_far(steps[shape, "JAQPOT", 1] > steps[shape, "JAQPOT", 0] for shape in SHAPES),
                "; ".join(f"{shape}: times {steps[shape, 'JAQPOT', 0]:.2f} as the joins below triple, "
                          f"{steps[shape, 'JAQPOT', 1]:.2f} as the root doubles" for shape in SHAPES)),
        verdict("5.1, fig. 6", "heuristics hardly adapt", how_far(each < 1.25 for each in grown),
                f"results grow by {min(grown):.2f} to {max(grown):.2f} times as the root doubles: a probe at the root "
                "finds twice as many, whoever has it"),
        verdict("5.1, fig. 6", "GlobalHJPR is the best heuristic", how_far(name == "GlobalHJPR" for name in best),
                f"{', '.join(sorted(set(best)))} in all phases" if len(set(best)) == 1
                else ", ".join(f"{name} in {best.count(name)} of {len(best)} phases" for name in sorted(set(best)))),
        verdict("4.1", "results are what the equations expect",
                how_far(each < 10 for each in off),
                f"counts are off by {mean(off):.1f} % in the mean, {max(off):.1f} % at most, and those of GrePP in SEL3 by "
                + ", ".join(f"{100 * (row['results/min'] / row['expected'] - 1):.0f} % ({row['plan']})" for row in starved)
                + ": a state that starves keeps rows of the old selectivity"),
    ]  # fmt: skip


def of_figure_7(table: Rows, eighty: Rows) -> Rows:
    def rows(shape: str) -> Rows:
        return [row for row in table if row["plan"] == shape and row.get("times")]

    times = {shape: [row["times"] for row in rows(shape)] for shape in SHAPES}
    at_60 = {shape: next(row for row in rows(shape) if row["µ %"] == 60) for shape in SHAPES}
    share = {shape: float(at_60[shape]["JAQPOT"]) for shape in SHAPES}
    at_40 = next(row for row in rows("linear") if row["µ %"] == 40)
    leaders = {shape: [row["best heuristic"] for row in rows(shape)] for shape in SHAPES}
    gap = [100 * (1 - row["JAQPOT"] / row["optimum with freshness"]) for row in table if row.get("times")]
    holds = [row for row in eighty[1:] if row["above 80 %"] == "yes"]
    least = holds[0] if holds else None
    return [
        verdict("4.1", "GrePP is optimal", max(row["off the programme"] for row in table) < 0.01,
                f"off the linear programme by {max(row['off the programme'] for row in table):.1g} points at most"),
        verdict("5.1, fig. 7a", "over 80 % of the results at 60 % of the resources, linear plans",
                share["linear"] > 80,
                f"{share['linear']:.1f} %, and {at_60['linear']['GrePP, all settings']:.1f} % is the most without "
                "freshness; " + (f"it holds with {least['setting']}: {least['GrePP %']:.0f} %" if least else "nowhere")),
        verdict("5.1, fig. 7a", "2.5 times the best heuristic on average, linear plans", about(mean(times["linear"]), 2.5),
                f"{mean(times['linear']):.2f} times"),
        verdict("5.1, fig. 7a", "at most 6.5 times, at 40 % of the resources", near(at_40["times"], 6.5),
                f"{at_40['times']:.2f} times at 40 %, {max(times['linear']):.2f} at most"),
        verdict("5.1, fig. 7b", "about twice the best heuristic, bushy plans", about(mean(times["bushy"]), 2.0),
                f"{mean(times['bushy']):.2f} times, {min(times['bushy']):.2f} to {max(times['bushy']):.2f} by resources"),
        verdict("5.1, fig. 7", "JAQPOT is above every heuristic at all resources",
                all(each > 1 for shape in SHAPES for each in times[shape]),
                f"{min(map(min, times.values())):.2f} times at least, in the mean over settings"),
        verdict("5.1, fig. 7", "GlobalHJPR leads the heuristics (linear), with SBestHJP (bushy)",
                how_far([*(name == "GlobalHJPR" for name in leaders["linear"]),
                         *(name in ("GlobalHJPR", "SBestHJP") for name in leaders["bushy"])]),
                "; ".join(f"{shape}: {', '.join(sorted(set(names)))}" for shape, names in leaders.items())),
        verdict("5.1, 5", "JAQPOT does better on linear plans than on bushy ones",
                how_far([mean(times["linear"]) > mean(times["bushy"]), share["linear"] > share["bushy"]]),
                f"{mean(times['linear']):.2f} and {mean(times['bushy']):.2f} times the best heuristic; at 60 % of the "
                f"resources {share['linear']:.0f} and {share['bushy']:.0f} % of saturation, for the two sides of a bushy "
                "root differ more in productivity"),
        verdict("4.3, 5", "JAQPOT is near the optimum", max(gap) < 5,
                f"{max(gap):.1f} % below the best allocation that keeps the freshness, at most"),
    ]  # fmt: skip


def of_figure_8(table: Rows) -> Rows:
    """Nothing where there were no data."""
    found: Rows = []
    for key in dict.fromkeys(row["key"] for row in table):
        rows = [row for row in table if row["key"] == key]
        by = {(row["µ"], row["algorithm"]): float(row["results/min"]) for row in rows}
        times = {each: by[each, "JAQPOT"] / max(1.0, *(by[each, name] for name in HEURISTICS)) for each in CAPACITIES}
        leaders = {max((by[each, name], name) for name in HEURISTICS)[1] for each in CAPACITIES}
        kept = [row["reviews with freshness kept %"] for row in rows if row["algorithm"] == "JAQPOT"]
        first, second, third = (by[each, "JAQPOT"] for each in CAPACITIES)
        gains = [about(times[each], PUBLISHED_8[each]) for each in CAPACITIES]
        found += [
            verdict(f"5.2, fig. 8, on {key}", "2.8, 2.5, 3.4 times the best heuristic with µ 300, 600, 900",
                    True if all(gains) else False if not any(each is not False for each in gains) else None,
                    ", ".join(f"{each:.2f}" for each in times.values()) + f" times {' and '.join(sorted(leaders))}"),
            verdict(f"5.2, fig. 8, on {key}", "twice µ gives twice the results, half as much again three times as many",
                    how_far([near(second / max(1.0, first), 2.0), near(third / max(1.0, second), 3.0)]),
                    f"{second / max(1.0, first):.2f} and {third / max(1.0, second):.2f} times"),
            verdict(f"5.3, on {key}", "freshness can always be kept", how_far(each == 100 for each in kept),
                    f"{FRESHNESS_8:g} windows in " + ", ".join(f"{each:.0f} %" for each in kept)
                    + " of the allocations with µ 300, 600, 900"),
        ]  # fmt: skip
    return found


def of_figure_9(stale: Rows, cover: Rows, sensors: Rows) -> Rows:
    columns = [f"stale % at {times:g} windows" for times in FRESHNESS]

    def share(shape: str, name: str, column: str) -> float:
        return next(row[column] or 0.0 for row in stale if row["plan"] == shape and row["algorithm"] == name)

    def told(shape: str, column: str) -> str:
        return ", ".join(f"{name} {share(shape, name, column):.0f} %" for name in (*HEURISTICS, "GrePP"))

    relaxed = [[row[column] for column in columns] for row in stale if row["settings with results"]]
    by_shape = {
        shape: mean(share(shape, name, columns[0]) for name in (*HEURISTICS, "GrePP")) for shape in SHAPES
    }
    worst = [name for _, name in sorted((-share("linear", name, columns[0]), name) for name in HEURISTICS)][:2]
    found = [
        verdict("5.3, fig. 9a, b", "what optimises throughput makes staleness worse",
                how_far(share(shape, "GrePP", columns[0]) > share(shape, "EqualHJ", columns[0]) for shape in SHAPES),
                "; ".join(f"{shape}, 1.5 windows: {told(shape, columns[0])}" for shape in SHAPES)),
        verdict("5.3, fig. 9a, b", "the longer the freshness, the fewer stale results",
                how_far(shares == sorted(shares, reverse=True) and shares[0] > shares[-1] for shares in relaxed),
                "at 5 windows " + "; ".join(f"{shape}: {told(shape, columns[-1])}" for shape in SHAPES)
                + ". What starves altogether is stale by any freshness"),
        verdict("5.3, fig. 9a", "EBestHJP and SBestHJP give most stale results of the heuristics, linear plans",
                how_far(name in ("EBestHJP", "SBestHJP") for name in worst), f"{' and '.join(worst)} do"),
        verdict("5.3, fig. 9b", "bushy plans give more stale results than linear ones",
                by_shape["bushy"] > by_shape["linear"],
                f"{by_shape['bushy']:.0f} % on bushy plans, {by_shape['linear']:.0f} % on linear ones, in the mean"),
        verdict("5.3, fig. 9b", "about 70 % of SBestHJP's results are stale at 1.5 windows, bushy plans",
                near(share("bushy", "SBestHJP", columns[0]), 70), f"{share('bushy', 'SBestHJP', columns[0]):.0f} %"),
    ]  # fmt: skip
    if sensors:
        mine = [row for row in sensors if row["µ"] == CAPACITIES[0] and row["algorithm"] != "JAQPOT"]
        shares = {key: mean(row["stale % at 1.5"] for row in mine if row["key"] == key)
                  for key in dict.fromkeys(row["key"] for row in mine)}  # fmt: skip
        found.append(verdict(
            "5.3, fig. 9c", "sensors suffer less", how_far(each < min(by_shape.values()) for each in shares.values()),
            "; ".join(f"on {key} {each:.0f} % in the mean" for key, each in shares.items()) + ", 1.5 windows, µ 300",
        ))  # fmt: skip
    return [*found, *_of_covers(cover)]


def _of_covers(cover: Rows) -> Rows:
    shares = {(row["plan"], row["windows"]): row for row in cover if row["µ"] != "300"}
    few = [row for row in cover if row["µ"] == "300"]
    settings = sum(row["settings"] for row in shares.values())
    infeasible = sum(row["infeasible"] for row in shares.values())
    tight = sum(row["infeasible"] for row in shares.values() if row["windows"] == FRESHNESS[0])
    bushy = sum(row["infeasible"] for row in shares.values() if row["plan"] == "bushy")
    every = sum(row["settings"] for row in few)
    here = sum(row["infeasible"] for row in few)
    greed = infeasible + here - sum(row["not with other paths"] for row in cover)
    ending = infeasible + here - sum(row["not if rows may end in a state"] for row in cover)

    def percent(part: int, whole: int) -> float:
        return 100 * part / max(1, whole)

    linear, bushes = shares["linear", FRESHNESS[-1]]["for freshness %"], shares["bushy", FRESHNESS[0]]["for freshness %"]
    return [
        verdict("5.3, fig. 9d", "freshness takes 3 % of the resources at 5 windows (linear), 35 % at 1.5 (bushy)",
                how_far([linear is not None and near(linear, 3), bushes is not None and near(bushes, 35)]),
                ", ".join(f"{row['for freshness %']:.1f} % ({shape}, {windows:g})"
                          for (shape, windows), row in shares.items() if row["for freshness %"] is not None)
                + ", µ being any share of saturation"),
        verdict("5.3", "freshness is infeasible in 8 % of the settings, 85 % of these at 1.5 windows, 65 % bushy",
                how_far([near(max(percent(infeasible, settings), 1e-9), 8),
                         near(max(percent(tight, infeasible), 1e-9), 85), near(max(percent(bushy, infeasible), 1e-9), 65)]),
                f"{percent(infeasible, settings):.1f} %, of these {percent(tight, infeasible):.0f} % at 1.5 windows and "
                f"{percent(bushy, infeasible):.0f} % bushy; with µ = 300 {percent(here, every):.0f} %"),
        verdict("5.3, 5", "a solution is found if there is one", how_far([greed == 0, ending == 0]),
                f"of {infeasible + here} settings told infeasible {greed} are feasible with the least cover, and {ending} "
                "if rows that refresh a state need not go on to the root"),
    ]  # fmt: skip


def of_section_5_4(table: Rows) -> Rows:
    worst, average = max(row["most % above"] for row in table), [row["mean % above"] for row in table]
    return [
        verdict("5.4", "the greedy cover takes 11 % more than the least on average, 19 % at most",
                how_far([max(average) <= 11 * (1 + NEAR), worst <= 19 * (1 + NEAR)]),
                "; ".join(f"{row['streams']} streams: {row['mean % above']:.1f} %, {row['most % above']:.0f} % at most"
                          for row in table)),
        verdict("5.4", "a cover takes 2 to 300 ms", all(row["cover ms"] <= 300 for row in table),
                f"{max(row['cover ms'] for row in table):.1f} ms at most; all of JAQPOT "
                + ", ".join(f"{row['JAQPOT ms']:.0f} ms at {row['streams']} streams" for row in table)),
        verdict("ours", "an allocation takes no longer than "
                + " and ".join(f"{most:.0f} ms at {streams} streams" for streams, most in SOON_MS.items()),
                how_far(max(row["JAQPOT ms"], row["ours ms"]) <= SOON_MS[row["streams"]]
                        for row in table if row["streams"] in SOON_MS),
                "; ".join(f"at {row['streams']} streams JAQPOT {row['JAQPOT ms']:.1f} ms, ours for 200 slots "
                          f"{row['ours ms']:.1f} ms" for row in table if row["streams"] in SOON_MS)),
    ]  # fmt: skip


def all_verdicts(tables: dict[str, Sequence[dict[str, Any]]]) -> Rows:
    six, seven, eighty = list(tables["6"]), list(tables["7"]), list(tables["80_percent"])
    return [
        *of_examples(list(tables["examples"])),
        *of_figure_6(six), *of_figure_7(seven, eighty), *of_figure_8(list(tables["8"])),
        *of_figure_9(list(tables["9_stale"]), list(tables["9_cover"]), list(tables["8"])),
        *of_section_5_4(list(tables["cover"])),
    ]  # fmt: skip
