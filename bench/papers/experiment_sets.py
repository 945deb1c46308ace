"""Experiment sets 1 to 4 on the engine (DKE 2009, table 2; dissertation 8.1): `python -m bench.papers.experiment_sets`.

Each set runs with the published parameters, and with the nearest ones that give the published verdict where those do not
(`bench.papers.qualified_plans`). Plans: the best mjoin, the binary tree of min-state, and the jtree that needs least of the
scarcer resource. Rates are multiplied and selectivities divided by a factor, so that a row finds as many partners as in the
paper and the engine has something to do; rows, memory and budget grow by the same factor.

The budgets are real: the CPU that each batch took on this machine is set beside a budget that is to the predicted CPU of the
mjoin, with calibrated costs, as the paper's second is to its CPU under the paper's costs; likewise for memory. A batch is
done when the CPU for it, and for all before it, was available. A plan whose state outgrows the memory ends there. Over event
time: results so far, rows in state, and memory.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.cost.facts import Given
from anabranch.cost.model import CostModel, UnitCosts
from anabranch.drive.calibrate import calibrate
from anabranch.drive.local import LocalRun
from anabranch.optimize.dominating import strain
from anabranch.optimize.exact import exact_front
from anabranch.optimize.min_state import min_state
from anabranch.optimize.trees import MJOIN, Pricer
from anabranch.optimize.two_layer import kind_of
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Plan
from anabranch.sql import parse_script
from anabranch.storage.filesystem import LocalFilesystem
from bench import report
from bench.papers.qualified_plans import NAMES, ROW_BYTES, SETS, nearest, set_graph, verdict_of

MOST_SCALE = 100
MOST_RESULTS = 30e6
"""Rates are multiplied by as much as leaves so many results in a run, by the model; and a run ends at ten times as many."""
BATCHES_PER_WINDOW = 10
WINDOWS = 2.5
"""How long each run lasts."""


def query_of(n: int, window_s: float) -> JoinGraph:
    names = [name.lower() for name in NAMES[:n]]
    streams = "".join(f"CREATE STREAM {s} (k BIGINT, l BIGINT, v DOUBLE, ts TIMESTAMP) TIME ts;\n" for s in names)
    where = " AND ".join(f"{names[i]}.l = {names[i + 1]}.k" for i in range(n - 1))
    select = ", ".join(f"{s}.v AS v{s}" for s in names)
    sql = f"SELECT {select} FROM {', '.join(names)} WHERE {where} WINDOW {round(window_s * 1e6)} MICROSECONDS"
    return JoinGraph(parse_script(f"{streams} CREATE QUERY q AS {sql}").queries[0].query)


def scale_of(values: dict[str, Any]) -> float:
    """By how much rates are multiplied and selectivities divided."""
    graph = set_graph(values["rates"], values["sel"], values["W"])
    results = graph.rate(graph.everything) * values["W"] * WINDOWS
    return float(min(MOST_SCALE, max(1.0, MOST_RESULTS / results)))


def run(
    query: JoinGraph, plan: Plan, values: dict[str, Any], scale: float, cpu_budget: float, memory: float
) -> list[dict[str, Any]]:
    """One line per batch."""
    rng = np.random.default_rng(11)
    span_s = values["W"] / BATCHES_PER_WINDOW
    rates = [r * scale for r in values["rates"]]
    domains = [max(1, round(scale / s)) for s in values["sel"]]
    done_s, results, lines = 0.0, 0, []
    with tempfile.TemporaryDirectory() as folder:
        engine = LocalRun(query.query, LocalFilesystem(folder), plan)
        for number in range(round(BATCHES_PER_WINDOW * WINDOWS)):
            rows = {}
            for i, (alias, rate) in enumerate(zip(query.query.aliases, rates, strict=True)):
                n = int(rng.poisson(rate * span_s))
                times = round(number * span_s * 1e6) + np.sort(rng.integers(0, max(1, round(span_s * 1e6)), n))
                rows[alias] = pa.table({
                    "k": rng.integers(0, domains[i - 1] if i else 1, n),
                    "l": rng.integers(0, domains[i] if i < len(domains) else 1, n), "v": rng.random(n),
                    "ts": pa.array(times, pa.timestamp("us")),
                })  # fmt: skip
            began = process_time()
            step = engine.step(number, rows)
            spent = process_time() - began
            now_s = (number + 1) * span_s
            done_s = max(done_s, now_s) + spent / cpu_budget
            counted = step.statistics
            state_bytes = sum(s.state_bytes for s in counted.sources.values()) + sum(s.bytes for s in counted.states)
            results += counted.results
            kept = sum(s.state_rows for s in counted.sources.values())
            kept += sum(s.rows for s in counted.states if s.kind != "index")
            lines.append({"time s": now_s, "results": results, "done s": done_s, "rows": kept, "MB": state_bytes / 1e6})
            if state_bytes > memory or results > 10 * MOST_RESULTS:
                break
    return lines


def plans_of(values: dict[str, Any], query: JoinGraph, units: UnitCosts, cpu: float, memory: float) -> dict[str, Plan]:
    """The plans of the paper's model over our names."""
    graph = set_graph(values["rates"], values["sel"], values["W"])
    pricer, n = Pricer(CostModel(graph, units)), len(graph)
    jtrees = [(v, c) for v, c in exact_front(pricer) if kind_of(v, n) == "jtree"]
    chosen = {"mjoin": MJOIN, "bjtree": min_state(pricer)}
    if jtrees:
        chosen["jtree"] = min(jtrees, key=lambda p: strain(p[1], cpu, memory))[0]
    from anabranch.plan.jtree import Join, Leaf

    def lowered(plan: Plan) -> Plan:
        if isinstance(plan, Leaf):
            return Leaf(plan.alias.lower())
        return Join(tuple(lowered(c) for c in plan.inputs), plan.orders)

    return {kind: lowered(pricer.plan(views)) for kind, views in chosen.items()}


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    pa.set_cpu_count(1)
    units = calibrate()
    paper = UnitCosts(2.0e-7, 2.0e-7, 2.2e-6, view_row_bytes=ROW_BYTES)
    rows: list[dict[str, Any]] = []
    series: list[tuple[str, str, list[dict[str, Any]]]] = []
    for number, given in SETS.items():
        verdict, _ = verdict_of(set_graph(given["rates"], given["sel"], given["W"]), 1.0, given["M"])
        variants = [("published", given)]
        if verdict != given["verdict"] and (near := nearest(number)) is not None:
            variants.append(("nearest", near))
        for which, values in variants:
            found, costs = verdict_of(set_graph(values["rates"], values["sel"], values["W"]), 1.0, values["M"])
            query, scale = query_of(len(values["rates"]), values["W"]), scale_of(values)
            facts = Given(
                {a: r * scale for a, r in zip(query.query.aliases, values["rates"], strict=True)}, {},
                {f"{a}.l": scale / s for a, s in zip(query.query.aliases, values["sel"], strict=False)},
            )  # fmt: skip
            span_s = values["W"] / BATCHES_PER_WINDOW
            spans = {"batch_s": span_s, "slack_s": 2 * span_s, "view_slack_s": 1.5 * span_s}
            ours = CostModel(facts.graph(query), replace(units, **spans))
            plans = plans_of(values, query, paper, 1.0, values["M"] * 1e6)
            predicted = {kind: ours.cost(plan) for kind, plan in plans.items()}
            cpu_budget = 1.0 / costs["mjoin"].cpu * predicted["mjoin"].cpu
            memory = values["M"] * 1e6 / costs["mjoin"].memory * predicted["mjoin"].memory
            for kind, plan in plans.items():
                lines = run(query, plan, values, scale, cpu_budget, memory)
                series.append((f"set {number}, {which}", kind, lines))
                last = lines[-1]
                whole = len(lines) == round(BATCHES_PER_WINDOW * WINDOWS)
                why = "out of memory" if last["MB"] * 1e6 > memory else "stopped"
                ended = "at the end" if whole else f"{why} at {last['time s']:.0f} s"
                rows.append({
                    "set": number, "parameters": which, "scale": scale, "plan": kind, "verdict (model)": found,
                    "CPU budget": cpu_budget,
                    "memory budget MB": memory / 1e6, "ended": ended,
                    "behind s": last["done s"] - last["time s"], "results": last["results"], "rows in state": last["rows"],
                    "state MB": last["MB"],
                })  # fmt: skip
                print(report.table(rows[-1:]).splitlines()[-1], flush=True)
    print(report.table(rows))
    draw(series)
    print(f"written to {report.write('experiment_sets_run', rows)}")


def draw(series: list[tuple[str, str, list[dict[str, Any]]]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(name for name, _, _ in series))
    figure, axes = pyplot.subplots(len(names), 3, figsize=(14, 3 * len(names)), squeeze=False)
    for line, name in zip(axes, names, strict=True):
        for shown, kind, points in series:
            if shown == name:
                line[0].plot([p["done s"] for p in points], [p["results"] for p in points], label=kind)
                line[1].plot([p["time s"] for p in points], [p["rows"] for p in points], label=kind)
                line[2].plot([p["time s"] for p in points], [p["MB"] for p in points], label=kind)
        for axis, what in zip(line, ("results so far", "rows in state", "state MB"), strict=True):
            axis.set(title=f"{name}: {what}", xlabel="time s")
            axis.legend(fontsize=7)
    figure.tight_layout()
    report.OUT.mkdir(exist_ok=True)
    figure.savefig(report.OUT / "experiment_sets.png", dpi=100)
    print(f"drawn to {report.OUT / 'experiment_sets.png'}")


if __name__ == "__main__":
    main()
