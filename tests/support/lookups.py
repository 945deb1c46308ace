"""Queries that look tables up in a database, and what the oracle says of them.

The oracle knows no lookup. Its streams have a column with the number of their batch, its tables all versions of their rows,
each with the batch that found it, and its queries ask that both are equal for the input that holds the key.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from anabranch.plan.query import Query
from anabranch.plan.verify import verify_rewritten
from anabranch.sql import parse_script
from tests.support import oracle

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
