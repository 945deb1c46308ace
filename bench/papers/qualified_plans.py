"""Qualified plans (Zhu, Raghavan, Rundensteiner, DKE 2009; dissertation, ch. 8): `python -m bench.papers.qualified_plans`.

*Heuristics* (section 6, fig. 13 and 14; 8.2, fig. 8.10 to 8.15): n = 3 … 20 streams, 100 random settings each: rates 1 to
100, random joins, selectivities in (0, 1), window 1 s, the costs of table 3. With two kinds of budgets: the paper's own (one
second of CPU per second), and drawn ones, of which at least half have a qualified plan, and a third of those only a jtree
that is neither the mjoin nor a binary tree. For each setting: which algorithm finds a qualified plan (as published:
state-selection, state-removal, the two-layer framework; ours: the local search), out of those where the exact search says
there is one (n up to 8; above, out of those where any algorithm finds one), and in what time.

*Experiment sets* (section 4, table 2): the computation under the published model and parameters, whether the published
verdict follows, and the nearest parameters with which it does.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from anabranch.cost.model import PAPER, Cost, CostModel
from anabranch.cost.streams import StreamGraph, edges, stream
from anabranch.optimize.dominating import dominating, qualified
from anabranch.optimize.exact import exact_front
from anabranch.optimize.local_search import least_cpu_tree, search
from anabranch.optimize.min_state import min_state
from anabranch.optimize.state_removal import state_removal
from anabranch.optimize.state_selection import state_selection
from anabranch.optimize.trees import MJOIN, Pricer, Views
from anabranch.optimize.two_layer import kind_of, two_layer
from bench import report

EXACT = 8
NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
Algorithm = Callable[[Pricer, float, float], Views]

ALGORITHMS: dict[str, tuple[bool, Algorithm]] = {
    "state-selection": (False, lambda p, cpu, memory: state_selection(p, cpu, memory)),
    "state-removal": (False, lambda p, cpu, memory: state_removal(p, cpu, memory, min_state(p))),
    "two-layer": (False, lambda p, cpu, memory: two_layer(p, cpu, memory).views),
    "local search": (True, lambda p, cpu, memory: best_of(search(p, cpu, memory), cpu, memory)),
}
"""As published with the orders of mjoin-ordering; ours with the best ones."""


def best_of(found: list[tuple[Views, Cost]], cpu: float, memory: float) -> Views:
    within = qualified(found, cpu, memory)
    return (within or found)[0][0]


def random_setting(rng: np.random.Generator, n: int) -> StreamGraph:
    """Rates of 1 to 100 rows per second; a random tree of joins, and a few more; selectivities in (0, 1)."""
    streams = [stream(NAMES[i], float(rng.integers(1, 101)), 1.0) for i in range(n)]
    joins = {(NAMES[int(rng.integers(0, i))], NAMES[i]) for i in range(1, n)}
    for _ in range(int(rng.integers(0, n // 2 + 1))):
        a, b = sorted(int(x) for x in rng.choice(n, 2, replace=False))
        joins.add((NAMES[a], NAMES[b]))
    return edges(streams, {pair: float(rng.uniform(1e-3, 1.0)) for pair in sorted(joins)})


@dataclass(frozen=True)
class Budgeted:
    """A setting with a budget; `exists` is None where nobody knows."""

    graph: StreamGraph
    cpu: float
    memory: float
    exists: bool | None
    only_jtree: bool


def reference_front(pricer: Pricer) -> list[tuple[Views, Cost]]:
    """The exact front, or the best that is known of it."""
    n = len(pricer.model.graph)
    if n <= EXACT:
        return exact_front(pricer)
    trees = {MJOIN, min_state(pricer), least_cpu_tree(pricer)}
    for start in list(trees):
        views = start
        while views:
            views = min((views - {v} for v in views), key=lambda w: pricer.tree(w).cpu)
            trees.add(views)
    return dominating((v, pricer.tree(v)) for v in trees)


def drawn_budget(rng: np.random.Generator, graph: StreamGraph) -> Budgeted:
    """Two of three budgets at a plan of the front, half of those at a jtree that alone keeps them; one below all plans."""
    pricer = Pricer(CostModel(graph))
    front, n = reference_front(pricer), len(graph)
    mjoin = pricer.tree(MJOIN)
    binary = [c for v, c in front if kind_of(v, n) == "bjtree"] or [pricer.tree(min_state(pricer))]
    draw = rng.random()
    if draw < 0.35:
        pure = (mjoin, *binary)
        jtrees = [c for v, c in front if kind_of(v, n) == "jtree"]
        only = [c for c in jtrees if not any(p.within(c.cpu, c.memory) for p in pure)]
        if only:
            cost = only[int(rng.integers(0, len(only)))]
            return Budgeted(graph, cost.cpu * 1.001, cost.memory * 1.001, True, True)
    if draw < 0.7:
        cost = front[int(rng.integers(0, len(front)))][1]
        return Budgeted(graph, cost.cpu * rng.uniform(1.0, 1.5), cost.memory * rng.uniform(1.0, 1.5), True, False)
    cost = front[int(rng.integers(0, len(front)))][1]
    cpu, memory = cost.cpu * rng.uniform(0.5, 1.0), cost.memory * rng.uniform(0.5, 1.0)
    known = bool(qualified(front, cpu, memory)) if n <= EXACT else None
    return Budgeted(graph, cpu, memory, known, False)


def paper_budget(graph: StreamGraph) -> Budgeted:
    """One second of CPU per second. The paper names no memory for this study: that of its sets 1 and 2 is taken."""
    cpu, memory = 1.0, 300e6 / ROW_BYTES
    known = bool(qualified(reference_front(Pricer(CostModel(graph))), cpu, memory)) if len(graph) <= EXACT else None
    return Budgeted(graph, cpu, memory, known, False)


def study(settings: int, sizes: range) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A line for each n and kind of budget, and every qualified plan found."""
    rows: list[dict[str, Any]] = []
    points: list[dict[str, Any]] = []
    for kind in ("drawn", "paper"):
        for n in sizes:
            rng = np.random.default_rng(1000 * n + (kind == "paper"))
            found = dict.fromkeys(ALGORITHMS, 0)
            times: dict[str, list[float]] = {name: [] for name in ALGORITHMS}
            exist = only = 0
            for _ in range(settings):
                graph = random_setting(rng, n)
                case = drawn_budget(rng, graph) if kind == "drawn" else paper_budget(graph)
                hits = {}
                for name, (exact, algorithm) in ALGORITHMS.items():
                    pricer = Pricer(CostModel(graph), exact=exact)
                    began = perf_counter()
                    views = algorithm(pricer, case.cpu, case.memory)
                    times[name].append(perf_counter() - began)
                    cost = pricer.tree(views)
                    hits[name] = cost.within(case.cpu, case.memory)
                    if hits[name] and n in (3, 5, 10):
                        points.append({"budget": kind, "n": n, "algorithm": name, "cpu": cost.cpu, "memory": cost.memory})
                exists = case.exists if case.exists is not None else any(hits.values())
                exist += exists
                only += case.only_jtree
                for name, hit in hits.items():
                    found[name] += hit
            row: dict[str, Any] = {"budget": kind, "n": n, "settings": settings}
            row |= {"qualified exists": exist, "only jtree": only}
            for name in ALGORITHMS:
                row[f"{name} %"] = 100.0 * found[name] / exist if exist else None
                row[f"{name} ms"] = float(np.median(times[name])) * 1e3
            rows.append(row)
            print(report.table([row]).splitlines()[-1], flush=True)
    return rows, points


