"""Which query keeps all rows that another would have kept."""

from __future__ import annotations

import pytest

from anabranch.plan.grid import Dimension, Grid
from anabranch.plan.history import Stored, complete_from_us, keeper_of, why_no_history
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.query import Query
from anabranch.sql import parse_script

CREATE = """
CREATE STREAM a (k BIGINT, j BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;
CREATE STREAM b (k BIGINT, j BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;
CREATE STREAM c (k BIGINT, ts TIMESTAMP) TIME ts;
CREATE TABLE t (k BIGINT);
"""
RUNS = "SELECT p.x, q.x AS y FROM a [RANGE 5 SECONDS] AS p, b [RANGE 5 SECONDS] AS q WHERE p.k = q.k AND p.x > 3"


def query(sql: str) -> Query:
    (found,) = parse_script(f"{CREATE} CREATE QUERY q AS {sql};").queries
    return found.query


def is_kept(sql: str, runs: str = RUNS) -> bool:
    return keeper_of(query(sql), Grid(), [Stored(query(runs), Grid())]) is not None


@pytest.mark.parametrize(
    ("sql", "is_there"),
    [
        (RUNS, True),
        (RUNS.replace("p.x, ", ""), True),
        (RUNS.replace("[RANGE 5 SECONDS] AS q", "[RANGE 2 SECONDS] AS q"), True),
        (RUNS.replace("[RANGE 5 SECONDS] AS q", "[RANGE 6 SECONDS] AS q"), False),
        (RUNS + " AND q.x < 7", True),
        (RUNS.replace(" AND p.x > 3", ""), False),
        (RUNS.replace("p.x > 3", "p.x > 4"), False),
        (RUNS.replace("p.x, ", "p.j, "), False),
        (RUNS + " AND q.j = 2", False),
        (RUNS.replace("p.k = q.k", "p.k = q.x"), False),
        ("SELECT m.x FROM a [RANGE 1 SECOND] AS m, a [RANGE 2 SECONDS] AS n WHERE m.k = n.k AND m.x > 3 AND n.x > 3", False),
        (RUNS.replace("b [", "c [").replace(", q.x AS y", ""), False),
    ],
)
def test_what_is_kept_for_another(sql: str, is_there: bool) -> None:
    """Windows as long, no predicate that the other lacks, and all columns that it reads, also those that only a further
    predicate does; over the same streams. Rows without a key are not kept."""
    assert is_kept(sql) is is_there


@pytest.mark.parametrize(
    ("mine_s", "theirs_s", "is_there"), [(None, None, True), (9, None, True), (9, 9, True), (9, 8, False), (None, 8, False)]
)
def test_rows_too_old_for_another_are_not_kept(mine_s: int | None, theirs_s: int | None, is_there: bool) -> None:
    """Rows that are older than the freshness of the query that keeps them are turned away."""

    def within(seconds: int | None) -> str:
        fresh = f" FRESHNESS {seconds} SECONDS" if seconds else ""
        return RUNS.replace("[RANGE 5 SECONDS] AS q", f"[RANGE 5 SECONDS{fresh}] AS q")

    assert is_kept(within(mine_s), within(theirs_s)) is is_there


def test_rows_lie_in_the_same_slots() -> None:
    """Rows of a stream that are spread by k are not where those would be that are spread by j."""
    both = query(RUNS + " AND p.j = q.j")
    by_k, by_j = (Grid((Dimension(terms),), (2,)) for terms in JoinGraph(both).classes)
    assert keeper_of(both, by_j, [Stored(both, by_k)]) is None
    assert keeper_of(both, by_k, [Stored(both, by_k)]) is not None


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT p.k, COUNT(*) AS n FROM a [RANGE 5 SECONDS] AS p, b [RANGE 5 SECONDS] AS q WHERE p.k = q.k GROUP BY p.k",
         "groups count rows of an instant"),
        ("SELECT p.x FROM a [RANGE 5 SECONDS] AS p, t WHERE p.k = t.k", "a row meets a stored table as its own batch"),
    ],
)  # fmt: skip
def test_who_can_never_have_history(sql: str, why: str) -> None:
    assert why in (why_no_history(query(sql)) or "")
    assert not is_kept(sql, sql)


def test_from_when_on_results_are_complete() -> None:
    """With history after all times that were seen of its streams; without, when its longest window has passed too."""
    seen = {"a": 10_000_000, "b": 12_000_000, "c": 99_000_000}
    assert complete_from_us(query(RUNS), seen, has_all=True) == 12_000_001
    assert complete_from_us(query(RUNS), seen, has_all=False) == 17_000_001
    assert complete_from_us(query(RUNS.replace("RANGE 5 SECONDS] AS q", "UNBOUNDED] AS q")), seen, has_all=False) is None
    only_b = {"b": 12_000_000}
    longer = RUNS.replace("RANGE 5 SECONDS] AS p", "UNBOUNDED] AS p")
    assert complete_from_us(query(longer), only_b, has_all=False) == 17_000_001, "all rows of a are still to come"
