"""How keys come to PostgreSQL to be looked up: as array parameters, or in a temporary relation.

    python -m bench.keys [--quick] [--table-rows 2000000] [--keys 100 1000 10000 100000] [--pairs 9]

A PostgreSQL of our own (`bench.postgres`) has a table with an index on its key, of one column or of two. Distinct keys, half
of which it has, are looked up over one connection of ADBC, and the rows found come back as Arrow:

- `array`: one array parameter for each key column, unnested and joined (`anabranch.place.databases.postgresql`);
- `relation`: a temporary table made once, emptied, filled by COPY from Arrow (`adbc_ingest`) and joined, in one transaction;
- `analysed`: the same, with ANALYZE before the join, so that the planner knows how many keys there are.

Each way is run twice uncounted, and gives the same rows. Then they take turns; a figure is the median over the turns of the
time, by the clock, by that of `array` in the same turn, and beside it the least and the most of these. A temporary table
also needs the right to make one (TEMP), a transaction that may write, and a server that is no standby.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import adbc_driver_postgresql.dbapi as adbc
import numpy as np
import pyarrow as pa

from anabranch.place.databases.postgresql import PostgreSQL
from anabranch.place.databases.protocol import Wanted
from anabranch.place.databases.settings import settings_of
from bench import report
from bench.postgres import NAME, USER, Server, why_not

TABLES = {"one": ("id",), "two": ("id", "part")}
"""Tables, and the columns of their keys."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--table-rows", type=int, default=2_000_000)
    parser.add_argument("--keys", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000])
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="small volumes, to see that all of it runs")
    given = parser.parse_args()
    if given.quick:
        vars(given).update({"table_rows": 10_000, "keys": [100], "pairs": 2})
    if reason := why_not():
        raise SystemExit(reason)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the server is not left behind
    server = Server()
    try:
        server.sql(f"GRANT TEMP ON DATABASE {NAME} TO {USER}")
        for table, columns in TABLES.items():
            fill(server, table, columns, given.table_rows)
        rows = [measure(server, table, keys, given.table_rows, given.pairs) for table in TABLES for keys in given.keys]
    finally:
        server.delete()
    print(report.table(rows))
    print(f"written to {report.write('keys', rows)}")


def fill(server: Server, table: str, columns: tuple[str, ...], rows: int) -> None:
    server.sql(f"""CREATE TABLE {table} AS SELECT n * 2 AS id, n % 7 AS part, 'customer ' || n AS name
                   FROM generate_series(1::bigint, {rows}) n;
                   ALTER TABLE {table} ADD PRIMARY KEY ({', '.join(columns)}); ANALYZE {table};
                   GRANT SELECT ON {table} TO {USER}""")


def measure(server: Server, table: str, count: int, table_rows: int, pairs: int) -> dict[str, object]:
    shop = PostgreSQL(settings_of(NAME, server.environment))
    columns, rng = TABLES[table], np.random.default_rng(18)
    wanted = Wanted(f"public.{table}", columns, shop.describe(f"public.{table}"))
    ids = rng.choice(2 * table_rows, count, replace=False) + 1
    every = pa.table({"id": ids, "part": ids // 2 % 7})
    keys = every.select(columns)
    with adbc.connect(settings_of(NAME, server.environment).dsn) as connection:
        ways: dict[str, Callable[[], pa.Table]] = {
            "array": lambda: shop.lookup(wanted, keys),
            "relation": lambda: by_relation(connection, table, keys, is_analysed=False),
            "analysed": lambda: by_relation(connection, table, keys, is_analysed=True),
        }
        make_relation(connection, keys.schema)
        for way in ways.values():
            way()
        found = {name: way().sort_by("id").to_pydict() for name, way in ways.items()}
        assert found["array"] == found["relation"] == found["analysed"], "all ways give the same"
        spent: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(pairs):
            for name, way in ways.items():
                began = perf_counter()
                way()
                spent[name].append(perf_counter() - began)
    shop.close()
    ratios = {name: [b / a for a, b in zip(spent["array"], spent[name], strict=True)] for name in ("relation", "analysed")}
    return {
        "key columns": len(columns), "keys": count, "rows found": len(found["array"]["id"]),
        "array, ms": round(statistics.median(spent["array"]) * 1e3, 1),
        **{name: f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})" for name, each in ratios.items()},
    }  # fmt: skip


def make_relation(connection: Any, schema: pa.Schema) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TEMP TABLE wanted ({', '.join(f'{name} bigint' for name in schema.names)})")
    connection.commit()


def by_relation(connection: Any, table: str, keys: pa.Table, is_analysed: bool) -> pa.Table:
    equal = " AND ".join(f"t.{name} = k.{name}" for name in keys.column_names)
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE wanted")
        cursor.adbc_ingest("wanted", keys, mode="append", temporary=True)
        if is_analysed:
            cursor.execute("ANALYZE wanted")
        cursor.execute(f"SELECT t.id, t.part, t.name FROM wanted k JOIN {table} t ON {equal}")
        found = cursor.fetch_arrow_table()
    connection.commit()
    return found


if __name__ == "__main__":
    main()
