"""Is the cost model right, and are chosen plans good? `python -m bench.plan_quality [--queries 200] [--model 30]`.

*Model*: random queries of three and four streams, their plans (all shapes; probe orders all, or a sample), each run on the
engine: the rank correlation of predicted and measured CPU for each query, and how far predicted memory is off.

*Choice*: random queries of three to eight streams with skewed rates and selectivities: CPU of the chosen plan beside the
best measured one (of all shapes for n up to 4, above of the Pareto front and random plans), and beside the plan as written
(binary, left-deep: what Spark would run). One process, one core.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.cost.model import CostModel, UnitCosts
from anabranch.drive.calibrate import calibrate
from anabranch.optimize.planner import Bounds, decide
from anabranch.plan.jtree import Plan, left_deep
from bench import report
from bench.random_queries import RandomQuery, shapes, with_orders

ROUNDS = 3
LEADING = 3
FAR_OFF = 20.0
"""For the model, plans are run up to so many times the CPU of the best: beyond that none is hard to rank."""
HOPELESS = 6.0
"""Plans that by prediction need so many times the CPU of the chosen one are not run: some would take minutes a batch."""


def rank_correlation(left: list[float], right: list[float]) -> float:
    """Spearman's rank correlation.

    >>> rank_correlation([1.0, 2.0, 3.0], [10.0, 20.0, 15.0])
    0.5
    """

    def ranks(values: list[float]) -> npt.NDArray[np.float64]:
        return np.argsort(np.argsort(values)).astype(np.float64)

    return float(round(np.corrcoef(ranks(left), ranks(right))[0, 1], 12))


def model_of(query: RandomQuery, units: UnitCosts) -> CostModel:
    return CostModel(query.facts.graph(query.graph), units)


def check_model(first: int, count: int, units: UnitCosts, most_plans: int) -> list[dict[str, Any]]:
    rows = []
    for number in range(first, first + count):
        query = RandomQuery(1000 + number, 3 + number % 2)
        rng = np.random.default_rng(number)
        trees = shapes(query.graph, query.graph.query.aliases)
        plans = [p for tree in trees for p in with_orders(tree, query.graph, rng, max(2, most_plans // len(trees)))]
        model = model_of(query, units)
        least = min(model.cost(p).cpu for p in plans)
        plans = [p for p in plans if model.cost(p).cpu <= FAR_OFF * least]
        predicted = [model.cost(p) for p in plans]
        by_plan = query.measure_all(plans, ROUNDS)
        measured = [by_plan[p] for p in plans]
        off = [m.memory / f["memory"] - 1 for m, f in zip(predicted, measured, strict=True)]
        cpus = [f["cpu"] for f in measured]
        rows.append({
            "part": "model", "query": number, "n": query.n, "plans": len(plans),
            "rank correlation": rank_correlation([c.cpu for c in predicted], cpus),
            "CPU predicted / measured": statistics.median(c.cpu / f for c, f in zip(predicted, cpus, strict=True)),
            "memory off %": 100 * max(off, key=abs), "spread of CPU": max(cpus) / min(cpus),
        })  # fmt: skip
        print(report.table(rows[-1:]).splitlines()[-1], flush=True)
    return rows


def check_choice(count: int, units: UnitCosts, randoms: int) -> list[dict[str, Any]]:
    rows = []
    for number in range(count):
        query = RandomQuery(number, 3 + number % 6)
        rng = np.random.default_rng(number)
        free = decide(query.graph, query.facts, units)
        # A budget between the least memory and that of the fastest plan, so that both bounds matter.
        least, most = free.front[0][1], free.front[-1][1]
        bounds = Bounds(memory=least.memory + (most.memory - least.memory) * float(rng.uniform(0.2, 1.0)) + 1)
        decision = decide(query.graph, query.facts, units, bounds)
        if query.n <= 4:
            candidates = shapes(query.graph, query.graph.query.aliases)
        else:
            places = np.unique(np.linspace(0, len(decision.front) - 1, 8).astype(int))
            front = [decision.front[i][0] for i in places]
            binary = left_deep(query.graph)
            candidates = [*front, *with_orders(binary, query.graph, rng, 2), *_random_trees(query, rng, randoms)]
        price = decision.model.cost
        hopeless = HOPELESS * decision.cost.cpu
        within = [p for p in dict.fromkeys(candidates) if price(p).within(min(bounds.cpu, hopeless), bounds.memory)]
        measured = query.measure_all([*within, decision.plan], 1)
        # The least of many noisy figures is too low: the best few and the chosen one are measured again.
        leading = sorted(measured, key=lambda p: measured[p]["cpu"])[:LEADING]
        as_written = left_deep(query.graph)
        is_measured = price(as_written).cpu <= hopeless
        again = query.measure_all([*leading, decision.plan, *([as_written] if is_measured else [])], ROUNDS)
        chosen = again[decision.plan]
        if is_measured:
            written = again[as_written]
        else:
            times = chosen["cpu"] / decision.cost.cpu
            written = {"cpu": price(as_written).cpu * times, "memory": price(as_written).memory}
        best = min(again[p]["cpu"] for p in [*leading, decision.plan])
        rows.append({
            "part": "choice", "query": number, "n": query.n, "plans": len(measured), "qualified": str(decision.is_qualified),
            "as written": "measured" if is_measured else "predicted",
            "chosen / best": chosen["cpu"] / best, "memory / budget": chosen["memory"] / bounds.memory,
            "CPU / as written": chosen["cpu"] / written["cpu"], "memory / as written": chosen["memory"] / written["memory"],
        })  # fmt: skip
        print(report.table(rows[-1:]).splitlines()[-1], flush=True)
    return rows


def _random_trees(query: RandomQuery, rng: np.random.Generator, count: int) -> list[Plan]:
    """Trees made by joining random neighbours, two or three at a time."""
    from anabranch.plan.jtree import Leaf, join

    found: list[Plan] = []
    for _ in range(count):
        parts: list[Plan] = [Leaf(a) for a in query.graph.query.aliases]
        while len(parts) > 1:
            start = parts[int(rng.integers(0, len(parts)))]
            near = [p for p in parts if p is not start and query.graph.connected(start.aliases, p.aliases)]
            size = min(len(near), int(rng.integers(1, 4)))
            chosen = [start, *(near[int(i)] for i in rng.choice(len(near), size, replace=False))]
            parts = [p for p in parts if not any(p is c for c in chosen)] + [join(tuple(chosen), query.graph)]
        found.append(parts[0])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=200, help="random queries for the choice")
    parser.add_argument("--model", type=int, default=30, help="random queries for the model")
    parser.add_argument("--first", type=int, default=0, help="the first of these, to go on where a run ended")
    parser.add_argument("--plans", type=int, default=40, help="plans of a query, at most, for the model")
    parser.add_argument("--randoms", type=int, default=30, help="random plans of a query, for the choice")
    given = parser.parse_args()
    pa.set_cpu_count(1)
    calibrate()
    units = calibrate()
    model = check_model(given.first, given.model, units, given.plans)
    choice = check_choice(given.queries, units, given.randoms)
    if model:
        print(report.table(model))
        print(f"rank correlation of CPU: median {statistics.median(r['rank correlation'] for r in model):.2f}")
        print(f"memory off by at most {max(abs(r['memory off %']) for r in model):.1f} %, median of the worst "
              f"{statistics.median(abs(r['memory off %']) for r in model):.1f} %")  # fmt: skip
    if choice:
        print(report.table(choice))
        print(f"CPU of the chosen plan: {statistics.median(r['chosen / best'] for r in choice):.2f} times the best, median; "
              f"{statistics.median(r['CPU / as written'] for r in choice):.2f} times the plan as written, "
              f"memory {statistics.median(r['memory / as written'] for r in choice):.2f} times")  # fmt: skip
        print(f"memory over its budget: at most {max(r['memory / budget'] for r in choice):.2f} times")
    print(f"written to {report.write('plan_quality', [*model, *choice])}")


if __name__ == "__main__":
    main()