def exact_times() -> list[dict[str, Any]]:
    """How long the exact front takes: twenty random graphs for each n, with and without cycles."""
    rows = []
    for n in (6, 8, 10):
        times, sizes = [], []
        for seed in range(20):
            pricer = Pricer(CostModel(random_setting(np.random.default_rng(seed), n)))
            began = perf_counter()
            sizes.append(len(exact_front(pricer)))
            times.append(perf_counter() - began)
        rows.append({
            "n": n, "graphs": len(times), "median s": float(np.median(times)), "worst s": max(times),
            "plans on the front": float(np.median(sizes)),
        })  # fmt: skip
    return rows


# -- experiment sets -------------------------------------------------------------------------------------------------

ROW_BYTES = 1_000.0
"""The paper gives memory in MB and state in rows, and not how large a row is: this is assumed."""

SETS: dict[int, dict[str, Any]] = {
    1: {"M": 300, "rates": (20, 20, 20), "sel": (0.05, 0.5), "W": 5.0, "verdict": "both"},
    2: {"M": 300, "rates": (20, 20, 50), "sel": (0.02, 0.5), "W": 15.0, "verdict": "only the tree"},
    3: {"M": 30, "rates": (10, 10, 10, 10), "sel": (0.1, 0.15, 0.1), "W": 15.0, "verdict": "only the mjoin"},
    4: {"M": 30, "rates": (20, 20, 20, 20), "sel": (0.02, 0.2, 0.05), "W": 50.0, "verdict": "only a jtree"},
}


