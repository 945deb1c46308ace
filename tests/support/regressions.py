"""Scenarios that once failed, as they were printed."""

from __future__ import annotations

from tests.support.scenarios import Scenario

REGRESSIONS = {
    # The indexes of (a b c) are all among those of ((a b) c): a restart did not notice that the view was not there.
    "a view that only the new plan has": Scenario(
        """
    CREATE STREAM a (k BIGINT, ts TIMESTAMP) TIME ts;
    CREATE STREAM b (k BIGINT, ts TIMESTAMP) TIME ts;
    CREATE STREAM c (k BIGINT, ts TIMESTAMP) TIME ts;
    CREATE QUERY q AS SELECT a.k FROM a [UNBOUNDED], b [UNBOUNDED], c [UNBOUNDED] WHERE a.k = b.k AND b.k = c.k
    """,
        plans=("(a b c)", "((a b) c)"),
        batches=(
            {"a": [(1, 0)], "b": [(1, 0)]},
            {"c": [(1, 0)]},
        ),
    ),
    # The times of a batch became floats for one that was NULL, and rows of four slots went to three of them.
    "rows of two inputs, and one without a time": Scenario(
        script="""
    CREATE STREAM s0 (id BIGINT, v BIGINT, w BIGINT, ts TIMESTAMP) TIME ts LATENESS 1000000000000000 MICROSECONDS;
    CREATE QUERY q AS SELECT a.id AS c0, b.id AS c1 FROM s0 [RANGE 10000000000 MICROSECONDS] AS a, s0 [UNBOUNDED] AS b
    WHERE b.v % 3 = a.w % 3""",
        plans=("(a b)", "(a b)", "(a b)"),
        batches=(
            {
                "s0": [
                    (0, 4, None, None),
                    (1, -5, -1, 0),
                    (2, 4, -3, 1000000),
                    (3, 6, 3, 0),
                    (4, -1, 10, 0),
                    (5, None, 8, 1000000),
                    (6, 7, None, 1000000),
                    (7, None, 10, 0),
                    (8, 4, -4, 0),
                    (9, -5, None, 0),
                ]
            },
            {
                "s0": [
                    (10, 7, -1, 2000000),
                    (11, 7, -1, 1000000),
                    (12, -2, None, 1000000),
                    (13, 3, 5, 1000000),
                    (14, 8, 4, 1000000),
                    (15, -4, None, 1000000),
                    (16, -4, -2, 2000000),
                    (17, -2, 4, 1000000),
                    (18, -1, 8, 1000000),
                    (19, None, None, None),
                ]
            },
        ),
        tables={},
        result_after_us=None,
    ),
}

FAILED_ONCE = list(REGRESSIONS.values())
