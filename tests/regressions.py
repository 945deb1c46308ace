"""Scenarios that once failed, as they were printed."""

from __future__ import annotations

from tests.scenarios import Scenario

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
}
