"""Queries that run one join together give what each gives alone, batch by batch, and what the oracle says."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from hypothesis import strategies as st

from anabranch.plan.migration import Strategy
from anabranch.sql import parse_script
from tests.support import oracle
from tests.support.contained import contained
from tests.support.kin import kin
from tests.support.scenarios import properties
from tests.support.together import COMPANIES, Together, check_companies, check_sharing

ACTIONS = st.lists(
    st.tuples(
        st.integers(1, 9), st.sampled_from(["plan of all", "plan", "restart", "plan of all", "drop", "cut", "cut"]),
        st.integers(0, 11), st.integers(0, 99),
    ),
    max_size=5,
)  # fmt: skip

test_shared_joins, test_shared_joins_long = properties(
    check_sharing, 25, 2_000, workload=kin(), slots=st.sampled_from([1, 2, 4]), actions=ACTIONS,
    turns=st.lists(st.integers(0, 1), min_size=1, max_size=5),
)  # fmt: skip


CUTS = st.lists(
    st.tuples(
        st.integers(1, 9), st.sampled_from(["cut", "cut", "cut", "restart", "drop"]), st.integers(0, 11), st.integers(0, 99)
    ),
    min_size=4, max_size=12,
)  # fmt: skip

test_any_slices, test_any_slices_long = properties(
    check_sharing, 25, 2_000, workload=kin(), slots=st.sampled_from([1, 2, 4]), actions=CUTS,
    turns=st.lists(st.integers(0, 1), min_size=1, max_size=5),
)  # fmt: skip


COMPANY = st.lists(
    st.tuples(
        st.integers(1, 9), st.sampled_from(["company", "company", "restart", "plan of all", "cut", "drop"]),
        st.integers(0, 11), st.integers(0, 99),
    ),
    max_size=8,
)  # fmt: skip

test_any_companies, test_any_companies_long = properties(
    check_companies, 25, 2_000, workload=st.one_of(kin(), contained()), slots=st.sampled_from([1, 2, 4]), actions=COMPANY,
    turns=st.lists(st.integers(0, 1), min_size=1, max_size=5),
    companies=st.lists(st.sampled_from(COMPANIES), min_size=1, max_size=4),
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


def test_who_runs_a_join_with_whom_stands_in_the_records() -> None:
    """Push-down: a join for each set of filters. A driver that starts anew goes on with it, whatever it is told, and what is
    decided otherwise holds from the next batch on."""
    script = "".join(f"CREATE STREAM {s} (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "ab")
    for number, where in enumerate(("", " AND a.x < 3", " AND a.x < 3")):
        script += f"CREATE QUERY q{number} AS SELECT a.x FROM a, b WHERE a.k = b.k{where} WINDOW {number + 2} SECONDS;"
    queries = [declared.query for declared in parse_script(script).queries]
    run = Together(queries, pa.table({}), companies={"q0": "q0", "q1": "q2", "q2": "q2"})
    alone = {query.name: Together([query], pa.table({})) for query in queries}

    def step(number: int) -> None:
        ts = pa.array([number * 1_000_000 + n for n in range(9)], pa.timestamp("us"))
        rows = dict.fromkeys("ab", pa.table({"k": pa.array([n % 4 for n in range(9)]), "x": pa.array(range(9)), "ts": ts}))
        found = run.step(rows)
        for name, own in alone.items():
            assert not (wrong := oracle.difference(found[name], own.step(rows)[name])), f"{name} in batch {number}: {wrong}"

    step(0)
    assert set(run.slot.sharing) == {"q1", "q2"}
    assert {name: query.execution.company for name, query in run.pipeline.commit.queries.items()} == {
        "q0": "q0", "q1": "q2", "q2": "q2",
    }  # fmt: skip
    run.companies = None
    run.restart()
    step(1)
    assert set(run.slot.sharing) == {"q1", "q2"}
    for steering in run.pipeline.driver.queries.values():
        steering.execution = replace(steering.execution, company="")
    step(2)
    assert set(run.slot.sharing) == {"q0", "q1", "q2"}
    run.companies = {"q0": "q0"}
    run.restart()
    step(3)
    assert set(run.slot.sharing) == {"q0", "q1", "q2"}
