"""Runs that may lose results: which limits hold in which batch, and queries with freshness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.control.records import Limit
from anabranch.drive.limiting import Limiting
from anabranch.drive.local import LocalRun
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import left_deep, show
from anabranch.plan.overload import Overload, Policy
from anabranch.plan.query import Query, Stream
from anabranch.sql import parse_script
from anabranch.storage.filesystem import Filesystem
from tests.support.scenarios import Scenario, random_plan

SHARES = (0.0, 0.1, 0.5, 0.9, 1.0)


def may_lose(salts: int = 0, **settings: Any) -> Limiting:
    """Limits and shedding that tests set; the salts of batches count from one on."""
    return Limiting(Overload(Policy.ADAPT_JOINS, may_shed=True, **settings), draw_salt=count(salts).__next__)


def losing(
    query: Query, scenario: Scenario, disk: Filesystem, plan: int = 0, slots: int = 1, salts: int = 0, **settings: Any
) -> LocalRun:
    """A run of a query that may lose results."""
    shown, tables = scenario.plans[plan % len(scenario.plans)], scenario.arrow_tables
    return LocalRun(query, disk, shown, tables, slots=slots, limiting=may_lose(salts), **settings)


def limit(run: LocalRun, limits: Mapping[str, Limit]) -> None:
    """What holds from the next batch on."""
    run.driver.limiting.limits = {run.name: dict(limits)} if limits else {}


def with_freshness(query: Query, rng: np.random.Generator) -> Query:
    """A query in which some inputs are to be fresh; by less than their window, as much, or more."""
    inputs = []
    for i in query.inputs:
        if isinstance(i.source, Stream) and i.window.kind == "range" and rng.random() < 0.6:
            window_us = i.window.length_us
            i = replace(i, freshness_us=int(rng.choice([max(1, window_us // 3), window_us, 2 * window_us])))
        inputs.append(i)
    return replace(query, inputs=tuple(inputs))


def random_limits(query: Query, rng: np.random.Generator, slots: int) -> dict[str, Limit]:
    """None at all, in one batch of three; else of some inputs shares, and of others rows in some slots."""
    found: dict[str, Limit] = {}
    if rng.random() < 0.33:
        return found
    for alias in query.aliases:
        kind = rng.random()
        if kind < 0.4:
            found[alias] = Limit(share=float(rng.choice(SHARES)))
        elif kind < 0.8:
            found[alias] = Limit(rows={slot: int(rng.integers(0, 6)) for slot in range(slots) if rng.random() < 0.8})
    return found


def larger(limits: Mapping[str, Limit], rng: np.random.Generator) -> dict[str, Limit]:
    """Limits that allow as much, or more."""
    found: dict[str, Limit] = {}
    for alias, each in limits.items():
        if each.share is not None:
            found[alias] = Limit(share=float(each.share + (1 - each.share) * rng.choice([0, 0.3, 1])))
        else:
            found[alias] = Limit(rows={slot: rows + int(rng.integers(0, 3)) for slot, rows in each.rows.items()})
    return found


def random_shares(names: Sequence[str], rng: np.random.Generator) -> dict[str, float]:
    """The share of the rows of each stream that is kept; of some, all."""
    return {name: float(rng.choice([0.3, 0.6, 0.9])) for name in names if rng.random() < 0.6}


def fanned(seed: int, inputs: int, batches: int = 4) -> Scenario:
    """Batches of streams in which a few rows have many partners and many have few: joined as any tree, some of them
    with themselves; by every row, or by keys alone, so that rows of a key are equal."""
    rng = np.random.default_rng(seed)
    names = "abcd"[:inputs]
    source = {s: s for s in names} | ({names[-1]: "a"} if rng.random() < 0.25 else {})
    create = "".join(f"CREATE STREAM {s} (k BIGINT, l BIGINT, x BIGINT, ts TIMESTAMP) TIME ts LATENESS 1 SECOND;"
                     for s in sorted({*source.values()}))  # fmt: skip
    windows = ", ".join(f"{source[s]} [RANGE {rng.integers(2, 7)} SECONDS] AS {s}" for s in names)
    ends = [(names[rng.integers(place)], names[place], "kl"[rng.integers(2)]) for place in range(1, inputs)]
    where = " AND ".join(f"{x}.{key} = {y}.{key}" for x, y, key in ends)
    what = "x" if rng.random() < 0.7 else "k"
    select = ", ".join(f"{s}.{what} AS {what}{s}" for s in names)
    script = f"{create} CREATE QUERY q AS SELECT {select} FROM {windows} WHERE {where}"
    graph = JoinGraph(parse_script(script).queries[0].query)
    plans = (left_deep(graph), *(random_plan(rng, graph) for _ in range(2)))
    count, domain = {2: (30, 12), 3: (16, 8), 4: (8, 5)}[inputs]

    def rows(batch: int) -> list[tuple[int, ...]]:
        keys = np.minimum(rng.zipf(1.6, (2, count)), domain) if rng.random() < 0.7 else rng.integers(1, domain, (2, count))
        times = batch * 1_000_000 + rng.integers(-900_000, 1_000_000, count)
        times = times if what == "x" else times // 400_000 * 400_000
        return [(int(k), int(v), batch * count + n, int(t)) for n, (k, v, t) in enumerate(zip(*keys, times, strict=True))]

    cut = tuple({s: rows(n) for s in sorted({*source.values()})} for n in range(batches))
    return Scenario(script, tuple(show(p, graph) for p in plans), cut)


def shuffled(rows: Mapping[str, pa.Table], rng: np.random.Generator) -> dict[str, pa.Table]:
    return {name: table.take(pa.array(rng.permutation(table.num_rows), pa.int64())) for name, table in rows.items()}
