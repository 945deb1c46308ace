"""Tables that are looked up in a database: every row of a stream meets the table as its batch found it, and no other."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from anabranch.drive.local import LocalPipeline
from anabranch.errors import DatabaseError, SqlError, UnsupportedSqlError
from anabranch.place.databases.protocol import TableSize
from anabranch.place.reading import MOST_BYTES, LookupCosts
from anabranch.plan.lookups import looked_up
from anabranch.plan.migration import Strategy
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.cases import Part
from tests.support.fake_database import FakeDatabase
from tests.support.faulty import Fault
from tests.support.lookups import CASES, TYPES, Case, batches, bound, expected, feed, select_all, table_rows
from tests.support.simulation import Simulation


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(2))
def test_each_row_meets_what_its_batch_found(name: str, slots: int, seed: int) -> None:
    check_case(name, slots, seed)


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_each_row_meets_what_its_batch_found_at_length(name: str) -> None:
    """Of many random cases some have no results."""
    for seed in range(2, 40):
        check_case(name, 1 + seed % 4, seed, (None, *COSTS.values())[seed % 4], least=0)


COSTS = {
    "tables are read whole at once": LookupCosts(0.0, key_s=1.0, row_s=0.0),
    "tables are read whole where there are many keys": LookupCosts(0.0, key_s=0.1, row_s=0.04),
    "lookups are cheaper": LookupCosts(0.0, key_s=1e-9, row_s=0.1),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("name", ["two streams", "joined by what is found", "a chain of tables", "two keys", "groups"])
def test_tables_that_are_read_whole_give_the_same(name: str, cost: str) -> None:
    database = check_case(name, 3, 0, COSTS[cost])
    if cost == "tables are read whole at once":
        assert database.reads
        assert not database.lookups
    if cost == "lookups are cheaper":
        assert not database.reads


def check_case(
    name: str, slots: int, seed: int, costs: LookupCosts | None = None, hint: str = "", least: int = 1
) -> FakeDatabase:
    """There are so many results at least. With `costs`, or by a hint, tables may be read whole; `regions` is STATIC, may be
    kept then, and does not change."""
    rng, case = np.random.default_rng([seed, slots, len(name)]), select_all(CASES[name])
    query, given = bound(hinted(case, hint)), batches(rng, 7, 14)
    assert looked_up(query)
    database = FakeDatabase("crm", {})
    disk, found, versions = MemoryFilesystem(), Counter[tuple[object, ...]](), list[dict[str, pa.Table]]()
    known = {"crm": costs} if costs is not None else {}
    pipeline = LocalPipeline([query], disk, slots=slots, databases=database, lookup_costs=known)
    for batch, rows in enumerate([*given, {}, {}]):
        if batch and rng.random() < 0.4:
            pipeline = LocalPipeline([query], disk, slots=slots, databases=database, lookup_costs=known)
        database.tables = table_rows(rng)
        if (costs is not None or hint) and versions:
            database.tables["regions"] = versions[0]["regions"]
        versions.append(dict(database.tables))
        found += oracle.bag(pipeline.step(batch, feed(query, rows))["q"].results)
    assert (theirs := expected(case, given, versions)) == found, oracle.difference(found, theirs)
    assert len(theirs) >= least, "a case without results tells nothing"
    return database


def hinted(case: Case, hint: str) -> Case:
    return replace(case, sql=case.sql.replace("SELECT", f"SELECT {hint}", 1))


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["two streams", "a chain of tables", "a self-join", "groups"])
@pytest.mark.parametrize(("place", "cost"), [
    ("engine", "lookups are cheaper"), ("engine", ""), ("database", "tables are read whole at once"),
    ("CRM", "tables are read whole at once"),
])  # fmt: skip
def test_a_hint_says_whether_a_table_is_looked_up_or_read_whole_and_gives_the_same(name: str, place: str, cost: str) -> None:
    """Whatever it costs, and if nothing was measured; the last of a chain has no hint."""
    database = check_case(name, 3, 0, COSTS.get(cost), f"/*+ PLACE(c, {place}) */")
    assert ("customers" in database.reads) == (place == "engine")
    assert any(wanted.table == "customers" for wanted, *_ in database.lookups) == (place != "engine")


def test_a_table_that_does_not_change_is_shipped_at_once_if_a_hint_says_so() -> None:
    case = Case("SELECT o.id, r.rate FROM orders [NOW] o, regions r WHERE o.place = r.code", {"r": "o"})
    query, rng = bound(hinted(case, "/*+ PLACE(r, engine) */")), np.random.default_rng(1)
    database, given = FakeDatabase("crm", table_rows(rng)), batches(rng, 4, 9)
    pipeline = LocalPipeline([query], MemoryFilesystem(), databases=database)
    found = Counter[tuple[object, ...]]()
    for batch, rows in enumerate(given):
        found += oracle.bag(pipeline.step(batch, feed(query, rows))["q"].results)
    assert (database.reads, database.lookups) == (["regions"], [])
    assert found == expected(case, given, [dict(database.tables)] * len(given))


def test_a_table_that_is_too_large_is_looked_up_whatever_a_hint_says(monkeypatch: pytest.MonkeyPatch) -> None:
    query, rng = bound(hinted(CASES["one stream"], "/*+ PLACE(c, engine) */")), np.random.default_rng(1)
    for size in (None, TableSize(10, MOST_BYTES + 1)):
        database = FakeDatabase("crm", table_rows(rng))
        monkeypatch.setattr(database, "size", lambda table, size=size: size)
        LocalPipeline([query], MemoryFilesystem(), databases=database).step(0, feed(query, batches(rng, 1, 9)[0]))
        assert database.lookups
        assert not database.reads


@pytest.mark.parametrize(("first", "second", "reads"), [
    ("", "engine", True), ("engine", "database", True), ("database", "engine", False), ("", "", False),
])  # fmt: skip
def test_of_queries_that_look_up_for_the_same_rows_the_first_hint_counts(first: str, second: str, reads: bool) -> None:
    case, rng = CASES["one stream"], np.random.default_rng(1)
    hints = [f"/*+ PLACE(c, {place}) */" if place else "" for place in (first, second)]
    queries = [bound(hinted(case, hint), name) for hint, name in zip(hints, ("a", "b"), strict=True)]
    assert looked_up(queries[0]) == looked_up(queries[1])
    database, given = FakeDatabase("crm", table_rows(rng)), batches(rng, 3, 9)
    pipeline = LocalPipeline(queries, MemoryFilesystem(), databases=database)
    found = {"a": Counter[tuple[object, ...]](), "b": Counter[tuple[object, ...]]()}
    for batch, rows in enumerate(given):
        for name, step in pipeline.step(batch, feed(queries[0], rows)).items():
            found[name] += oracle.bag(step.results)
    assert bool(database.reads) == reads
    assert bool(database.lookups) != reads
    assert found["a"] == found["b"] == expected(case, given, [dict(database.tables)] * len(given))


def test_another_hint_goes_on_with_the_state() -> None:
    case, rng, disk = CASES["two streams"], np.random.default_rng(3), MemoryFilesystem()
    database, given = FakeDatabase("crm", {}), batches(rng, 8, 14)
    found, versions = Counter[tuple[object, ...]](), list[dict[str, pa.Table]]()
    for batch, rows in enumerate([*given, {}, {}]):
        place = "engine" if batch % 4 < 2 else "database"
        query = bound(hinted(case, f"/*+ PLACE(c, {place}) */"))
        if batch % 2 == 0:
            pipeline = LocalPipeline([query], disk, slots=2, databases=database)
        database.tables, before = table_rows(rng), (len(database.reads), len(database.lookups))
        versions.append(dict(database.tables))
        found += oracle.bag(pipeline.step(batch, feed(query, rows))["q"].results)
        assert (len(database.lookups) == before[1]) if place == "engine" else (len(database.reads) == before[0])
    assert (theirs := expected(case, given, versions)) == found, oracle.difference(found, theirs)
    assert theirs


def test_a_table_that_does_not_change_is_shipped_once_lookups_have_taken_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading it takes 1 s by what was measured, and a lookup of a key 0.4 s, by that and by the clock: the third lookup
    would be more."""
    case = Case("SELECT o.id, r.rate FROM orders [NOW] o, regions r WHERE o.place = r.code", {"r": "o"})
    query, rng = bound(case), np.random.default_rng(1)
    database = FakeDatabase("crm", table_rows(rng))
    size = database.tables["regions"].num_rows
    costs = {"crm": LookupCosts(0.0, key_s=0.4, row_s=1.0 / size)}
    disk, clock = MemoryFilesystem(), [0.0]
    monkeypatch.setattr("anabranch.drive.lookups.perf_counter", lambda: clock[0])

    def take_time() -> None:
        clock[0] += 0.4

    database.before_lookup = take_time
    pipeline = LocalPipeline([query], disk, databases=database, lookup_costs=costs)
    one = batches(rng, 1, 8)[0]["orders"].slice(0, 1)
    times = [pa.array([1_000_000 * n], pa.timestamp("us")) for n in range(6)]
    given = [{"orders": one.set_column(4, "ts", each).set_column(2, "place", pa.array([f"r{n % 4}"]))}
             for n, each in enumerate(times)]  # fmt: skip
    found, borders = Counter[tuple[object, ...]](), []
    for batch, rows in enumerate(given):
        found += oracle.bag(pipeline.step(batch, rows)["q"].results)
        borders.append(pipeline.commit.queries["q"].statistics.borders)  # type: ignore[union-attr]
    assert (len(database.lookups), database.reads) == (2, ["regions"])
    assert [sum(border.rows_back for border in each.values()) > 0 for each in borders[3:]] == [False] * 3, "it is kept"
    (whole,) = borders[2].values()
    assert (whole.rows_sent, whole.rows_back) == (0, size)
    assert expected(case, given, [dict(database.tables)] * 6) == found
    other = LocalPipeline([query], disk, databases=database, lookup_costs=costs)
    other.step(6, given[5])
    assert len(database.lookups) == 3, "a worker that knows nothing looks up"


