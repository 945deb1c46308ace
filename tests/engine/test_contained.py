"""Queries with further equalities, or over some of the streams, take their results from a larger join, as each alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from anabranch.drive.local import LocalPipeline
from anabranch.engine import lineage
from anabranch.engine.shared_box import SharedBox
from anabranch.engine.store import Store
from anabranch.plan.identity import RowsKey, ViewKey
from anabranch.plan.migration import Strategy
from anabranch.plan.query import Query
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.cases import Part
from tests.support.coming import check_coming
from tests.support.contained import Contained, contained, uneven
from tests.support.scenarios import properties
from tests.support.together import Together, check_sharing

SECOND_US = 1_000_000
WHAT = ["plan of all", "plan", "restart", "plan of all", "drop"]
COMING = ["add", "add", "history", "leave", "alter", "plan of all", "plan", "restart"]
TURNS = st.lists(st.integers(0, 1), min_size=1, max_size=5)


def actions(what: list[str], most: int) -> st.SearchStrategy[list[tuple[int, str, int, int]]]:
    one = st.tuples(st.integers(1, 9), st.sampled_from(what), st.integers(0, 11), st.integers(0, 99))
    return st.lists(one, max_size=most)


test_contained, test_contained_long = properties(
    check_sharing, 30, 2_000, workload=contained(), slots=st.sampled_from([1, 2, 4, 8]), actions=actions(WHAT, 5),
    turns=TURNS,
)  # fmt: skip

test_contained_that_come, test_contained_that_come_long = properties(
    check_coming, 20, 1_500, workload=contained(), slots=st.sampled_from([1, 2, 4, 8]), count=st.integers(1, 4),
    actions=actions(COMING, 9), turns=TURNS,
)  # fmt: skip


test_uneven, test_uneven_long = properties(
    check_sharing, 20, 2_000, workload=uneven(), slots=st.sampled_from([1, 2, 4, 8]),
    actions=actions([*WHAT, "cut", "cut"], 8), turns=TURNS,
)  # fmt: skip

test_uneven_that_come, test_uneven_that_come_long = properties(
    check_coming, 15, 1_500, workload=uneven(), slots=st.sampled_from([1, 2, 4]), count=st.integers(1, 4),
    actions=actions([*COMING, "cut"], 9), turns=TURNS,
)  # fmt: skip


CREATE = "".join(f"CREATE STREAM {s} (k BIGINT, j BIGINT, i BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "abcd")
WHOLE = "SELECT a.x, c.x AS z FROM a, b, c WHERE a.k = b.k AND b.j = c.j WINDOW 3 SECONDS"
FURTHER = "SELECT a.x, n.x AS y FROM a, b AS n, c WHERE n.k = a.k AND c.j = n.j AND a.i = c.i WINDOW 2 SECONDS"
PART = "SELECT p.x, o.x AS y, o.j FROM b AS o, a AS p WHERE p.k = o.k WINDOW 2 SECONDS"
COUNTED = "SELECT p.k, COUNT(*) AS n FROM a AS p, b AS o WHERE p.k = o.k WINDOW 4 SECONDS GROUP BY p.k"


def queries(*selects: str, create: str = CREATE) -> list[Query]:
    script = create + "".join(f"CREATE QUERY q{n} AS {select};" for n, select in enumerate(selects))
    return [declared.query for declared in parse_script(script).queries]


def rows(second: int, names: str = "abcd", count: int = 40) -> dict[str, pa.Table]:
    """Equal rows of some streams; every seventh has no j, every eighth no i."""
    numbers = range(second, second + count)
    j = pa.array([None if n % 7 == 0 else n % 5 for n in numbers], pa.int64())
    i = pa.array([None if n % 8 == 0 else n % 3 for n in numbers], pa.int64())
    ts = pa.array([second * SECOND_US + n for n in numbers], pa.timestamp("us"))
    table = {"k": pa.array([n % 9 for n in numbers]), "j": j, "i": i, "x": pa.array(numbers), "ts": ts}
    return {s: pa.table(table) for s in names}


def checked(run: Together, batches: list[dict[str, pa.Table]]) -> None:
    """Runs batches, and compares what each query gives with the oracle."""
    whole: dict[str, oracle.Bag] = {query.name: Counter() for query in run.queries}
    for each in [*batches, {}]:
        for name, found in run.step(each).items():
            whole[name] += found
    for query in run.queries:
        read = {source.name for source in query.base_sources}
        own = [{name: table for name, table in each.items() if name in read} for each in batches]
        assert not (wrong := oracle.difference(whole[query.name], oracle.expected(query, own, {}))), wrong
        assert whole[query.name]


@pytest.mark.few(2)
@pytest.mark.parametrize("slots", [1, 2, 4, 8])
def test_who_runs_the_join_together(slots: int) -> None:
    selects = [WHOLE, FURTHER, PART, *([COUNTED] if slots < 8 else [])]  # groups by k are best spread by k
    run = Together(queries(*selects), pa.table({}), slots)
    checked(run, [rows(number) for number in range(5)])
    box = run.slot.boxes["q0"]
    assert isinstance(box, SharedBox)
    assert list(run.slot.boxes) == ["q0"]
    assert set(box.members) == {query.name for query in run.queries}


def probes(*selects: str) -> tuple[int, int]:
    """How many rows are looked up in all, and how many results there are."""
    made, found = queries(*selects), [0, 0]
    pipeline, read = LocalPipeline(made, MemoryFilesystem()), {s.name for query in made for s in query.base_sources}
    for number in range(6):
        for step in pipeline.step(number, rows(number, "".join(read))).values():
            found[0] += sum(each.probes for each in step.statistics.steps)
            found[1] += step.statistics.results
    return found[0], found[1]


def test_the_join_is_run_once() -> None:
    """Rows with no j are looked up for the sake of the part alone, and go no further."""
    alone, own = probes(WHOLE), [probes(each) for each in (FURTHER, PART)]
    together, part = probes(WHOLE, FURTHER, PART), probes(WHOLE, PART)
    assert together[1] == alone[1] + sum(results for _, results in own)
    assert together[0] == part[0] < alone[0] + sum(count for count, _ in own)
    assert probes(WHOLE, FURTHER)[0] == alone[0]


@pytest.mark.parametrize("ahead", ["abc", "bca", "acb"])
def test_a_row_may_be_late_for_a_part_and_not_for_the_whole(ahead: str) -> None:
    """Of two streams that are ahead, rows that are behind are late for who does not wait for the third."""
    lateness = "".join(
        f"CREATE STREAM {s} (k BIGINT, j BIGINT, i BIGINT, x BIGINT, ts TIMESTAMP) TIME ts LATENESS {lag} SECONDS;"
        for s, lag in zip(ahead, (0, 0, 4), strict=True)
    )
    parts = ["SELECT m.x, n.x AS y FROM a AS m, b AS n WHERE m.k = n.k WINDOW 3 SECONDS",
             "SELECT m.x FROM b AS n, c AS m WHERE m.j = n.j WINDOW 2 SECONDS",
             "SELECT n.k, COUNT(*) AS y FROM a AS m, b AS n WHERE m.k = n.k WINDOW 3 SECONDS GROUP BY n.k"]  # fmt: skip
    run = Together(queries(WHOLE, *parts, create=lateness), pa.table({}))
    order = [0, 1, 2, 5, 3, 4, 7, 5, 6, 9]
    checked(run, [rows(second, "abc", 12) for second in order])
    (box,) = [box for box in run.slot.boxes.values() if isinstance(box, SharedBox)]
    assert set(box.members) == {"q0", "q1", "q3"}
    segments = [stored for name in "ab" for stored in run.slot.store.logs[name].segments.values()]
    is_late = any("a, b" in stored.watermarks for stored in segments)
    assert is_late == (ahead == "abc"), "only where the third stream is not one of the part"


def test_rows_go_by_the_watermark_of_each_who_wants_them() -> None:
    """Orders stand still, so the watermark of the whole does; rows that only the part wants go nevertheless."""
    whole, part = WHOLE.replace("WHERE", "WHERE a.x < 0 AND"), PART
    run = Together(queries(whole, part), pa.table({}))
    run.step(rows(0, "abc"))
    for second in range(1, 12):
        run.step(rows(second, "ab"))
    assert isinstance(run.slot.boxes["q0"], SharedBox)
    assert len(run.slot.store.logs["a"].segments) < 6
    assert len(run.slot.store.logs["b"].segments) == 12, "the whole wants them all"


@pytest.mark.parametrize(("window_s", "part_s", "told"), [(3, 2, None), (2, 3, None), (3, 3, None), (3, 2, ()), (2, 3, ())])
def test_a_stream_that_is_silent_for_a_thousand_batches(
    window_s: int, part_s: int, told: tuple[int, ...] | None, part: Part
) -> None:
    """No row of c comes, so the watermark of the whole never moves. Rows that only the part wants go by the part's own
    watermark, whosever window is longer, and if all windows have one slice: what the logs and indexes keep of a and b does
    not grow, and the part is exact."""
    asked = WHOLE.replace("3 SECONDS", f"{window_s} SECONDS").replace("WHERE", "WHERE a.x < 0 AND b.x < 0 AND")
    whole, narrow = queries(asked, PART.replace("2 SECONDS", f"{part_s} SECONDS"))
    run, found, most, shown = LocalPipeline([whole, narrow], MemoryFilesystem()), Counter(), 0, 0
    run.driver.slices = {} if told is None else dict.fromkeys("ab", told)
    batches = [rows(second, "ab", count=3) for second in range(part.share(1_000 if (window_s, told) == (3, None) else 100))]
    for number, each in enumerate(batches):
        found += oracle.bag(run.step(number, each)[narrow.name].results)
        slot = run.slot()
        assert slot is not None
        most = max(most, *(slot.store.logs[name].rows for name in "ab"))
        shown = max(shown, *(index.rows for key, index in slot.store.indexes.items() if isinstance(key.rows, RowsKey)))
    assert isinstance(slot.boxes[whole.name], SharedBox)
    assert most <= 3 * (part_s + 2), "the window, the batch that comes, and one that is to be purged"
    assert shown <= 3 * (part_s + 2)
    assert not (wrong := oracle.difference(found, oracle.expected(narrow, batches, {}))), wrong
    assert found


def kept_in_views(selects: list[str], batches: list[dict[str, pa.Table]]) -> list[int]:
    """How many rows views and the indexes over them have after each batch."""
    made, found = queries(*selects), []
    run = LocalPipeline(made, MemoryFilesystem())
    for number, each in enumerate(batches):
        run.step(number, each)
        slot = run.slot()
        assert slot is not None
        assert len(made) == 1 or isinstance(slot.boxes["q0"], SharedBox)
        indexes = [index.rows for key, index in slot.store.indexes.items() if isinstance(key.rows, ViewKey)]
        found.append(sum(indexes) + sum(view.rows for view in slot.store.views.values()))
    return found


@pytest.mark.parametrize("silent", ["", "c"])
def test_a_part_with_a_longer_window_does_not_make_the_views_of_the_whole_larger(silent: str) -> None:
    whole, part = WHOLE.replace("3 SECONDS", "1 SECOND"), PART.replace("2 SECONDS", "20 SECONDS")
    batches = [rows(number, "abc" if number < 3 or not silent else "ab", 10) for number in range(30)]
    assert kept_in_views([whole, part], batches) == kept_in_views([whole], batches)


def test_nor_does_a_part_that_wants_all_rows() -> None:
    """Of the same stream: nobody's watermark is another one, and sets tell nothing of rows."""
    whole = "SELECT m.x, o.x AS z FROM a AS m, a AS n, a AS o WHERE m.k = n.k AND n.k = o.k WINDOW 1 SECOND"
    part = "SELECT m.x, n.x AS z FROM a AS m, a AS n WHERE m.k = n.k WINDOW 20 SECONDS"
    batches = [rows(number, "a", 10) for number in range(30)]
    assert kept_in_views([whole, part], batches) == kept_in_views([whole], batches)


