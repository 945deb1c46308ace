"""Random join queries with random streams, for benchmarks that compare plans on the engine."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from time import process_time
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.cost.facts import Given
from anabranch.drive.local import LocalRun
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Join, Leaf, Plan
from anabranch.sql import parse_script
from anabranch.storage.filesystem import LocalFilesystem

NAMES = "abcdefgh"
SECOND_US = 1_000_000
MEASURED = 6
"""Batches that are measured, after the windows are full."""
MOST_RESULTS = 200_000.0
"""Per second; queries with more are drawn again."""
LEAST_SKEW = 8.0
"""A row finds so many times more partners by one predicate than by another, or the query is drawn again."""


@dataclass(frozen=True)
class RandomQuery:
    """Streams of random rates joined along a random tree, with random windows (in batches of a second) and selectivities:
    both are skewed, so that plans differ."""

    seed: int
    n: int

    @cached_property
    def _drawn(self) -> tuple[list[int], list[int], list[tuple[int, int, int]]]:
        rng = np.random.default_rng(self.seed)
        while True:
            rates, windows, joins = self._draw(rng)
            rows = [rate * window for rate, window in zip(rates, windows, strict=True)]
            valid = float(np.prod(rows)) / float(np.prod([d for _, _, d in joins]))
            partners = [max(rows[i], rows[j]) / d for i, j, d in joins]
            if valid * sum(1 / w for w in windows) <= MOST_RESULTS and max(partners) >= LEAST_SKEW * min(partners):
                return rates, windows, joins

    def _draw(self, rng: np.random.Generator) -> tuple[list[int], list[int], list[tuple[int, int, int]]]:
        # Many streams make many rows in between: they are slower, and find fewer partners.
        most_rate, most_partners = (50_000, 40) if self.n < 5 else (8_000, 6)
        rates = [int(np.exp(rng.uniform(np.log(most_rate / 16), np.log(most_rate)))) for _ in range(self.n)]
        windows = [int(rng.integers(2, 6)) for _ in range(self.n)]
        joins = []
        for i in range(1, self.n):
            j = int(rng.integers(0, i))
            # A row finds between a tenth of a partner and so many in the larger window.
            rows = max(rates[i] * windows[i], rates[j] * windows[j])
            joins.append((j, i, max(2, int(rows / np.exp(rng.uniform(np.log(0.1), np.log(most_partners)))))))
        return rates, windows, joins

    @cached_property
    def graph(self) -> JoinGraph:
        _, windows, joins = self._drawn
        text = ""
        for i in range(self.n):
            keys = "".join(f"k{e} BIGINT, " for e, (a, b, _) in enumerate(joins) if i in (a, b))
            text += f"CREATE STREAM {NAMES[i]} ({keys}v DOUBLE, ts TIMESTAMP) TIME ts;\n"
        where = " AND ".join(f"{NAMES[a]}.k{e} = {NAMES[b]}.k{e}" for e, (a, b, _) in enumerate(joins))
        inputs = ", ".join(f"{NAMES[i]} [RANGE {windows[i]} SECONDS]" for i in range(self.n))
        select = ", ".join(f"{NAMES[i]}.v AS {NAMES[i]}v" for i in range(self.n))
        script = parse_script(f"{text} CREATE QUERY q AS SELECT {select} FROM {inputs} WHERE {where}")
        return JoinGraph(script.queries[0].query)

    @cached_property
    def facts(self) -> Given:
        rates, _, joins = self._drawn
        distinct = {f"{NAMES[i]}.k{e}": float(d) for e, (a, b, d) in enumerate(joins) for i in (a, b)}
        return Given({NAMES[i]: float(r) for i, r in enumerate(rates)}, {}, distinct)

    def batch(self, number: int) -> dict[str, pa.Table]:
        rates, _, joins = self._drawn
        rng = np.random.default_rng([self.seed, number])
        found = {}
        for i, rate in enumerate(rates):
            columns: dict[str, Any] = {
                f"k{e}": rng.integers(0, d, rate) for e, (a, b, d) in enumerate(joins) if i in (a, b)
            }
            columns["v"] = rng.random(rate)
            times = number * SECOND_US + np.sort(rng.integers(0, SECOND_US, rate))
            found[NAMES[i]] = pa.table({**columns, "ts": pa.array(times, pa.timestamp("us"))})
        return found

    @cached_property
    def _data(self) -> list[dict[str, pa.Table]]:
        return [self.batch(number) for number in range(max(self._drawn[1]) + 2 + MEASURED)]

    def measure(self, plan: Plan) -> dict[str, float]:
        """CPU seconds per second of event time under a plan, state bytes, and results, once windows are full.

        Of the CPU of the batches the lower quartile: other work on the machine only ever adds to it.
        """
        data, warm = self._data, len(self._data) - MEASURED
        with tempfile.TemporaryDirectory() as folder:
            run = LocalRun(self.graph.query, LocalFilesystem(folder), plan)
            spent, sizes, results = [], [], 0
            for number, rows in enumerate(data):
                began = process_time()
                step = run.step(number, rows)
                if number >= warm:
                    spent.append(process_time() - began)
                    s = step.statistics
                    sizes.append(sum(x.state_bytes for x in s.sources.values()) + sum(x.bytes for x in s.states))
                    results += s.results
        return {"cpu": float(np.quantile(spent, 0.25)), "memory": float(np.median(sizes)), "results": results / MEASURED}


    def measure_all(self, plans: Iterable[Plan], rounds: int) -> dict[Plan, dict[str, float]]:
        """Every plan in several rounds, of which the least CPU counts."""
        found: dict[Plan, dict[str, float]] = {}
        for _ in range(rounds):
            for plan in dict.fromkeys(plans):
                now = self.measure(plan)
                if plan not in found or now["cpu"] < found[plan]["cpu"]:
                    found[plan] = now
        return found


def shapes(graph: JoinGraph, aliases: tuple[str, ...]) -> list[Plan]:
    """Every tree over some inputs without cartesian products, with default probe orders."""
    from anabranch.plan.jtree import join

    if len(aliases) == 1:
        return [Leaf(aliases[0])]
    found: list[Plan] = []
    for parts in _partitions(aliases):
        if len(parts) < 2 or not all(_connected(graph, p) for p in parts):
            continue
        for children in itertools.product(*(shapes(graph, p) for p in parts)):
            found.append(join(tuple(children), graph))
    return found


def with_orders(plan: Plan, graph: JoinGraph, rng: np.random.Generator, most: int) -> list[Plan]:
    """The plan with all probe orders that make no cartesian product, or a sample of them."""
    found = [plan]
    if not isinstance(plan, Join):
        return found
    for _ in range(most * 3):
        shuffled = _shuffled(plan, graph, rng)
        if shuffled not in found:
            found.append(shuffled)
        if len(found) >= most:
            break
    return found


def _shuffled(plan: Plan, graph: JoinGraph, rng: np.random.Generator) -> Plan:
    if not isinstance(plan, Join):
        return plan
    inputs = tuple(_shuffled(child, graph, rng) for child in plan.inputs)
    orders = []
    for start in range(len(inputs)):
        bound, rest, order = inputs[start].aliases, [j for j in range(len(inputs)) if j != start], []
        while rest:
            near = [j for j in rest if graph.connected(bound, inputs[j].aliases)]
            chosen = int(rng.choice(near))
            rest.remove(chosen)
            order.append(chosen)
            bound |= inputs[chosen].aliases
        orders.append(tuple(order))
    return Join(inputs, tuple(orders))


def _partitions(items: tuple[str, ...]) -> list[list[tuple[str, ...]]]:
    if not items:
        return [[]]
    first, rest = items[0], items[1:]
    found = []
    for size in range(len(rest) + 1):
        for chosen in itertools.combinations(rest, size):
            left = tuple(x for x in rest if x not in chosen)
            found += [[(first, *chosen), *others] for others in _partitions(left)]
    return found


def _connected(graph: JoinGraph, aliases: tuple[str, ...]) -> bool:
    reached = {aliases[0]}
    while True:
        fresh = {a for a in aliases if a not in reached and graph.connected(reached, {a})}
        if not fresh:
            return len(reached) == len(aliases)
        reached |= fresh