def set_graph(rates: tuple[float, ...], selectivities: tuple[float, ...], window_s: float) -> StreamGraph:
    names = NAMES[: len(rates)]
    joins = {(names[i], names[i + 1]): s for i, s in enumerate(selectivities)}
    return edges([stream(n, float(r), window_s, ROW_BYTES) for n, r in zip(names, rates, strict=True)], joins)


def verdict_of(graph: StreamGraph, cpu: float, memory_mb: float) -> tuple[str, dict[str, Cost]]:
    """Which kinds of plans are qualified, and what the best of each kind costs."""
    units = type(PAPER)(PAPER.insert, PAPER.delete, PAPER.join, view_row_bytes=ROW_BYTES)
    pricer, n = Pricer(CostModel(graph, units)), len(graph)
    memory = memory_mb * 1e6
    front = exact_front(pricer)
    mjoin, tree = pricer.tree(MJOIN), pricer.tree(min_state(pricer))
    jtrees = [c for v, c in front if kind_of(v, n) == "jtree"]
    ok_mjoin, ok_tree = mjoin.within(cpu, memory), tree.within(cpu, memory)
    ok_jtree = any(c.within(cpu, memory) for c in jtrees)
    verdict = "both" if ok_mjoin and ok_tree else "only the tree" if ok_tree else "only the mjoin" if ok_mjoin else (
        "only a jtree" if ok_jtree else "none")  # fmt: skip
    best = min(jtrees, key=lambda c: max(c.cpu / cpu, c.memory / memory), default=mjoin)
    return verdict, {"mjoin": mjoin, "bjtree": tree, "jtree": best}


def nearest(number: int) -> dict[str, Any] | None:
    """The parameters with the published verdict that are nearest to the published ones: rates, selectivities, window and
    memory are scaled by factors, and the sum of the squares of their logarithms is least among many tried."""
    given = SETS[number]
    rng = np.random.default_rng(number)
    n, joins = len(given["rates"]), len(given["sel"])
    best: tuple[float, dict[str, Any]] | None = None
    spread = 1.0
    for trial in range(6000):
        centre = best[1]["logs"] if best is not None and trial % 2 else np.zeros(n + joins + 2)
        logs = centre + rng.normal(0, spread if best is None else 0.25, n + joins + 2) * (rng.random(n + joins + 2) < 0.5)
        distance = float((logs**2).sum())
        if best is not None and distance >= best[0]:
            continue
        factors = np.exp(logs)
        rates = tuple(float(r * f) for r, f in zip(given["rates"], factors[:n], strict=True))
        sel = tuple(float(min(1.0, s * f)) for s, f in zip(given["sel"], factors[n : n + joins], strict=True))
        window, memory = float(given["W"] * factors[-2]), float(given["M"] * factors[-1])
        verdict, costs = verdict_of(set_graph(rates, sel, window), 1.0, memory)
        if verdict == given["verdict"]:
            best = (distance, {"rates": rates, "sel": sel, "W": window, "M": memory, "logs": logs, "costs": costs})
    return None if best is None else {**best[1], "distance": best[0] ** 0.5}


