"""Runs that may lose results: which limits hold in which batch, and queries with freshness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa

from anabranch.control.records import Limit
from anabranch.drive.limiting import Limiting
from anabranch.drive.local import LocalRun
from anabranch.plan.overload import Overload, Policy
from anabranch.plan.query import Query, Stream
from anabranch.storage.filesystem import Filesystem
from tests.support.scenarios import Scenario

SHARES = (0.0, 0.1, 0.5, 0.9, 1.0)


def may_lose(salts: int = 0, **settings: Any) -> Limiting:
    """Limits that tests set; the salts of batches count from one on."""
    return Limiting(Overload(Policy.ADAPT_JOINS, **settings), draw_salt=count(salts).__next__)


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


def shuffled(rows: Mapping[str, pa.Table], rng: np.random.Generator) -> dict[str, pa.Table]:
    return {name: table.take(pa.array(rng.permutation(table.num_rows), pa.int64())) for name, table in rows.items()}
