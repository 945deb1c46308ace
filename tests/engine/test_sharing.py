"""Queries that share a slot give what each gives alone, batch by batch, and what the oracle says."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import strategies as st

from anabranch.drive.local import LocalPipeline
from anabranch.plan.identity import RowsKey
from anabranch.plan.migration import Strategy
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.scenarios import properties
from tests.support.together import Together, check_sharing
from tests.support.workloads import Workload, readings_of, with_table, workloads


def check_changing_tables(workload: Workload, slots: int, restarts: frozenset[int]) -> None:
    """Every query meets the table as its own watermark has asked for it, as it does alone; watermarks differ."""
    queries, readings = with_table(workload), readings_of(workload)
    together = Together(queries, readings[0], slots, readings)
    alone = {query.name: Together([query], readings[0], 1, readings) for query in queries}
    for number in range(workload.batches):
        if number in restarts:
            together.restart()
        rows = workload.batch(number)
        for name, found in together.step(rows).items():
            problem = oracle.difference(found, alone[name].step(rows)[name])
            assert not problem, f"{name} in batch {number}, not as alone: {problem}\n{workload.script}"


test_changing_tables, test_changing_tables_long = properties(
    check_changing_tables, 10, 400, workload=workloads(4), slots=st.sampled_from([1, 2, 3]),
    restarts=st.frozensets(st.integers(1, 9), max_size=2),
)  # fmt: skip


ACTIONS = st.lists(
    st.tuples(
        st.integers(1, 9), st.sampled_from(["plan", "restart", "groups", "plan", "groups", "drop"]), st.integers(0, 11),
        st.integers(0, 99),
    ),
    max_size=6,
)

test_sharing, test_sharing_long = properties(
    check_sharing, 15, 1_500, workload=workloads(), slots=st.sampled_from([1, 2, 4]), actions=ACTIONS,
    turns=st.lists(st.integers(0, 1), min_size=1, max_size=5),
)  # fmt: skip


STORED = """
CREATE STREAM a (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;
CREATE STREAM b (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;
CREATE QUERY keeps AS SELECT i.x FROM b [RANGE 4 SECONDS] AS i, b [RANGE 4 SECONDS] AS j WHERE i.k = j.k AND i.x = j.x;
CREATE QUERY groups AS SELECT a.x, COUNT(*) AS n, MAX(b.x) AS m FROM a [RANGE 3 SECONDS], b [RANGE 2 SECONDS]
WHERE a.k = b.k GROUP BY a.x;
"""


@pytest.mark.parametrize(
    ("goes", "other"), [((2, 5), "keeps"), ((2, 9), "groups over groups of b"), ((4, 8), "keeps"), ((2, 9), "groups_b")]
)
def test_groups_go_where_another_query_keeps_their_rows(goes: tuple[int, int], other: str) -> None:
    """Another query, of any name, keeps rows of b for longer, in an index that both look up: the form that is left sees none
    that came since, and the form that comes none that came before."""
    script = STORED.replace("keeps", f'"{other}"')
    queries, rng = [bound.query for bound in parse_script(script).queries], np.random.default_rng(7)
    run, found = Together(queries, pa.table({})), Counter[Any]()
    batches = [
        {name: pa.table({"k": rng.integers(0, 3, 9), "x": rng.integers(0, 5, 9),
                         "ts": pa.array(number * 1_000_000 + np.sort(rng.integers(0, 999_999, 9)), pa.timestamp("us"))})
         for name in "ab"}
        for number in range(14)
    ]  # fmt: skip
    for number, rows in enumerate([*batches, {}]):
        if number in goes:
            target = "b" if number == goes[0] else ""
            run.pipeline.change("groups", "(a b)", Strategy.PARALLEL_TRACK, groups_below=target)
        found += run.step(rows)["groups"]
    assert not (wrong := oracle.difference(found, oracle.expected(queries[1], batches, {}))), wrong


# What is shared is there once.

CREATE = "".join(f"CREATE STREAM {s} (k BIGINT, j BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;\n" for s in "abcd")


def shared_of(*selects: str) -> Together:
    script = CREATE + "".join(f"CREATE QUERY q{n} AS {select};\n" for n, select in enumerate(selects))
    return Together([declared.query for declared in parse_script(script).queries], pa.table({}))


def fed(run: Together, batches: int = 6, rows: int = 50, missing: int = 0) -> Together:
    """Feeds equal batches: of every `missing`-th row j is NULL."""
    for number in range(batches):
        j = pa.array([None if missing and n % missing == 0 else n % 5 for n in range(rows)], pa.int64())
        ts = pa.array([number * 1_000_000 + n for n in range(rows)], pa.timestamp("us"))
        run.step(
            {s: pa.table({"k": pa.array(range(rows)), "j": j, "x": pa.array(range(rows)), "ts": ts}) for s in "abc"}
        )
    return run


def keys_of(run: Together) -> set[str]:
    """The indexes over sources."""
    return {str(key) for key in run.slot.store.indexes if isinstance(key.rows, RowsKey)}


def test_a_subquery_over_the_stream_of_its_outer_query_stores_it_once() -> None:
    join = "SELECT a.x, b.x AS y FROM a [RANGE 3 SECONDS], b [RANGE 3 SECONDS] WHERE a.k = b.k"
    counted = f"SELECT a.k, COUNT(*) AS n {join[join.index('FROM') :]} GROUP BY a.k"
    nested = join.replace(" WHERE", f", ({counted}) AS g WHERE") + " AND g.k = a.k"
    one, two = (fed(shared_of(sql)).slot for sql in (join, nested))
    assert set(two.store.logs) == {"a", "b", "q0.g"}
    for name in "ab":
        assert two.store.logs[name].bytes <= 1.5 * one.store.logs[name].bytes, "kept for a batch longer"
    manifest, _ = two.save(6, "again")
    stored = [segment.batch for segment in two.checkpoint.read(manifest).logs if segment.source == "a"]
    assert len(stored) == len(set(stored)) == len(two.store.logs["a"].segments), "one segment for each batch"


def with_plan(run: Together, name: str, plan: str) -> Together:
    run.pipeline.change(name, plan)
    return run


APART = "(a b c){a: c b}"
"""Rows of a do not meet b first: the query does not run its join with one of a and b."""


def test_indexes_are_shared_whatever_windows_aliases_and_other_keys() -> None:
    run = fed(with_plan(shared_of(
        "SELECT a.x FROM a [RANGE 3 SECONDS], b [RANGE 3 SECONDS] WHERE a.k = b.k",
        "SELECT p.x FROM b [RANGE 1 SECOND] AS o, a [RANGE 2 SECONDS] AS p WHERE p.k = o.k",
        "SELECT a.x FROM a [RANGE 3 SECONDS], b [RANGE 3 SECONDS], c [NOW] WHERE a.k = b.k AND a.j = c.j AND a.x > 7",
    ), "q2", APART), missing=7)  # fmt: skip
    assert keys_of(run) == {
        "a by (a.k)", "b by (b.k)", "a by (a.k) where (a.x > 7)", "a by (a.j) where (a.x > 7)", "c by (c.j)",
    }  # fmt: skip


def test_a_row_without_another_key_is_stored_once_and_seen_by_who_may() -> None:
    """q0 joins a by k, q1 by k and j: rows without a j are in the index that both look up."""
    run = fed(with_plan(shared_of(
        "SELECT a.x, b.x AS y FROM a [RANGE 3 SECONDS], b [RANGE 3 SECONDS] WHERE a.k = b.k",
        "SELECT a.x, b.x AS y FROM a [RANGE 3 SECONDS], b [RANGE 3 SECONDS], c [NOW] WHERE a.k = b.k AND a.j = c.j",
    ), "q1", APART), missing=7)  # fmt: skip
    assert keys_of(run) == {"a by (a.k)", "a by (a.j)", "b by (b.k)", "c by (c.j)"}
    watches = {name: box.reader.watches for name, box in run.slot.boxes.items()}
    assert not watches["q0"]["a"].suspects
    assert watches["q1"]["a"].suspects >= set(run.slot.store.logs["a"].segments)


def test_rows_are_kept_for_whoever_needs_them_longest() -> None:
    short = "SELECT a.x FROM a [RANGE 1 SECOND], b [RANGE 1 SECOND] WHERE a.k = b.k"
    run, alone = fed(shared_of(short, short.replace("1 SECOND", "5 SECONDS")), 9), fed(shared_of(short), 9)
    kept, few = (set(each.slot.store.logs["a"].segments) for each in (run, alone))
    assert few < kept
    assert len(few) <= 3
    assert len(kept) >= 5


@pytest.mark.parametrize("windows", [("1 SECOND", "5 SECONDS"), ("5 SECONDS", "1 SECOND")])
def test_rows_of_one_index_end_as_the_window_of_their_reader_says(windows: tuple[str, str]) -> None:
    """New rows are sorted once for both queries; a row of b comes two seconds after the rows of a that have its key."""
    sql = "SELECT a.x, b.x AS y FROM a [RANGE {w}], b [RANGE {w}] WHERE a.k = b.k"
    run = shared_of(*(sql.format(w=w) for w in windows))
    found: dict[str, oracle.Bag] = {query.name: Counter() for query in run.queries}
    batches = []
    for second, names in ((2, "b"), (0, "a"), (3, "ab")):  # the rows of a are behind: they find what is later
        ts = pa.array([second * 1_000_000 + n for n in range(4)], pa.timestamp("us"))
        keys = pa.array(range(4), pa.int64())
        batches.append({s: pa.table({"k": keys, "j": keys, "x": keys, "ts": ts}) for s in names})
        for name, results in run.step(batches[-1]).items():
            found[name] += results
    for query in run.queries:
        assert not (wrong := oracle.difference(found[query.name], oracle.expected(query, batches, {}))), wrong


def test_equal_views_are_kept_by_one_of_their_readers() -> None:
    sql = "SELECT a.x, b.x AS y, c.x AS z FROM a, b, c WHERE a.k = b.k AND a.k = c.k WINDOW 3 SECONDS"
    other = sql.replace("a.x, b.x AS y, c.x AS z", "RESULT_TIME AS t, a.j")
    run, alone = shared_of(sql, other), shared_of(sql)
    for each in (run, alone):
        for query in each.queries:
            each.pipeline.change(query.name, "((a b) c)")
        fed(each)
    (view,) = run.slot.store.views.values()
    (own,) = alone.slot.store.views.values()
    assert view.rows == own.rows > 0


def test_who_keeps_a_view_keeps_the_indexes_of_all_who_read_it() -> None:
    """Both keep (a b); one looks it up by k, the other by j. Random cases of joins that contain others found it."""
    sql = "SELECT a.x, b.x AS y, c.x AS z FROM a, b, c WHERE a.k = b.k AND a.j = b.j AND c.{key} = a.{key} WINDOW 3 SECONDS"
    run = shared_of(sql.format(key="k"), sql.format(key="j"))
    alone = [shared_of(sql.format(key=key)) for key in "kj"]
    for each in (run, *alone):
        for query in each.queries:
            each.pipeline.change(query.name, "((a b) c)")
    for number in range(5):
        keys = pa.array([n % 4 for n in range(8)], pa.int64())
        ts = pa.array([number * 1_000_000 + n for n in range(8)], pa.timestamp("us"))
        rows = {s: pa.table({"k": keys, "j": keys, "x": pa.array([number] * 8), "ts": ts}) for s in "abc"}
        found = run.step(rows)
        for name, own in zip(("q0", "q1"), alone, strict=True):
            assert not (wrong := oracle.difference(found[name], own.step(rows)["q0"])), f"{name} in {number}: {wrong}"
    assert len(run.slot.store.views) == 1


def test_two_may_work_at_what_a_view_still_lacks_in_one_batch() -> None:
    """Both go to a plan with (a b), a piece in each batch: each piece is found by one of them, and kept."""
    sql = "SELECT a.x, b.x AS y, c.x AS z FROM a, b, c WHERE a.k = b.k AND a.j = b.j AND c.{key} = a.{key} WINDOW 9 SECONDS"
    run = shared_of(sql.format(key="k"), sql.format(key="j"))
    alone = [shared_of(sql.format(key=key)) for key in "kj"]
    for each in (run, *alone):
        for query in each.queries:
            each.pipeline.change(query.name, "(a b c)")
    for number in range(9):
        for query in run.queries if number == 4 else ():
            run.pipeline.change(query.name, "((a b) c)", Strategy.GRADUAL)
        ts = pa.array([number * 1_000_000 + n for n in range(4)], pa.timestamp("us"))
        keys = pa.array(range(4), pa.int64())
        rows = {s: pa.table({"k": keys, "j": keys, "x": pa.array([number] * 4), "ts": ts}) for s in "abc"}
        found = run.step(rows)
        for name, own in zip(("q0", "q1"), alone, strict=True):
            assert not (wrong := oracle.difference(found[name], own.step(rows)["q0"])), f"{name} in {number}: {wrong}"
    (view,) = run.slot.store.views.values()
    assert view.rows
    assert not run.slot.store.builds


def test_two_who_find_a_view_in_different_ways_complete_it_together() -> None:
    """One plan finds (a b c) from c, the other from a: who comes second leaves what was begun to the first, and both end."""
    sql = (
        "SELECT a.x, b.x AS y, c.x AS z, d.x AS w FROM a, b, c, d "
        "WHERE a.k = b.k AND b.k = c.k AND a.j = b.j AND b.j = c.j AND d.{key} = a.{key} WINDOW 6 SECONDS"
    )
    run, alone = shared_of(sql.format(key="k"), sql.format(key="j")), [shared_of(sql.format(key=key)) for key in "kj"]
    for each in (run, *alone):
        for query in each.queries:
            each.pipeline.change(query.name, "(a b c d)")
    for number in range(20):
        for query, plan in (("q0", "(((a b) c) d)"), ("q1", "((a (b c)) d)")) if number == 7 else ():
            run.pipeline.change(query, plan, Strategy.GRADUAL)
        ts = pa.array([number * 1_000_000 + n for n in range(2)], pa.timestamp("us"))
        keys = pa.array(range(2), pa.int64())
        rows = {s: pa.table({"k": keys, "j": keys, "x": pa.array([number] * 2), "ts": ts}) for s in "abcd"}
        found = run.step(rows)
        for name, own in zip(("q0", "q1"), alone, strict=True):
            assert not (wrong := oracle.difference(found[name], own.step(rows)["q0"])), f"{name} in {number}: {wrong}"
    assert not run.slot.store.builds
    assert not run.slot.store.waiting


def test_a_view_is_kept_for_a_reader_of_groups() -> None:
    """q1 joins a and b with groups too, which are known a batch later: by then their rows have ended for q0."""
    sql = "SELECT a.x, b.x AS y, c.x AS z FROM a, b, c WHERE a.k = b.k AND a.k = c.k WINDOW 2 SECONDS"
    counted = "(SELECT k, COUNT(*) AS n FROM c [RANGE 2 SECONDS] GROUP BY k) AS g"
    run = shared_of(sql, sql.replace("c WHERE", f"c, {counted} WHERE g.k = a.k AND"))
    alone = Together(run.queries[1:], pa.table({}))
    for each in (run, alone):
        for query in each.queries:
            each.pipeline.change(query.name, "((a b) c g)" if query.name == "q1" else "((a b) c)")
    found: oracle.Bag = Counter()
    for number in range(8):
        keys = pa.array(range(4), pa.int64())
        ts = pa.array([number * 1_000_000 + n for n in range(4)], pa.timestamp("us"))
        rows = {s: pa.table({"k": keys, "j": keys, "x": pa.array([number] * 4), "ts": ts}) for s in "abc"}
        results = run.step(rows)["q1"]
        assert not (wrong := oracle.difference(results, alone.step(rows)["q1"])), f"in batch {number}: {wrong}"
        found += results
    assert len(run.slot.store.views) == 1, "both read it"
    assert found


def test_what_a_reader_watches_goes_with_its_segments() -> None:
    """Of every seventh row j is NULL, and the watermark of q1 is ahead: each batch has rows that q1 must not see."""
    script = (
        CREATE.replace("TIME ts;", "TIME ts LATENESS 3 SECONDS;", 1)
        + """
    CREATE QUERY q0 AS SELECT a.x FROM a [RANGE 2 SECONDS], b [RANGE 2 SECONDS] WHERE a.k = b.k;
    CREATE QUERY q1 AS SELECT b.x FROM b [RANGE 2 SECONDS], c [RANGE 2 SECONDS] WHERE b.k = c.k AND b.j = c.j;
    """
    )
    run = Together([declared.query for declared in parse_script(script).queries], pa.table({}))
    for number in range(40):
        rows = {"k": list(range(14)), "j": [None, 1, 2, 3, 4, 5, 6] * 2, "x": list(range(14))}
        late = pa.array([number * 1_000_000 - n * 200_000 for n in range(14)], pa.timestamp("us"))
        run.step({s: pa.table({**rows, "ts": late}) for s in "abc"})
    watch, kept = run.slot.boxes["q1"].reader.watches["b"], set(run.slot.store.logs["b"].segments)
    assert watch.watermarks
    assert watch.suspects <= kept
    assert watch.watermarks.keys() <= kept
    assert len(kept) < 12


def test_what_came_is_counted_for_each_query_by_itself() -> None:
    """Rows without a time too, and in slots that get rows for another query's sake. What a query stores is what it wants,
    although the log has more: its plans are chosen by that."""
    script = parse_script("""
        CREATE STREAM a (k BIGINT, j BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;
        CREATE STREAM b (k BIGINT, j BIGINT, ts TIMESTAMP) TIME ts;
        CREATE QUERY few AS SELECT a.x FROM a [RANGE 9 SECONDS], b [RANGE 9 SECONDS] WHERE a.k = b.k AND a.x < 10;
        CREATE QUERY many AS SELECT a.x FROM a [RANGE 9 SECONDS], b [RANGE 9 SECONDS] WHERE a.j = b.j""")
    times = pa.array([None if n % 7 == 0 else n for n in range(100)], pa.timestamp("us"))
    numbers = pa.array(range(100), pa.int64())
    a = pa.table({"k": numbers, "j": pc.multiply(numbers, 3), "x": numbers, "ts": times})
    pipeline = LocalPipeline([declared.query for declared in script.queries], MemoryFilesystem(), slots=4)
    steps = pipeline.step(0, {"a": a, "b": a.select(["k", "j", "ts"])})
    for name, stored in (("few", 8), ("many", 85)):
        counts = steps[name].statistics.sources["a"]
        assert (counts.rows, counts.untimed_rows, counts.stored_rows) == (100, 15, stored), name


def test_rows_that_are_there_for_a_query_that_was_dropped() -> None:
    """They are in the logs when the others start again."""
    workload = Workload(9472, 5, batches=6)
    queries = [query for query in workload.queries if query.name in ("q2", "q4")]
    together, found = Together(queries, workload.table, slots=2), oracle.Bag()
    batches = [{name: rows for name, rows in workload.batch(number).items() if name != "t"} for number in range(6)]
    for number, rows in enumerate(batches):
        if number == 3:
            together.drop("q2")
        found += together.step(rows)["q4"]
    found += together.step({})["q4"]
    read = [{name: rows for name, rows in batch.items() if name in "bc"} for batch in batches]
    assert not (wrong := oracle.difference(found, oracle.expected(queries[1], read, {}))), wrong


def test_streams_whose_names_hold_blanks_are_not_taken_for_several() -> None:
    """`"a b"` and c are other streams than a, b and c: q waits for rows of `"a b"` that are late by as much as 20 seconds,
    and a row of c that is late for p is none that is late for q."""
    streams = (("a b", 20), ("a", 0), ("b", 0), ("c", 0))
    create = "".join(
        f'CREATE STREAM "{s}" (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts LATENESS {late} SECONDS;' for s, late in streams
    )
    script = parse_script(f"""{create}
        CREATE QUERY q AS SELECT m.x, c.x AS y FROM "a b" m, c WHERE m.k = c.k WINDOW 60 SECONDS;
        CREATE QUERY p AS SELECT a.x, b.x AS z, c.x AS y FROM a, b, c WHERE a.k = b.k AND a.k = c.k WINDOW 60 SECONDS""")
    run, found = Together([declared.query for declared in script.queries], pa.table({})), {"q": Counter(), "p": Counter()}

    def rows(second: int, *names: str) -> dict[str, pa.Table]:
        ts = pa.array([second * 1_000_000], pa.timestamp("us"))
        return {name: pa.table({"k": [1], "x": [second], "ts": ts}) for name in names}

    batches = [rows(30, "a b", "a", "b", "c"), rows(20, "c"), rows(31, "a b", "a", "b"), {}]
    for each in batches:
        for name, own in run.step(each).items():
            found[name] += own
    for query in run.queries:
        read = {source.name for source in query.base_sources}
        own = [{name: table for name, table in each.items() if name in read} for each in batches]
        assert not (wrong := oracle.difference(found[query.name], oracle.expected(query, own, {}))), (query.name, wrong)
    assert "a, b, c" in run.slot.store.logs["c"].segments[1].watermarks, "the row is late for p"