def test_a_table_that_is_too_large_or_of_unknown_size_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    query, rng = bound(CASES["one stream"]), np.random.default_rng(1)
    for size in (None, TableSize(10, MOST_BYTES + 1), TableSize(10**9, 1000)):
        database = FakeDatabase("crm", table_rows(rng))
        monkeypatch.setattr(database, "size", lambda table, size=size: size)
        costs = {"crm": LookupCosts(0.0, key_s=1e3, row_s=1e-6)}
        pipeline = LocalPipeline([query], MemoryFilesystem(), databases=database, lookup_costs=costs)
        pipeline.step(0, feed(query, batches(rng, 1, 9)[0]))
        assert database.lookups
        assert not database.reads, size


@pytest.mark.parametrize(("name", "bound_in"), [("one stream", "lookups"), ("a table that does not change", "shipped")])
def test_a_table_that_is_larger_than_its_database_says_is_looked_up(
    monkeypatch: pytest.MonkeyPatch, name: str, bound_in: str
) -> None:
    """It has grown, or is compressed there. A worker reads no more of it than it has room for."""
    sql = "SELECT o.id, r.rate FROM orders [NOW] o, regions r WHERE o.place = r.code"
    case, rng, found = CASES.get(name, Case(sql, {"r": "o"})), np.random.default_rng(1), Counter[tuple[object, ...]]()
    query, database, given = bound(case), FakeDatabase("crm", table_rows(rng)), batches(rng, 3, 30)
    monkeypatch.setattr(database, "size", lambda table: TableSize(1, 1))
    monkeypatch.setattr(f"anabranch.drive.{bound_in}.MOST_BYTES", 16)
    costs = {"crm": COSTS["tables are read whole at once"]}
    pipeline = LocalPipeline([query], MemoryFilesystem(), databases=database, lookup_costs=costs)
    for batch, rows in enumerate(given):
        found += oracle.bag(pipeline.step(batch, feed(query, rows))["q"].results)
    assert (len(database.reads), len(database.lookups)) == (1, 3), "it is not tried again at once"
    assert found == expected(case, given, [dict(database.tables)] * 3)


