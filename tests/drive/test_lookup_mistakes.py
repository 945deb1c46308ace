"""Tables in a real PostgreSQL, declared rightly and wrongly in SQL: odd names are found, and mistakes are told where they
stand, with what to do, when they are made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from anabranch.cli import main
from anabranch.drive.local import LocalPipeline
from anabranch.place.databases.registry import close_all, database, describe
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from bench.postgres import PASSWORD, Server

STREAM = "CREATE STREAM orders (id BIGINT, `Who's` STRING, ts TIMESTAMP) TIME ts FROM 'orders/*.parquet';\n"


@pytest.fixture
def shop(postgres: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name, value in postgres.environment.items():
        monkeypatch.setenv(name, value)
    close_all()
    yield postgres
    close_all()


def test_names_with_quotes_capitals_and_words_of_the_language(shop: Server) -> None:
    shop.sql("""
        CREATE SCHEMA "Odd ""S"; GRANT USAGE ON SCHEMA "Odd ""S" TO looker;
        CREATE TABLE "Odd ""S"."My.Table's" ("Key" text, "select" int, "a""b" text, "V;--" int);
        INSERT INTO "Odd ""S"."My.Table's" VALUES ('it''s', 1, 'x', 10), ('It''s', 2, 'y', 20), (NULL, 3, 'z', 30);
        GRANT SELECT ON "Odd ""S"."My.Table's" TO looker""")
    script = STREAM + """CREATE TABLE `my table` FROM DATABASE shop TABLE '"Odd ""S"."My.Table''s"';
        CREATE QUERY q AS SELECT o.id, m.`select`, m.`a"b`, m.`V;--` FROM orders [NOW] o, `my table` m
        WHERE o.`Who's` = m.`Key`"""
    query = parse_script(script, describe=describe).queries[0].query
    pipeline = LocalPipeline([query], MemoryFilesystem(), slots=2, databases=database)
    times = pa.array([0, 0, 0], pa.timestamp("us"))
    orders = pa.table({"id": [1, 2, 3], "Who's": ["it's", "IT'S", None], "ts": times})
    found = pipeline.step(0, {"orders": orders})["q"].results.to_pylist()
    assert found == [{"id": 1, "select": 1, 'a"b': "x", "V;--": 10}]


MISTAKES = {
    "a wrong password": ({"PASSWORD": "not it"}, "customers", "check ANABRANCH_DATABASE_SHOP_USER"),
    "no such user": ({"USER": "nobody"}, "customers", "check ANABRANCH_DATABASE_SHOP_USER"),
    "no such database": ({"DBNAME": "nope"}, "customers", 'database "nope" does not exist'),
    "no server": ({"HOST": "/nowhere"}, "customers", "is it running"),
    "an unknown option": ({"PASSWRD": PASSWORD}, "customers", "invalid connection option"),
    "no such table": ({}, "custmers", "write it as schema.table"),
    "no name of a table": ({}, "a.b.c.d", "is no name of a table: write schema.table"),
    "not permitted": ({}, "secrets", "have its owner GRANT SELECT"),
    "a type that is not here": ({}, "shapes", "declare a view of the table that leaves it out"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_where_the_table_is_declared(
    shop: Server, tmp_path: Path, mistake: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.sql("""CREATE TABLE IF NOT EXISTS customers (id bigint); GRANT SELECT ON customers TO looker;
                CREATE TABLE IF NOT EXISTS secrets (id int); CREATE TABLE IF NOT EXISTS shapes (id int, at point);
                GRANT SELECT ON shapes TO looker""")
    options, table, told = MISTAKES[mistake]
    for key, value in options.items():
        monkeypatch.setenv(f"ANABRANCH_DATABASE_SHOP_{key}", value)
    script = tmp_path / "q.sql"
    script.write_text(STREAM + f"CREATE TABLE c FROM DATABASE shop TABLE '{table}';\n"
                      "CREATE QUERY q AS SELECT o.id FROM orders [NOW] o, c WHERE o.id = c.id;\n")  # fmt: skip
    assert main(["explain", str(script)]) != 0
    out = capsys.readouterr()
    assert "line 2" in out.err
    assert "^" in out.err
    assert told in " ".join(out.err.split())
    assert "Traceback" not in out.err
    assert PASSWORD not in out.out + out.err


def test_a_column_that_the_table_does_not_have(shop: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shop.sql("CREATE TABLE IF NOT EXISTS customers (id bigint); GRANT SELECT ON customers TO looker")
    script = tmp_path / "q.sql"
    script.write_text(STREAM + "CREATE TABLE customers FROM DATABASE shop TABLE 'customers';\n"
                      "CREATE QUERY q AS SELECT o.id, c.nam FROM orders [NOW] o, customers c WHERE o.id = c.id")  # fmt: skip
    assert main(["explain", str(script)]) != 0
    assert "nam" in (told := capsys.readouterr().err)
    assert "line 3" in told
