"""Scenarios that are always the same, for suites too slow for Hypothesis: a random one for each seed, and plain ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tests.support.scenarios import EDGES, ROWS, TOPOLOGIES, Scenario, Shape, build


def scenario_of(seed: int) -> Scenario:
    """A random scenario, always the same for a seed. Features take turns, so that a dozen scenarios have all of them."""
    rng = np.random.default_rng(seed)
    inputs = (2, 3, 2, 4, 3, 1, 3, 5)[seed % 8]
    topologies = [t for t in TOPOLOGIES if t != "disconnected" or inputs <= 3]
    kinds = [*EDGES, "mixed"]
    flag: Callable[[], bool] = lambda: bool(rng.integers(2))  # noqa: E731
    shape = Shape(
        inputs=inputs,
        topology=topologies[int(rng.integers(len(topologies)))],
        batches=int(rng.integers(2, 5)),
        rows=ROWS[inputs],
        keys=kinds[seed % len(kinds)],
        domain=int(rng.integers(2, 4)),
        plans=3,
        self_joins=seed % 3 == 0,
        tables=seed % 3 == 1,
        filters=flag(),
        residuals=flag(),
        nulls=seed % 4 != 3,
        skewed=flag(),
        disordered=seed % 4 != 0,
        late=flag(),
        uneven=flag(),
        wide=True,
        finite=False,
        tight=False,
        unit_us=int(rng.choice([1_000_000, 1, 1_000, 3_600_000_000])),
        base_us=int(rng.choice([0, 1_700_000_000_000_000, -(10**14)])),
    )
    # RESULT_TIME in WHERE is not SQL: Session takes SQL only.
    return replace(build(shape, int(rng.integers(2**32))), result_after_us=None)


def many_batches(count: int) -> Scenario:
    """Three streams, joined by different columns, whose rows are valid for two or three batches."""
    return Scenario(
        """
    CREATE STREAM a (id BIGINT, k BIGINT, ts TIMESTAMP) TIME ts LATENESS 1 SECOND;
    CREATE STREAM b (id BIGINT, k BIGINT, j STRING, ts TIMESTAMP) TIME ts;
    CREATE STREAM c (id BIGINT, j STRING, ts TIMESTAMP) TIME ts LATENESS 1 SECOND;
    CREATE QUERY q AS SELECT a.id AS a_id, b.id AS b_id, c.id AS c_id, RESULT_TIME AS at
    FROM a [RANGE 2 SECONDS], b [RANGE 3 SECONDS], c [RANGE 2 SECONDS] WHERE a.k = b.k AND b.j = c.j
    """,
        plans=("((a b) c)", "(a b c)"),
        batches=tuple(
            {
                "a": [(20 * n + i, (3 * i + n) % 7, n * 1_000_000 + i * 50_000) for i in range(20)],
                "b": [(20 * n + i, (5 * i + n) % 7, f"key {i % 3}", n * 1_000_000 + i * 40_000) for i in range(20)],
                "c": [(20 * n + i, f"key {i % 4}", n * 1_000_000 - i * 100_000) for i in range(20)],
            }
            for n in range(count)
        ),
    )


def groups_that_wait() -> Scenario:
    """Groups of a join: those at the last instants are final in the closing step alone, which is batch 3."""
    return Scenario(
        """
    CREATE STREAM a (k BIGINT, v BIGINT, ts TIMESTAMP) TIME ts;
    CREATE STREAM b (k BIGINT, ts TIMESTAMP) TIME ts;
    CREATE QUERY q AS SELECT a.k AS k, sum(a.v) AS s, count(*) AS n, RESULT_TIME AS at
    FROM a [RANGE 2 SECONDS], b [RANGE 2 SECONDS] WHERE a.k = b.k GROUP BY a.k
    """,
        plans=("(a b)", "(b a)"),
        batches=tuple(
            {
                "a": [(i % 3, 10 * n + i, n * 1_000_000 + i * 90_000) for i in range(8)],
                "b": [(i % 3, n * 1_000_000 + i * 110_000) for i in range(8)],
            }
            for n in range(3)
        ),
    )