def test_a_table_that_takes_longer_to_read_than_was_measured_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading 200 rows was to take 0.2 s, and a lookup of a key 1 s; reading takes 100 s by the clock."""
    query, clock = bound(CASES["one stream"]), [0.0]
    ids = pa.array(np.arange(200), pa.int32())
    customers = pa.table([ids, ids.cast(pa.string()), ids.cast(pa.int64()), ids.cast(pa.string())], TYPES["customers"].names)
    database = FakeDatabase("crm", {"customers": customers})
    monkeypatch.setattr("anabranch.drive.lookups.perf_counter", lambda: clock[0])

    def take_time() -> None:
        clock[0] += 100.0

    database.before_lookup = take_time
    costs = {"crm": LookupCosts(0.0, key_s=1.0, row_s=0.001)}
    pipeline = LocalPipeline([query], MemoryFilesystem(), databases=database, lookup_costs=costs)
    for batch, rows in enumerate(batches(np.random.default_rng(4), 3, 30)):
        pipeline.step(batch, feed(query, rows))
    assert (len(database.reads), len(database.lookups)) == (1, 2)


@pytest.mark.parametrize("way", ["lookup", "read"])
def test_what_a_table_takes_is_learned_from_batches_and_known_after_a_restart(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """What the calibrated costs prefer takes ten times as long by the clock, the other way as long as they say: after some
    batches rows come that way, and at once in a run that goes on."""
    query, clock, ids = bound(CASES["one stream"]), [0.0], pa.array(np.arange(200), pa.int32())
    customers = pa.table([ids, ids.cast(pa.string()), ids.cast(pa.int64()), ids.cast(pa.string())], TYPES["customers"].names)
    database, disk = FakeDatabase("crm", {"customers": customers}), MemoryFilesystem()
    costs = {"lookup": LookupCosts(0.01, 0.001, 0.002), "read": LookupCosts(0.01, 0.002, 0.001)}[way]
    monkeypatch.setattr("anabranch.drive.lookups.perf_counter", lambda: clock[0])
    for each, seconds in (("lookup", costs.lookup_s(200)), ("read", costs.whole_s(200))):
        inner = getattr(database, each)

        def slowly(
            *given: Any, inner: Any = inner, seconds: float = seconds * (10 if each == way else 1), **named: Any
        ) -> pa.Table:
            clock[0] += seconds
            return inner(*given, **named)

        monkeypatch.setattr(database, each, slowly)
    one = batches(np.random.default_rng(4), 1, 8)[0]["orders"].slice(0, 1).take(pa.array([0] * 200))
    rows = {"orders": one.set_column(1, "customer", ids.cast(pa.int64()))}
    pipeline = LocalPipeline([query], disk, databases=database, lookup_costs={"crm": costs})
    for batch in range(12):
        pipeline.step(batch, feed(query, rows))
    asked = {"lookup": len(database.lookups), "read": len(database.reads)}
    assert 1 < asked[way] < 8
    assert sum(asked.values()) == 12
    pipeline = LocalPipeline([query], disk, databases=database, lookup_costs={"crm": costs})
    pipeline.step(12, feed(query, rows))
    then = {"lookup": len(database.lookups), "read": len(database.reads)}
    assert then[way] == asked[way]


def test_few_keys_tell_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    query, clock, rng = bound(CASES["one stream"]), [0.0], np.random.default_rng(1)
    database = FakeDatabase("crm", table_rows(rng))
    monkeypatch.setattr("anabranch.drive.lookups.perf_counter", lambda: clock[0])

    def take_time() -> None:
        clock[0] += 100.0

    database.before_lookup = take_time
    costs = {"crm": LookupCosts(0.01, key_s=1e-6, row_s=1.0)}
    pipeline = LocalPipeline([query], MemoryFilesystem(), databases=database, lookup_costs=costs)
    for batch, rows in enumerate(batches(rng, 3, 30)):
        pipeline.step(batch, feed(query, rows))
    assert database.lookups
    assert pipeline.driver.queries["q"].paces == {}


def test_a_table_that_cannot_be_read_whole_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, case = np.random.default_rng(1), CASES["joined by what is found"]
    query, given = bound(case), batches(rng, 3, 30)
    database, tried = FakeDatabase("crm", table_rows(rng)), []

    def slow(*given: object, **named: object) -> pa.Table:
        tried.append(given)
        raise DatabaseError("the database crm took longer than 1 s")

    monkeypatch.setattr(database, "read", slow)
    costs = {"crm": COSTS["tables are read whole at once"]}
    pipeline = LocalPipeline([query], MemoryFilesystem(), databases=database, lookup_costs=costs)
    found = Counter[tuple[object, ...]]()
    for batch, rows in enumerate([*given, {}]):
        found += oracle.bag(pipeline.step(batch, rows)["q"].results)
    assert expected(case, given, [dict(database.tables)] * 3) == found
    assert (len(tried), len(database.lookups)) == (1, 3), "it is not tried again at once"


def test_slots_that_read_a_table_whole_read_one_snapshot() -> None:
    rng, case = np.random.default_rng(1), CASES["joined by what is found"]
    query, given = bound(case), batches(rng, 5, 30)
    database = FakeDatabase("crm", table_rows(rng))
    costs = {"crm": COSTS["tables are read whole at once"]}
    pipeline = LocalPipeline([query], MemoryFilesystem(), slots=4, databases=database, lookup_costs=costs)
    found, versions = Counter[tuple[object, ...]](), []

    def change() -> None:
        database.tables = table_rows(rng)

    database.before_lookup = change
    for batch, rows in enumerate([*given, {}]):
        versions.append(dict(database.tables))
        found += oracle.bag(pipeline.step(batch, rows)["q"].results)
    assert len(database.reads) > 2 * len(given)
    assert expected(case, given, versions) == found


def test_a_table_that_changes_between_the_tasks_of_a_batch() -> None:
    """Rows of `orders` go to every slot, for they are joined by what is found: all slots read one snapshot."""
    rng, case = np.random.default_rng(1), CASES["joined by what is found"]
    query, given = bound(case), batches(rng, 5, 30)
    database = FakeDatabase("crm", table_rows(rng))
    pipeline = LocalPipeline([query], MemoryFilesystem(), slots=4, databases=database)
    found, versions = Counter[tuple[object, ...]](), []

    def change() -> None:
        database.tables = table_rows(rng)

    database.before_lookup = change
    for batch, rows in enumerate([*given, {}]):
        versions.append(dict(database.tables))
        found += oracle.bag(pipeline.step(batch, rows)["q"].results)
    assert len({snapshot for _, _, snapshot in database.lookups}) == len(given)
    assert len(database.lookups) > 2 * len(given)
    assert expected(case, given, versions) == found


def test_rows_that_are_in_one_slot_need_no_snapshot() -> None:
    rng = np.random.default_rng(1)
    query, database = bound(CASES["two keys"]), FakeDatabase("crm", table_rows(rng))
    pipeline = LocalPipeline([query], MemoryFilesystem(), slots=4, databases=database)
    pipeline.step(0, batches(rng, 1, 30)[0])
    assert {snapshot for _, _, snapshot in database.lookups} == {None}


def simulated(case: Case, given: list[dict[str, pa.Table]], slots: int, **more: Any) -> Simulation:
    """Batches whose tables change ahead of each attempt: of each batch that counts which was committed."""
    rng, database = np.random.default_rng(6), FakeDatabase("crm", {})
    versions: dict[int, dict[str, pa.Table]] = {}

    def change(batch: int) -> None:
        database.tables = table_rows(rng)
        if not database.is_held:
            versions[batch] = dict(database.tables)

    query = bound(case)
    made = Simulation(
        [query], [feed(query, rows) for rows in given], {}, slots=slots, databases=database, before_attempt=change, **more
    )
    found = made.run()["q"]
    made.verify()
    theirs = expected(case, given, [versions[n] for n in range(len(given))])
    assert theirs == found, (more, oracle.difference(found, theirs))
    assert theirs
    return made


@pytest.mark.few(2)
@pytest.mark.parametrize("to_files", [True, False])
@pytest.mark.parametrize("kind", ["lose", "tear", "crash_after"])
def test_a_driver_that_dies_at_any_put(kind: Any, to_files: bool, part: Part) -> None:
    """A batch without commit looks up again, and finds what is there then; one with a commit is only delivered, although the
    tables have changed."""
    case, given = CASES["joined by what is found"], batches(np.random.default_rng(5), 3, 8)
    puts = len(simulated(case, given, 2, to_files=to_files).world.puts)
    again = 0
    for fault in part.of(range(puts)):
        made = simulated(case, given, 2, to_files=to_files, faults={fault: Fault(kind)})
        again += len(made.computed) > len({batch for batch, _ in made.computed})
    assert again or part.count > 1, "no batch was computed twice"


@pytest.mark.parametrize("fails", ["before", "after", "fails before", "fails after"])
def test_what_a_sink_did_not_take_is_delivered_as_it_was_found(fails: str) -> None:
    case, given = CASES["joined by what is found"], batches(np.random.default_rng(9), 4, 14)
    made = simulated(case, given, 1, to_files=False, fails={1: fails, 3: fails})
    assert not [batch for batch, is_committed in made.computed if is_committed]


@pytest.mark.parametrize("to_files", [True, False])
@pytest.mark.parametrize("name", ["one stream", "two streams", "groups of a join"])
def test_a_zombie_attempt_of_a_task_is_not_heard_of(name: str, to_files: bool) -> None:
    """Two workers attempt each task, and the table changes between them: all results are those of one attempt."""
    given = batches(np.random.default_rng(8), 5, 14)
    simulated(CASES[name], given, 1, to_files=to_files, zombies=range(9), workers=2)


def test_zombie_attempts_in_several_slots_read_the_snapshot_of_the_others() -> None:
    given = batches(np.random.default_rng(8), 5, 14)
    simulated(CASES["joined by what is found"], given, 3, to_files=True, zombies=range(9), workers=2)


def test_other_plans_find_what_was_found() -> None:
    """A plan that changes, by moving state and on a parallel track, goes on with what earlier batches have found."""
    for strategy in Strategy:
        rng, case = np.random.default_rng(3), CASES["both streams look up and a third"]
        query, given = bound(case), batches(rng, 8, 14)
        database, versions, found = FakeDatabase("crm", {}), list[dict[str, pa.Table]](), Counter[tuple[object, ...]]()
        pipeline = LocalPipeline([query], MemoryFilesystem(), {"q": "((o p) x)"}, slots=2, databases=database)
        for batch, rows in enumerate([*given, {}, {}]):
            if batch in (2, 5):
                pipeline.change("q", "(o (p x))" if batch == 2 else "(o p x)", strategy)
            database.tables = table_rows(rng)
            versions.append(dict(database.tables))
            found += oracle.bag(pipeline.step(batch, rows)["q"].results)
        assert (theirs := expected(case, given, versions)) == found
        assert theirs


def test_groups_go_below_the_join_of_what_was_found() -> None:
    rng, case = np.random.default_rng(11), CASES["groups of a join"]
    query, given = bound(case), batches(rng, 8, 14)
    database, versions, found = FakeDatabase("crm", {}), list[dict[str, pa.Table]](), Counter[tuple[object, ...]]()
    pipeline, disk = None, MemoryFilesystem()
    for batch, rows in enumerate([*given, {}, {}]):
        if pipeline is None or batch in (3, 6):
            pipeline = LocalPipeline([query], disk, slots=2, databases=database)
        if batch == 2:
            pipeline.change("q", "(o p)", groups_below="p")
        database.tables = table_rows(rng)
        versions.append(dict(database.tables))
        found += oracle.bag(pipeline.step(batch, rows)["q"].results)
    assert (theirs := expected(case, given, versions)) == found
    assert theirs


def test_what_is_counted_are_the_rows_that_came() -> None:
    case, rows = CASES["one stream"], batches(np.random.default_rng(4), 2, 30)
    query, database = bound(case), FakeDatabase("crm", {"customers": TYPES["customers"].empty_table()})
    pipeline = LocalPipeline([query], MemoryFilesystem(), databases=database)
    for batch in range(2):
        step, orders = pipeline.step(batch, feed(query, rows[batch]))["q"], rows[batch]["orders"]
        (counts,) = step.statistics.sources.values()
        assert counts.rows == orders.num_rows
        assert counts.largest_time_us == max(orders.column("ts").cast(pa.int64()).to_pylist())
        accepted = oracle.accepted(rows[: batch + 1], [looked_up(query)[0].root])
        assert counts.late_rows == accepted.late[batch]["orders"]


def test_only_useful_and_distinct_keys_are_asked_for() -> None:
    case = Case(
        "SELECT o.id, c.name FROM orders [NOW] o, customers c WHERE o.customer = c.id AND o.amount > 5", {"c": "o"}
    )
    query, database = bound(case), FakeDatabase("crm", table_rows(np.random.default_rng(0)))
    pipeline = LocalPipeline([query], MemoryFilesystem(), databases=database)
    orders = pa.table({
        "id": pa.array([1, 2, 3, 4, 5], pa.int32()), "customer": [7, 7, 8, None, 9], "place": ["x"] * 5,
        "amount": pa.array([6, 7, 1, 9, 9], pa.int32()), "ts": pa.array([1, 2, 3, 4, None], pa.timestamp("us")),
    })  # fmt: skip
    pipeline.step(0, {"orders": orders})
    ((wanted, keys, _),) = database.lookups
    assert keys.column(0).to_pylist() == [7]
    assert [name for name, _ in wanted.columns] == ["id", "name"]
    told = pipeline.commit.queries["q"].statistics  # type: ignore[union-attr]
    (border,) = told.borders.values()
    assert (border.database, border.calls, border.rows_sent, border.bytes_sent) == ("crm", 1, 1, 8)
    assert border.rows_back == sum(x == 7 for x in database.tables["customers"].column("id").to_pylist())
    assert told.cpu_ns["wall lookup"] == round(border.seconds * 1e9) > 0
    pipeline.step(1, {"orders": orders.slice(0, 0)})
    assert len(database.lookups) == 1, "no keys, no call"


def test_a_database_that_fails_fails_the_batch_which_can_run_again() -> None:
    rng, case = np.random.default_rng(2), CASES["two streams"]
    query, given = bound(case), batches(rng, 4, 14)
    database, versions, found = FakeDatabase("crm", {}), list[dict[str, pa.Table]](), Counter[tuple[object, ...]]()
    disk = MemoryFilesystem()
    pipeline = LocalPipeline([query], disk, databases=database)
    for batch, rows in enumerate([*given, {}]):
        database.tables = table_rows(rng)

        def gone() -> None:
            raise DatabaseError("the database crm is gone")

        database.before_lookup = gone
        if rows:
            with pytest.raises(DatabaseError, match="gone"):
                pipeline.step(batch, rows)
            pipeline = LocalPipeline([query], disk, databases=database)
        database.before_lookup = lambda: None
        database.tables = table_rows(rng)
        versions.append(dict(database.tables))
        found += oracle.bag(pipeline.step(batch, rows)["q"].results)
    assert expected(case, given, versions) == found


def test_queries_that_share_an_enriched_stream_and_those_that_do_not() -> None:
    """Two queries look up by one key, a third by another: each finds what its own batches found."""
    rng, names = np.random.default_rng(8), ["two streams", "joined by what is found", "two keys"]
    cases = {f"q{n}": CASES[name] for n, name in enumerate(names)}
    queries, given = [bound(case, name) for name, case in cases.items()], batches(rng, 5, 14)
    assert len({s.name for q in queries for s in looked_up(q)}) == 2
    database, versions, found = FakeDatabase("crm", {}), list[dict[str, pa.Table]](), dict[str, oracle.Bag]()
    pipeline = LocalPipeline(queries, MemoryFilesystem(), slots=2, databases=database)
    for batch, rows in enumerate([*given, {}]):
        database.tables = table_rows(rng)
        versions.append(dict(database.tables))
        for name, step in pipeline.step(batch, rows).items():
            found[name] = found.get(name, Counter()) + oracle.bag(step.results)
    for name, case in cases.items():
        assert expected(case, given, versions) == found[name], name


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT o.id FROM orders [NOW] o, customers c WHERE o.id > c.id", "no column of it equals one of a stream"),
        ("SELECT o.id FROM orders [NOW] o, customers c WHERE o.id = c.id + 1", "its key is computed"),
        ("SELECT o.id FROM orders [NOW] o, regions r WHERE o.id = r.rate", "of a type that is not compared alike"),
        (
            "SELECT g.n FROM (SELECT id, COUNT(*) AS n FROM orders [NOW] GROUP BY id) g, customers c WHERE g.id = c.id",
            "its key comes from the groups of a subquery",
        ),
    ],
)
def test_what_cannot_be_looked_up_is_refused_where_it_stands(sql: str, reason: str) -> None:
    with pytest.raises(UnsupportedSqlError, match=reason) as told:
        bound(Case(sql, {}))
    assert told.value.hint.startswith("join it by")
    assert told.value.sql.splitlines()[told.value.line - 1][told.value.column - 1 :].startswith(("customers", "regions"))


def test_tables_of_a_subquery_without_groups_are_looked_up() -> None:
    nested = "SELECT x.id, p.region FROM (SELECT o.id, c.name FROM orders [RANGE 1 SECOND] o, customers c WHERE "
    nested += "o.customer = c.id) x, payments [RANGE 1 SECOND] p WHERE x.id = p.order_id"
    assert [s.table.name for s in looked_up(bound(Case(nested, {})))] == ["customers"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CREATE TABLE t FROM 'x.csv'", "expected DATABASE"),
        ("CREATE TABLE t FROM DATABASE crm", "expected TABLE"),
        ("CREATE TABLE t FROM DATABASE crm TABLE t", "name of the table in '…'"),
        ("CREATE TABLE t FROM DATABASE crm TABLE 't' STATIC CURRENT", "CURRENT stands beside STATIC"),
        ("CREATE TABLE t FROM DATABASE crm TABLE 't' REFRESH 0 SECONDS", "all the time"),
        ("CREATE TABLE t FROM DATABASE crm TABLE 't' NEVER", "expected STATIC, CURRENT, REFRESH"),
        ("CREATE TABLE t FROM DATABASE crm TABLE 'nowhere'", "there is no table nowhere"),
    ],
)
def test_mistakes_in_declaring_a_table_are_shown_where_they_are(text: str, message: str) -> None:
    def describe(database: str, table: str) -> list[tuple[str, pa.DataType]]:
        raise DatabaseError(f"there is no table {table} in the database {database}")

    with pytest.raises(SqlError, match=message) as told:
        parse_script(text, describe=describe)
    assert told.value.line == 1