def sets_table() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number, given in SETS.items():
        verdict, costs = verdict_of(set_graph(given["rates"], given["sel"], given["W"]), 1.0, given["M"])
        shown: list[tuple[str, dict[str, Any], str, dict[str, Cost]]] = [("published", given, verdict, costs)]
        if verdict != given["verdict"]:
            near = nearest(number)
            if near is not None:
                shown.append(("nearest", near, given["verdict"], near["costs"]))
        for which, values, found, prices in shown:
            rows.append({
                "set": number, "parameters": which, "M MB": float(values["M"]), "W s": float(values["W"]),
                "rates": " ".join(f"{r:.3g}" for r in values["rates"]),
                "selectivities": " ".join(f"{s:.3g}" for s in values["sel"]),
                **{f"{kind} {what}": getattr(cost, attribute) * scale for kind, cost in prices.items()
                   for what, attribute, scale in (("CPU", "cpu", 1.0), ("MB", "memory", 1e-6))},
                "verdict": found, "published verdict": given["verdict"],
            })  # fmt: skip
    return rows


def draw(rows: list[dict[str, Any]], points: list[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(15, 8))
    drawn = [r for r in rows if r["budget"] == "drawn"]
    for name in ALGORITHMS:
        axes[0][0].plot([r["n"] for r in drawn], [r[f"{name} %"] for r in drawn], marker="o", label=name)
        axes[0][1].plot([r["n"] for r in drawn], [r[f"{name} ms"] for r in drawn], marker="o", label=name)
    axes[0][0].set(title="qualified plans found, % (fig. 13b, 8.10)", xlabel="streams", ylim=(0, 105))
    axes[0][1].set(title="optimisation time, ms (fig. 13a, 8.11)", xlabel="streams", yscale="log")
    axes[0][2].bar([r["n"] for r in drawn], [r["qualified exists"] for r in drawn], label="exists")
    axes[0][2].bar([r["n"] for r in drawn], [r["only jtree"] for r in drawn], label="only a jtree")
    axes[0][2].set(title="settings with a qualified plan (fig. 13c)", xlabel="streams")
    for place, n in enumerate((3, 5, 10)):
        for name in ALGORITHMS:
            mine = [p for p in points if p["n"] == n and p["algorithm"] == name and p["budget"] == "drawn"]
            axes[1][place].scatter([p["memory"] for p in mine], [p["cpu"] for p in mine], s=12, label=name)
        axes[1][place].set(title=f"qualified plans, n = {n} (fig. 14, 8.13-8.15)", xlabel="rows in state", ylabel="CPU")
        axes[1][place].set(xscale="log", yscale="log")
    for line in axes:
        for axis in line:
            axis.legend(fontsize=7)
    figure.tight_layout()
    path = report.OUT / "qualified_plans.png"
    report.OUT.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110)
    print(f"drawn to {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=int, default=100, help="random settings for each n")
    parser.add_argument("--most", type=int, default=20, help="streams at most")
    given = parser.parse_args()
    sets = sets_table()
    print(report.table(sets))
    warm = Pricer(CostModel(random_setting(np.random.default_rng(1), 4)))
    search(warm, 0.0, 0.0)
    exact_front(warm)
    exact = exact_times()
    print(report.table(exact))
    rows, points = study(given.settings, range(3, given.most + 1))
    print(report.table(rows))
    draw(rows, points)
    print(f"written to {report.write('qualified_plans', rows)}")
    print(f"written to {report.write('exact_front', exact)}")
    print(f"written to {report.write('experiment_sets', sets)}")


if __name__ == "__main__":
    main()
