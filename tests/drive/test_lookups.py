"""Tables that are looked up in a database: every row of a stream meets the table as its batch found it, and no other.

The oracle knows no lookup. Its streams have a column with the number of their batch, its tables all versions of their rows,
each with the batch that found it, and its queries ask that both are equal for the input that holds the key.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

from anabranch.drive.local import LocalPipeline
from anabranch.errors import DatabaseError, SqlError, UnsupportedSqlError
from anabranch.plan.lookups import looked_up
from anabranch.plan.migration import Strategy
from anabranch.plan.query import Query
from anabranch.plan.verify import verify_rewritten
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.fake_database import FakeDatabase
from tests.support.faulty import Crash, Fault, FaultyFilesystem

STREAMS = """
CREATE STREAM orders (id INT, customer BIGINT, place STRING, amount INT, ts TIMESTAMP{batch}) TIME ts LATENESS 2 SECONDS;
CREATE STREAM payments (order_id INT, customer BIGINT, region STRING, ts TIMESTAMP{batch}) TIME ts LATENESS 2 SECONDS;
"""
IN_DATABASE = """
CREATE TABLE customers FROM DATABASE crm TABLE 'customers';
CREATE TABLE regions FROM DATABASE crm TABLE 'regions' STATIC;
"""
STORED = """
CREATE TABLE customers (id INT, region STRING, least BIGINT, name STRING, version BIGINT);
CREATE TABLE regions (code STRING, rate DOUBLE, version BIGINT);
"""
TYPES = {
    "customers": pa.schema(
        [("id", pa.int32()), ("region", pa.string()), ("least", pa.int64()), ("name", pa.string())]
    ),
    "regions": pa.schema([("code", pa.string()), ("rate", pa.float64())]),
}


@dataclass(frozen=True)
class Case:
    """A query, and which input holds the key of each table; what is found decides where rows go that it joins with."""

    sql: str
    holders: dict[str, str]


CASES = {
    "one stream": Case("SELECT o.id, c.name FROM orders [NOW] o, customers c WHERE o.customer = c.id", {"c": "o"}),
    "everything": Case(
        "SELECT * FROM orders [RANGE 3 SECONDS] o, customers c WHERE c.id = o.customer AND o.amount > 3", {"c": "o"}
    ),
    "two streams": Case(
        "SELECT o.id, p.region, c.name FROM orders [RANGE 5 SECONDS] o, customers c, payments [RANGE 5 SECONDS] p "
        "WHERE o.customer = c.id AND o.id = p.order_id AND c.region <> 'r1' AND o.amount > c.least",
        {"c": "o"},
    ),
    "joined by what is found": Case(
        "SELECT o.id, p.order_id, c.name FROM orders [RANGE 4 SECONDS] o, customers c, payments [RANGE 4 SECONDS] p "
        "WHERE o.customer = c.id AND c.region = p.region",
        {"c": "o"},
    ),
    "both streams look up": Case(
        "SELECT o.id, p.order_id, c.name, d.name AS other FROM orders [RANGE 3 SECONDS] o, customers c, "
        "payments [RANGE 3 SECONDS] p, customers d WHERE o.customer = c.id AND p.customer = d.id AND c.region = d.region",
        {"c": "o", "d": "p"},
    ),
    "both streams look up and a third": Case(
        "SELECT o.id, p.order_id, c.name, x.amount FROM orders [RANGE 3 SECONDS] o, customers c, orders [NOW] x, "
        "payments [RANGE 3 SECONDS] p, customers d WHERE o.customer = c.id AND p.customer = d.id AND c.region = d.region "
        "AND x.id = p.order_id",
        {"c": "o", "d": "p"},
    ),
    "a chain of tables": Case(
        "SELECT o.id, r.rate, p.order_id FROM orders [RANGE 3 SECONDS] o, regions r, customers c, "
        "payments [RANGE 3 SECONDS] p WHERE o.customer = c.id AND c.region = r.code AND p.order_id = o.id",
        {"c": "o", "r": "o"},
    ),
    "two keys": Case(
        "SELECT o.id, c.least FROM orders [RANGE 3 SECONDS] o, customers c, payments [RANGE 3 SECONDS] p "
        "WHERE o.customer = c.id AND o.place = c.region AND o.customer = p.customer",
        {"c": "o"},
    ),
    "a self-join": Case(
        "SELECT a.id, b.id AS other, c.name FROM orders [RANGE 2 SECONDS] a, orders [RANGE 2 SECONDS] b, customers c "
        "WHERE a.place = b.place AND c.id = a.customer",
        {"c": "a"},
    ),
    "both sides of a self-join": Case(
        "SELECT a.id, b.id AS other, c.name, d.region FROM orders [RANGE 2 SECONDS] a, orders [RANGE 2 SECONDS] b, "
        "customers c, customers d WHERE c.id = a.customer AND d.id = b.customer AND a.place = d.region",
        {"c": "a", "d": "b"},
    ),
    "groups": Case(
        "SELECT c.region, COUNT(*) AS n, SUM(o.amount) AS total FROM orders [RANGE 3 SECONDS] o, customers c "
        "WHERE o.customer = c.id GROUP BY c.region SLIDE 1 SECOND",
        {"c": "o"},
    ),
    "groups of a join": Case(
        "SELECT c.name, MAX(p.order_id) AS most FROM orders [RANGE 3 SECONDS] o, payments [RANGE 2 SECONDS] p, customers c "
        "WHERE o.customer = c.id AND o.id = p.order_id GROUP BY c.name SLIDE 2 SECONDS",
        {"c": "o"},
    ),
}  # fmt: skip


def table_rows(rng: np.random.Generator) -> dict[str, pa.Table]:
    """A version of all tables: keys come and go, stand twice, or are NULL."""
    count = int(rng.integers(0, 14))
    ids = [None if x > 7 else int(x) for x in rng.integers(0, 9, count)]
    customers = {
        "id": ids, "region": [f"r{x}" if x else None for x in rng.integers(0, 4, count)],
        "least": rng.integers(0, 9, count), "name": [f"n{x}" for x in rng.integers(0, 1000, count)],
    }  # fmt: skip
    codes = [f"r{x}" for x in rng.integers(0, 4, 5)]
    regions = {"code": codes, "rate": rng.random(5)}
    return {"customers": pa.table(customers, TYPES["customers"]), "regions": pa.table(regions, TYPES["regions"])}


def batches(rng: np.random.Generator, count: int, size: int) -> list[dict[str, pa.Table]]:
    """Rows of both streams: some late, some without a key."""
    found = []
    for batch in range(count):
        def times(rows: int, batch: int = batch) -> pa.Array:
            return pa.array(1_000_000 * (2 * batch + rng.integers(-5, 3, rows)) + 10_000_000, pa.timestamp("us"))

        def some(rows: int, upper: int) -> list[int | None]:
            return [None if x == upper else int(x) for x in rng.integers(0, upper + 1, rows)]

        n, m = (int(x) for x in rng.integers(1, size, 2))
        orders = pa.table({
            "id": pa.array(some(n, 12), pa.int32()), "customer": pa.array(some(n, 9), pa.int64()),
            "place": [f"r{x}" for x in rng.integers(0, 4, n)], "amount": pa.array(rng.integers(0, 10, n), pa.int32()),
            "ts": times(n),
        })  # fmt: skip
        payments = pa.table({
            "order_id": pa.array(some(m, 12), pa.int32()), "customer": pa.array(some(m, 9), pa.int64()),
            "region": [f"r{x}" for x in rng.integers(0, 4, m)], "ts": times(m),
        })  # fmt: skip
        found.append({"orders": orders, "payments": payments})
    return found


def bound(case: Case, name: str = "q") -> Query:
    text = STREAMS.format(batch="") + IN_DATABASE + f"CREATE QUERY {name} AS {case.sql}"
    query = parse_script(text, describe=lambda _, table: [(f.name, f.type) for f in TYPES[table]]).queries[0].query
    verify_rewritten(query)
    return query


def feed(query: Query, rows: dict[str, pa.Table]) -> dict[str, pa.Table]:
    read = {source.name for source in query.declared_sources}
    return {name: table for name, table in rows.items() if name in read}


def expected(case: Case, given: list[dict[str, pa.Table]], versions: list[dict[str, pa.Table]]) -> oracle.Bag:
    """What the oracle says, if batch n has found the tables as `versions[n]` has them."""
    aliases = {"c": "customers", "d": "customers", "r": "regions"}
    asked = " AND ".join(f"{table}.version = {holder}.batch" for table, holder in case.holders.items())
    head, where, tail = case.sql.partition("WHERE ")
    sql = f"{head}{where}{asked} AND {tail}"
    text = STREAMS.format(batch=", batch BIGINT") + STORED + f"CREATE QUERY q AS {sql}"
    query = parse_script(text).queries[0].query
    read = {s.name for s in query.base_sources}
    numbered = [
        {name: t.append_column("batch", pa.array([n] * t.num_rows, pa.int64())) for name, t in rows.items() if name in read}
        for n, rows in enumerate(given)
    ]  # fmt: skip
    tables = {
        table: pa.concat_tables(
            v[table].append_column("version", pa.array([n] * v[table].num_rows, pa.int64())) for n, v in enumerate(versions)
        )
        for table in {aliases[a] for a in case.holders}
    }
    return oracle.expected(query, numbered, tables)


def select_all(case: Case) -> Case:
    """`*` would name columns twice: they are listed."""
    if "SELECT *" not in case.sql:
        return case
    orders = ("id", "customer", "place", "amount", "ts")
    listed = [f"o.{n} AS o_{n}" for n in orders] + [f"c.{n} AS c_{n}" for n in TYPES["customers"].names]
    return Case(case.sql.replace("*", ", ".join(listed), 1), case.holders)


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(2))
def test_each_row_meets_what_its_batch_found(name: str, slots: int, seed: int) -> None:
    check_case(name, slots, seed)


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_each_row_meets_what_its_batch_found_at_length(name: str) -> None:
    for seed in range(2, 40):
        check_case(name, 1 + seed % 4, seed)


def check_case(name: str, slots: int, seed: int) -> None:
    rng, case = np.random.default_rng([seed, slots, len(name)]), select_all(CASES[name])
    query, given = bound(case), batches(rng, 7, 14)
    assert looked_up(query)
    database = FakeDatabase("crm", {})
    disk, found, versions = MemoryFilesystem(), Counter[tuple[object, ...]](), []
    pipeline = LocalPipeline([query], disk, slots=slots, databases=database)
    for batch, rows in enumerate([*given, {}, {}]):
        if batch and rng.random() < 0.4:
            pipeline = LocalPipeline([query], disk, slots=slots, databases=database)
        database.tables = table_rows(rng)
        versions.append(dict(database.tables))
        found += oracle.bag(pipeline.step(batch, feed(query, rows))["q"].results)
    assert (theirs := expected(case, given, versions)) == found, oracle.difference(found, theirs)
    assert theirs, "a case without results tells nothing"


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


@pytest.mark.parametrize("kind", ["lose", "tear", "crash_after"])
def test_a_driver_that_dies_at_any_put(kind: str) -> None:
    """A batch without commit looks up again, and finds what is there then; one with a commit does not."""
    case, slots = CASES["joined by what is found"], 2
    query, given = bound(case), batches(np.random.default_rng(5), 3, 8)

    def run(fault: int | None) -> int:
        rng = np.random.default_rng(6)
        database, disk = FakeDatabase("crm", table_rows(rng)), FaultyFilesystem(MemoryFilesystem())
        disk.plan = {} if fault is None else {fault: Fault(kind)}  # type: ignore[arg-type]
        results: dict[int, oracle.Bag] = {}
        versions: dict[int, dict[str, pa.Table]] = {}
        deaths = 0
        pipeline: LocalPipeline | None = None
        while len(results) <= len(given):
            try:
                if pipeline is None:
                    pipeline = LocalPipeline([query], disk, slots=slots, databases=database)
                batch = pipeline.last_batch + 1
                if batch and batch - 1 not in results:  # committed, and its results did not arrive: they are in no file here
                    return len(disk.puts)
                database.tables = versions[batch] = table_rows(rng)
                results[batch] = oracle.bag(pipeline.step(batch, given[batch] if batch < len(given) else {})["q"].results)
            except Crash:
                deaths, pipeline = deaths + 1, None
        assert deaths <= 1
        ours = sum(results.values(), Counter[tuple[object, ...]]())
        assert expected(case, given, [versions[n] for n in range(len(given) + 1)]) == ours, fault
        return len(disk.puts)

    for fault in range(run(None)):
        run(fault)


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
    assert (told.border.statements, told.border.rows_in) == (1, 1)
    assert told.cpu_ns["wall lookup"] > 0
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
