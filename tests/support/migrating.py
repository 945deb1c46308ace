"""What migrations are tested with: scenarios whose views have rows at any time, and selects that stand above joins."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from anabranch.control.records import Commit
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import left_deep, show
from anabranch.plan.query import Query
from anabranch.sql import parse_script
from tests.support.scenarios import Scenario, random_plan

TEXTS = np.array(["", "some", "other", "another", None], object)
PREDICATES = ("{s}.x < 7", "{s}.s LIKE '%o%'", "({s}.x <> 3 OR {s}.s IS NULL)")


def busy(seed: int, inputs: int, batches: int, predicates: Sequence[str] = (), lasting: bool = False) -> Scenario:
    """A chain whose rows have several partners each, so that every view has rows at any time: from left to right, and under
    three random trees. With `lasting` windows are so long that runs of several batches are merged; some have no end."""
    rng = np.random.default_rng(seed)
    names = "abcde"[:inputs]
    columns = "k BIGINT, l BIGINT, ts TIMESTAMP" + (", x BIGINT, s STRING" if predicates else "")
    create = "".join(f"CREATE STREAM {s} ({columns}) TIME ts LATENESS 1 SECOND;" for s in names)
    lengths = [f"RANGE {n} SECONDS" for n in ((30, 40, 50) if lasting else range(2, 7))] + ["UNBOUNDED"] * lasting
    windows = ", ".join(f"{s} [{lengths[rng.integers(len(lengths))]}]" for s in names)
    where = " AND ".join(f"{x}.{'kl'[i % 2]} = {y}.{'kl'[i % 2]}" for i, (x, y) in enumerate(pairwise(names)))
    where += " AND a.l = c.k" if lasting and inputs > 2 else ""
    where += "".join(f" AND {p.format(s=s)}" for s in names for p in predicates if rng.random() < 0.6)
    select = ", ".join(f"{s}.ts AS t{s}" for s in names)
    script = f"{create} CREATE QUERY q AS SELECT {select} FROM {windows} WHERE {where}"
    graph = JoinGraph(parse_script(script).queries[0].query)
    plans = (left_deep(graph), *(random_plan(rng, graph) for _ in range(3)))
    domain = {2: 4, 3: 5, 4: 8, 5: 12}[inputs] * (4 if lasting else 1)

    def rows(number: int) -> list[tuple[Any, ...]]:
        times = number * 1_000_000 + rng.integers(-900_000, 1_000_000, 4)
        found = [(int(k), int(v), int(t)) for k, v, t in zip(*rng.integers(0, domain, (2, 4)), times, strict=True)]
        return [(*row, int(rng.integers(9)), rng.choice(TEXTS)) for row in found] if predicates else found

    cut = tuple({s: rows(n) for s in names if rng.random() < 0.9} for n in range(batches))
    return Scenario(script, tuple(show(p, graph) for p in plans), cut)


def random_selects(query: Query, seed: int) -> dict[str, str]:
    """Some selects above some inputs."""
    rng, found = np.random.default_rng(seed), dict[str, str]()
    for i in query.inputs:
        others = [a for a in query.aliases if a != i.alias]
        for predicate in i.filters:
            if others and rng.random() < 0.6:
                found[str(predicate)] = " ".join([i.alias, *rng.permutation(others)[: rng.integers(1, len(others) + 1)]])
    return found


def a_select_that_moves() -> Scenario:
    """A predicate of a that half of its rows pass, fourteen batches long; to be above the join in batches 3 to 6."""
    create = "".join(f"CREATE STREAM {s} (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "ab")
    sql = "SELECT b.x FROM a [RANGE 3 SECONDS], b [RANGE 3 SECONDS] WHERE a.k = b.k AND a.x < 5"
    rng = np.random.default_rng(8)
    cut = tuple(
        {s: [(int(k), int(x), n * 1_000_000) for k, x in rng.integers(0, 10, (20, 2))] for s in "ab"} for n in range(14)
    )
    return Scenario(f"{create} CREATE QUERY q AS {sql}", ("(a b)",), cut)


def check_select_moves(scenario: Scenario, strategy: str, steps: Sequence[tuple[Commit, str]]) -> None:
    """Where the select stands above the join no row is dropped for it, by whoever; `steps` are commits, with the plans that
    they ran under."""
    commits = [commit for commit, _ in steps[:14]]
    stored = [commit.queries["q"].statistics.sources["a"].stored_rows for commit in commits]
    passing = [sum(x < 5 for _, x, _ in rows["a"]) for rows in scenario.batches]
    assert stored == [*passing[:3], *[20] * 4, *passing[7:]]
    down = {"moving-state": [], "parallel-track": ["(a b), (a.x < 5) above (a b) for old rows"] * 4}[strategy]
    plans = [*["(a b)"] * 3, *["(a b), (a.x < 5) above (a b)"] * 4, *down, *["(a b)"] * (7 - len(down))]
    assert [plan for _, plan in steps[:14]] == plans