@pytest.mark.parametrize("most_sets", [lineage.MOST_TABLE, 0])
def test_a_view_keeps_combinations_as_long_as_somebody_wants_them(most_sets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody of the longer window wants any row of a. Combinations carry numbers of sets, or their bits."""
    monkeypatch.setattr(lineage, "MOST_TABLE", most_sets)
    longer = WHOLE.replace("3 SECONDS", "20 SECONDS").replace("WHERE", "WHERE a.x < 0 AND")
    uneven = WHOLE.replace("a, b, c", "a [RANGE 2 SECONDS], b [RANGE 3 SECONDS], c").replace("WINDOW 3", "WINDOW 1")
    batches = [rows(number, "abc", 10) for number in range(30)]
    for each in (WHOLE, uneven):
        assert kept_in_views([longer, each], batches) == kept_in_views([each], batches)


def test_combinations_that_only_a_part_wants_do_not_pile_up_in_views() -> None:
    """No row of d comes. What the part wants of a and b, on its way to c, is not what the whole wants."""
    asked = "WHERE a.k = b.k AND b.k = c.k"
    whole = f"SELECT a.x, d.x AS z FROM a, b, c, d {asked} AND c.k = d.k AND a.x < 0 AND b.x < 0 WINDOW 3 SECONDS"
    made = queries(whole, f"SELECT a.x, b.x AS z FROM a, b, c {asked} WINDOW 2 SECONDS")
    run, found, most = LocalPipeline(made, MemoryFilesystem()), Counter[tuple[object, ...]](), 0
    batches = [rows(second, "abc", 3) for second in range(60)]
    for number, each in enumerate(batches):
        found += oracle.bag(run.step(number, each)["q1"].results)
        slot = run.slot()
        assert slot is not None
        most = max(most, *(view.rows for view in slot.store.views.values()))
    assert most <= 40, "those of a few batches"
    assert not (wrong := oracle.difference(found, oracle.expected(made[1], batches, {}))), wrong
    assert found


def test_a_join_whose_largest_windows_leave_does_not_take_their_index_to_a_view_that_somebody_else_has() -> None:
    """The view of a and b is kept for 2 seconds by q0, and for 5 by q2 and q1, which asks for more. When q1 leaves, q2 reads
    that of q0, which has other rows: the index of the longer one, by a key that q0 does not look up, names none of these."""
    ours = "a.k = b.k AND a.i IS NOT NULL AND b.j IS NOT NULL"
    selects = [f"SELECT a.x, c.x AS z FROM a, b, c WHERE {ours} AND b.j = c.j WINDOW 2 SECONDS"]
    by_i = f"SELECT b.x, c.x AS z FROM a, b, c WHERE {ours} AND a.i = c.i"
    selects += [f"{by_i} AND b.x = c.x WINDOW 5 SECONDS", f"{by_i} WINDOW 2 SECONDS"]
    run, found = Together(queries(*selects), pa.table({})), Counter[tuple[object, ...]]()
    batches = [rows(second, "abc", 12) for second in range(8)]
    for number, each in enumerate(batches):
        if number == 4:
            run.pipeline.drop("q1")
            run.queries = [query for query in run.queries if query.name != "q1"]
        found += run.step(each)["q2"]
    assert len(run.slot.store.views) == 1, "one for both"
    (last,) = [query for query in run.queries if query.name == "q2"]
    assert not (wrong := oracle.difference(found, oracle.expected(last, batches, {}))), wrong
    assert found


def test_rows_that_are_late_for_the_part_look_up_among_rows_that_are_over_for_it() -> None:
    """Rows of the whole that are late for the part find, in runs of many batches, rows that the part alone wanted and that
    are gone: they are nobody's. After a restart it is so, too."""
    asked = WHOLE.replace("3 SECONDS", "90 SECONDS").replace("WHERE", "WHERE a.x < 0 AND b.x < 0 AND")
    whole, narrow = queries(asked, PART.replace("2 SECONDS", "30 SECONDS"))
    run, found = Together([whole, narrow], pa.table({})), Counter[tuple[object, ...]]()

    def batch(second: int) -> dict[str, pa.Table]:
        new, old = rows(second, "ab", 3), rows(max(0, second - second * 7 % 60), "ab", 6)
        old = {name: table.set_column(3, "x", pa.array(range(-6, 0))) for name, table in old.items()}
        return {name: pa.concat_tables([new[name], old[name]]) for name in "ab"}

    batches = [rows(0, "abc", 3), *(batch(second) for second in range(1, 120))]
    for number, each in enumerate(batches):
        if number == 90:
            run.restart()
        found += run.step(each)["q1"]
    assert isinstance(run.slot.boxes["q0"], SharedBox)
    slices = {each.keeping for _, stored in run.slot.store.logs["b"] for each in stored.slices}
    assert {each.unwanted_by for each in slices} == {"", "a, b, c"}
    own = [{name: table for name, table in each.items() if name in "ab"} for each in batches]
    assert not (wrong := oracle.difference(found, oracle.expected(narrow, own, {}))), wrong
    assert found


@pytest.mark.parametrize("slots", [4, 8, 16])
def test_a_part_gives_a_result_once_whatever_the_grid_of_the_whole(slots: int) -> None:
    """In a dimension that no input of the part has, it uses the first part alone."""
    chain = "SELECT a.x, d.x AS z FROM a, b, c, d WHERE a.k = b.k AND b.j = c.j AND c.i = d.i WINDOW 1 SECOND"
    found = queries(chain, PART.replace("2 SECONDS", "1 SECOND"))
    run = Together(found, pa.table({}), slots)
    grids = [steering.distribution.grid for steering in run.pipeline.driver.queries.values()]
    assert grids[0].cells == grids[1].cells
    assert grids[1].fixed
    checked(run, [rows(number, count=12) for number in range(4)])
    assert isinstance(run.slot.boxes["q0"], SharedBox)


def test_a_part_comes_to_a_whole_whose_late_rows_somebody_else_keeps() -> None:
    """The fourth stream is behind: rows of a that are late for the whole are stored for who waits for it. With the part
    the sets of rows tell who is late, which those that were known before it came do not."""
    lateness = CREATE.replace("STREAM d (k BIGINT, j BIGINT, i BIGINT, x BIGINT, ts TIMESTAMP) TIME ts",
                              "STREAM d (k BIGINT, j BIGINT, i BIGINT, x BIGINT, ts TIMESTAMP) TIME ts LATENESS 20 SECONDS")
    whole = WHOLE.replace("3 SECONDS", "5 SECONDS")
    behind = "SELECT m.x, n.x AS y FROM a AS m, d AS n WHERE m.k = n.k WINDOW 5 SECONDS"
    *first, part = queries(whole, whole.replace("WHERE", "WHERE a.x > 4 AND"), behind, PART, create=lateness)
    run, whole_found = Together(first, pa.table({})), Counter[tuple[object, ...]]()
    batches = [rows(5), rows(3, "a", 20), rows(6, "bc"), rows(7, "abc")]
    for number, each in enumerate([*batches, {}]):
        if number == 2:
            run.pipeline.add(part)
            run.queries.append(part)
        whole_found += run.step(each)["q0"]
    box = run.slot.boxes["q0"]
    assert isinstance(box, SharedBox)
    assert set(box.members) == {"q0", "q1", "q3"}
    own = [{name: table for name, table in each.items() if name in "abc"} for each in batches]
    assert not (wrong := oracle.difference(whole_found, oracle.expected(first[0], own, {}))), wrong


def test_a_part_whose_streams_are_idle_is_behind_the_whole() -> None:
    """While a and b are idle, the watermark of the whole follows c, that of the part stays. So rows of a and b that come
    then are late for the whole, and are the part's: in the batch in which they come, and when they are looked up later."""
    now, idle = 0, CREATE.replace("TIME ts", "TIME ts IDLE 5 SECONDS")
    whole, part = queries(WHOLE, PART, create=idle)
    run, found = LocalPipeline([whole, part], MemoryFilesystem(), clock=lambda: float(now)), Counter[tuple[object, ...]]()
    batches = [(0, rows(1, "abc", 9)), (10, rows(20, "c", 9)), (14, rows(2, "ab", 9)), (15, rows(3, "ab", 9)), (16, {})]
    late = []
    for number, (now, each) in enumerate(batches):  # noqa: B007
        steps = run.step(number, each)
        found += oracle.bag(steps[part.name].results)
        late.append([steps[query.name].statistics.sources["a"].late_rows for query in (whole, part) if "a" in each])
    assert late == [[0, 0], [], [9, 0], [9, 0], []]
    slot = run.slot()
    assert slot is not None
    assert isinstance(slot.boxes[whole.name], SharedBox)
    own = [{name: table for name, table in each.items() if name in "ab"} for _, each in batches]
    assert not (wrong := oracle.difference(found, oracle.expected(part, own, {}))), wrong


IDLE = CREATE.replace("TIME ts", "TIME ts IDLE 5 SECONDS")
CHAIN = "SELECT a.x, d.x AS z FROM a, b, c, d WHERE a.k = b.k AND b.j = c.j AND c.i = d.i WINDOW 2 SECONDS"


def test_rows_that_a_part_does_not_have_do_not_wait_for_it_while_its_streams_are_idle() -> None:
    """Rows of a and b come no more, so the watermark of the part stands still, and that of the whole follows c."""
    now, made = 0, queries(WHOLE, PART, create=IDLE)
    run, most = LocalPipeline(made, MemoryFilesystem(), clock=lambda: float(now)), 0
    for number in range(30):
        now = 2 * number
        run.step(number, rows(now, "abc" if number < 3 else "c", 5))
        slot = run.slot()
        assert slot is not None
        shown = (index.rows for key, index in slot.store.indexes.items() if str(key).startswith("c "))
        most = max(most, slot.store.logs["c"].rows, *shown)
    assert isinstance(slot.boxes["q0"], SharedBox)
    assert most <= 35, "those of the seven batches in which a and b are not yet idle"


def test_views_that_a_part_does_not_have_and_ways_to_other_plans_do_not_wait_for_it() -> None:
    """Rows of c and d come, those of a and b do not: the view of c and d loses what has ended, and a parallel track ends."""
    now, made = 0, queries(CHAIN, PART, create=IDLE)
    run = LocalPipeline(made, MemoryFilesystem(), clock=lambda: float(now), plans={"q0": "((a b) (c d))"})
    most, plan = 0, ""
    for number in range(24):
        now = 2 * number
        run.step(number, rows(now, "abcd" if number < 3 else "cd", 5))
        if number == 10:
            run.change("q0", "(((a b) c) d)", Strategy.PARALLEL_TRACK)
        slot = run.slot()
        assert slot is not None
        assert isinstance(slot.boxes["q0"], SharedBox)
        most = max(most, *(view.rows for view in slot.store.views.values()))
        plan = str(run.driver.queries["q0"].execution.plan)
    assert most <= 60, "those of the seven batches in which a and b are not yet idle"
    assert plan == "(((a b) c) d)"


@pytest.mark.parametrize("strategy", list(Strategy))
def test_a_part_gives_a_result_once_while_views_of_its_inputs_are_computed_anew(strategy: Strategy) -> None:
    run, found = Together(queries(WHOLE, PART), pa.table({})), Counter[tuple[object, ...]]()
    batches = [rows(number, "abc", 12) for number in range(9)]
    for number, each in enumerate([*batches, {}]):
        if number in (2, 4):
            run.pipeline.change("q0", "(a b c)" if number == 2 else "((a b) c)", strategy)
        found += run.step(each)["q1"]
        assert set(run.slot.boxes) == {"q0"}
    own = [{name: table for name, table in each.items() if name in "ab"} for each in batches]
    assert not (wrong := oracle.difference(found, oracle.expected(run.queries[1], own, {}))), wrong


def test_what_only_a_part_wants_goes_no_further() -> None:
    """No trade is the whole's: nothing that has met one is looked up in the third stream."""
    made = queries(WHOLE.replace("WHERE", "WHERE a.x < 0 AND"), PART)
    pipeline, probes = LocalPipeline(made, MemoryFilesystem()), Counter[str]()
    for number in range(3):
        for step in pipeline.step(number, rows(number, "abc")).values():
            for each in step.statistics.steps:
                probes[each.target] += each.probes
    assert probes["a"] == probes["b"] == 3 * 40
    assert not probes["c"]


@pytest.mark.parametrize("history", [False, True])
def test_who_comes_takes_over_a_view_that_has_all_it_wants(history: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows are kept for the sake of a query by itself, the view of a and b for two others who want few of them. Who
    comes wants all; if it comes with history, of the rows that are there too: then the view is computed anew."""
    taken = list[ViewKey]()
    inherit = Store.inherit_view
    monkeypatch.setattr(Store, "inherit_view", lambda store, old, new: (taken.append(new), inherit(store, old, new)))
    wheres = (WHOLE.replace("WHERE", f"WHERE a.x {few} AND") for few in ("> 10", "< 3"))
    *first, comes = queries(*wheres, WHOLE, WHOLE)
    run = Together(first, pa.table({}), companies={"q0": "", "q1": "", "q2": "itself"})
    found: oracle.Bag = Counter()
    batches = [rows(number, "abc", 12) for number in range(5)]
    for number, each in enumerate([*batches, {}]):
        if number == 2:
            assert not taken
            run.pipeline.add(comes, history=history)
            coming = run.pipeline.driver.coming[comes.name].query
            coming.execution = replace(coming.execution, company="")
            run.queries.append(comes)
        found += run.step(each).get(comes.name, Counter())
    assert {name: set(box.members) for name, box in run.slot.boxes.items() if isinstance(box, SharedBox)} == {
        min(run.slot.boxes): {"q0", "q1", "q3"}
    }
    assert bool(taken) == (not history)
    since = run.pipeline.driver.queries[comes.name].since
    assert since == (0 if history else 2)
    wanted = oracle.expected_of_stay(comes, batches, {}, 2, since, True)
    assert not (wrong := oracle.difference(found, wanted)), wrong


FOUND = [
    ("members that all came later have a predicate whose column older rows lack", 60153, 2, 2, 3,
     [(9, "plan of all", 3, 71), (4, "add", 3, 71), (2, "history", 7, 71), (9, "restart", 5, 36), (8, "add", 6, 8),
      (4, "plan", 2, 62), (7, "alter", 4, 73), (7, "plan of all", 2, 30)], [0]),
    ("a query takes the place of one, and asks for more", 60185, 2, 4, 1,
     [(4, "add", 7, 36), (3, "plan of all", 3, 31), (9, "history", 3, 37), (8, "plan of all", 0, 32), (3, "leave", 7, 83),
      (1, "history", 7, 51), (9, "alter", 0, 27)], [1, 0, 0, 1, 1]),
    ("the larger join leaves, by whose columns a part was spread", 50255, 4, 8, 1,
     [(6, "leave", 0, 42), (5, "add", 2, 21), (7, "add", 1, 11), (2, "plan of all", 4, 15), (4, "plan", 5, 53),
      (5, "plan", 5, 29), (4, "history", 0, 52), (8, "plan of all", 4, 74), (4, "alter", 5, 46)], [0, 0]),
]  # fmt: skip
"""Cases that random runs have found."""


@pytest.mark.parametrize(("why", "seed", "queries_", "slots", "first", "changes", "turns"), FOUND)
def test_what_random_cases_have_found(
    why: str, seed: int, queries_: int, slots: int, first: int, changes: list[tuple[int, str, int, int]], turns: list[int]
) -> None:
    check_coming(Contained(seed, queries_, 12), slots, first, changes, turns)


def test_two_views_of_one_query_that_hold_the_same() -> None:
    """A stream stands in FROM four times: both views have the same rows, which become visible to each in turn."""
    four = "SELECT m.x, n.x AS y, o.x AS z, p.x AS w FROM a AS m, a AS n, a AS o, a AS p WHERE {keys} WINDOW 2 SECONDS"
    run = Together(queries(four.format(keys="m.k = n.k AND n.k = o.k AND o.k = p.k")), pa.table({}))
    run.pipeline.change("q0", "((m n) (o p))")
    found: oracle.Bag = Counter()
    batches = [rows(number, "a", 12) for number in range(4)]
    for number, each in enumerate([*batches, {}]):
        if number == 2:
            run.restart()
        found += run.step(each)["q0"]
    assert not (wrong := oracle.difference(found, oracle.expected(run.queries[0], batches, {}))), wrong
