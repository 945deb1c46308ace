"""Queries that run one join together give what each gives alone, batch by batch, and what the oracle says."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import strategies as st

from anabranch.plan.migration import Strategy
from anabranch.sql import parse_script
from tests.support import oracle
from tests.support.kin import kin
from tests.support.scenarios import properties
from tests.support.together import Together, check_sharing

ACTIONS = st.lists(
    st.tuples(
        st.integers(1, 9), st.sampled_from(["plan of all", "plan", "restart", "plan of all", "drop", "cut", "cut"]),
        st.integers(0, 7), st.integers(0, 99),
    ),
    max_size=5,
)  # fmt: skip

test_shared_joins, test_shared_joins_long = properties(
    check_sharing, 25, 6_000, workload=kin(), slots=st.sampled_from([1, 2, 4]), actions=ACTIONS,
    turns=st.lists(st.integers(0, 1), min_size=1, max_size=5),
)  # fmt: skip


CUTS = st.lists(
    st.tuples(
        st.integers(1, 9), st.sampled_from(["cut", "cut", "cut", "restart", "drop"]), st.integers(0, 7), st.integers(0, 99)
    ),
    min_size=4, max_size=12,
)  # fmt: skip

test_any_slices, test_any_slices_long = properties(
    check_sharing, 25, 6_000, workload=kin(), slots=st.sampled_from([1, 2, 4]), actions=CUTS,
    turns=st.lists(st.integers(0, 1), min_size=1, max_size=5),
)  # fmt: skip


def test_a_query_with_filters_does_not_take_over_the_index_of_a_join_that_it_leaves() -> None:
    """The first random cases found it: the index of the join has rows that the query itself does not want."""
    script = "".join(f"CREATE STREAM {s} (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "abc")
    for number, where in enumerate((" AND a.x < 3 WINDOW 9 SECONDS", " WINDOW 5 SECONDS")):
        script += f"CREATE QUERY q{number} AS SELECT a.x FROM a, b, c WHERE a.k = b.k AND b.k = c.k{where};"
    run = Together([declared.query for declared in parse_script(script).queries], pa.table({}))
    for number in range(4):
        if number == 2:
            run.pipeline.change("q0", "(a b c)")
        ts = pa.array([number * 1_000_000 + n for n in range(9)], pa.timestamp("us"))
        run.step(dict.fromkeys("abc", pa.table({"k": pa.array(range(9)), "x": pa.array(range(9)), "ts": ts})))
    assert not run.slot.sharing


def test_the_largest_window_leaves_while_a_join_is_on_two_tracks() -> None:
    """The views of the track that comes were for its window; what they held of new rows is not lost. Random cases of joins
    that contain others found it."""
    script = "".join(f"CREATE STREAM {s} (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts LATENESS 3 SECONDS;" for s in "abc")
    for number, us in enumerate((2, 2, 3)):
        script += f"CREATE QUERY q{number} AS SELECT a.x FROM a, b, c WHERE a.k = b.k AND b.k = c.k WINDOW {us} SECONDS;"
    queries = [declared.query for declared in parse_script(script).queries]
    run, alone = Together(queries, pa.table({})), Together(queries[:1], pa.table({}))
    for number in range(9):
        if number == 3:
            for query in queries:
                run.pipeline.change(query.name, "(a (b c))", Strategy.PARALLEL_TRACK)
        if number == 5:
            run.drop("q2")
        ts = pa.array([number * 1_000_000 - n * 400_000 for n in range(6)], pa.timestamp("us"))
        keys = pa.array([n % 2 for n in range(6)])
        rows = dict.fromkeys("abc", pa.table({"k": keys, "x": pa.array([number] * 6), "ts": ts}))
        assert not (wrong := oracle.difference(run.step(rows)["q0"], alone.step(rows)["q0"])), f"batch {number}: {wrong}"
