"""The example of docs/placement.md, run in a real PostgreSQL."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa

from anabranch.drive.local import LocalPipeline
from anabranch.place.databases.postgresql import PostgreSQL
from anabranch.place.databases.settings import settings_of
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from bench.postgres import Server

DOCUMENT = (Path(__file__).parent.parent / "docs" / "placement.md").read_text()


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", DOCUMENT, re.DOTALL)
    return str(found)


def test_the_example_runs(postgres: Server) -> None:
    told = dict(re.findall(r"export (\w+)=(.*)", block("sh")))
    assert told.keys() - {"ANABRANCH_DATABASE_SHOP_PASSFILE"} <= postgres.environment.keys()
    shop = PostgreSQL(settings_of("shop", postgres.environment))
    postgres.sql("DROP TABLE IF EXISTS customers;" + block("postgresql"))
    try:
        script = parse_script(block("sql"), describe=lambda _, table: shop.describe(table))
        pipeline = LocalPipeline([script.queries[0].query], MemoryFilesystem(), slots=2, databases=lambda _: shop)
        at = pa.array([0, 0, 0], pa.timestamp("us"))
        orders = pa.table({"id": [1, 2, 3], "customer": [4, 5, 5000], "amount": pa.array([1, 1, 1], pa.int32()), "ts": at})
        payments = pa.table({"order_id": [1, 2, 3], "paid": pa.array([7, 8, 9], pa.int32()), "ts": at})
        assert pipeline.step(0, {"orders": orders})["paid"].results.num_rows == 0
        postgres.sql("UPDATE customers SET name = 'renamed'")
        found = pipeline.step(1, {"payments": payments})["paid"].results
        assert found.to_pylist() == [{"id": 1, "name": "customer 4", "paid": 7}]
    finally:
        postgres.sql("DROP TABLE customers")
        shop.close()
