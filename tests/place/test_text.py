"""What is said against a block in the words of a database, and where; and what becomes of a text that is right."""

from __future__ import annotations

import pyarrow as pa
import pytest

from anabranch.balance.partition import choose_distribution
from anabranch.drive.local import LocalPipeline
from anabranch.errors import SqlError
from anabranch.place.databases.embedded import open_embedded
from anabranch.plan.query import Query
from anabranch.sql import Catalog, bind_query, parse_script
from anabranch.storage.filesystem import MemoryFilesystem

SOURCES = parse_script(
    """
    CREATE STREAM plugs (plug BIGINT, load DOUBLE, "user" STRING, ts TIMESTAMP) TIME ts;
    CREATE STREAM "odd one" (plug BIGINT, ts TIMESTAMP) TIME ts;
    CREATE TABLE houses (plug BIGINT, house STRING) FROM 'houses.csv';
    CREATE TABLE prices (plug BIGINT, price DOUBLE) FROM 'prices.csv' REFRESH 1 MINUTE;
    """,
    Catalog(databases=open_embedded),
).catalog


def bound(block: str, select: str = "SELECT x.*") -> Query:
    return bind_query("q", f"{select} FROM {block} x", SOURCES)


def error(block: str) -> str:
    with pytest.raises(SqlError) as raised:
        bound(block)
    return str(raised.value)


@pytest.mark.parametrize(
    ("block", "word", "told"),
    [
        ("DATABASE duck (SELECT median(lod) AS m FROM plugs [RANGE 5 MINUTES])", "lod", 'column "lod" not found'),
        ("DATABASE duck (SELECT 'é' AS e FROM plugs [RANGE 5 MINUTES] WHERE lod > 1)", "lod", 'column "lod" not found'),
        ("DATABASE duck (SELECT 1 AS e FROM plugs [NOW], plugs [RANGE 1 HOUR], no)", "no)", "no stream or table no"),
        ("DATABASE duck (SELECT 1 AS e FROM plugs [NOW] WHERE foo(plug))", "foo(", "Function with name foo does not exist"),
        ("DATABASE duck (SELECT 1 AS e FROM plugs [NOW] WHERE AND)", "AND)", 'syntax error at or near "AND"'),
        ("DATABASE duck (SELECT plug FROM plugs)", "plugs)", "the stream plugs has no window"),
        ("DATABASE pg (SELECT plug FROM plugs [NOW])", "pg (", "the database pg runs no text"),
    ],
)
def test_errors_have_a_caret(block: str, word: str, told: str) -> None:
    """A caret stands below the word that is wrong, windows or not; what DuckDB adds to its own text is left out."""
    message, shown, caret, *hint = error(block).splitlines()
    assert told in message
    assert shown[caret.index("^") :].startswith(word)
    assert not any("LINE" in line or "{" in line for line in hint)


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ("DATABASE duck (SELECT plug FROM plug [NOW])", "did you mean plugs?"),
        ("DATABASE duck (SELECT plug FROM plugs [NOW], nobody)", "there is no stream or table nobody"),
        ("DATABASE duck (SELECT house FROM houses)", "at least one stream with a window"),
        ("DATABASE duck (SELECT house FROM houses [NOW])", "a window on the stored table houses"),
        ("DATABASE duck (SELECT price FROM prices, plugs [NOW])", "read again while queries run"),
        ("DATABASE crm (SELECT plug FROM plugs [NOW])", "the database crm runs no text"),
        ("DATABASE duck (DELETE FROM plugs [NOW])", "a block of a database is one SELECT"),
        ("DATABASE duck (SELECT plug FROM plugs [NOW] GROUP)", "syntax error"),
        ("DATABASE duck (SELECT * FROM read_csv('/etc/passwd'), plugs [NOW])", "the table function read_csv"),
        ("DATABASE duck (SELECT * FROM '/etc/passwd', plugs [NOW])", "there is no stream or table /etc/passwd"),
        ("DATABASE duck (SELECT * FROM duckdb_settings(), plugs [NOW])", "the table function duckdb_settings"),
        ("DATABASE duck (SELECT * FROM main.plugs, plugs [NOW])", "a name of several parts"),
        ("DATABASE duck (SELECT * FROM (DESCRIBE houses), plugs [NOW])", "in FROM is not supported"),
        ("DATABASE duck (SELECT random() AS r FROM plugs [NOW])", "random is not supported"),
        ("DATABASE duck (SELECT now() AS r FROM plugs [NOW])", "now is not supported"),
        ("DATABASE duck (SELECT current_timestamp AS r FROM plugs [NOW])", "current_timestamp is not supported"),
        ("DATABASE duck (SELECT current_setting('threads') AS r FROM plugs [NOW])", "current_setting is not supported"),
        ("DATABASE duck (SELECT $1 AS r FROM plugs [NOW])", "Values were not provided"),
        ("DATABASE duck (SELECT plug, plug AS PLUG FROM plugs [NOW])", "two columns of the block are called"),
        ("DATABASE duck (SELECT INTERVAL 1 DAY AS d FROM plugs [NOW])", "which is not supported"),
        ("DATABASE duck (SELECT plug FROM plugs [RANGE 1 MINUTE FRESHNESS 2 MINUTES])", "FRESHNESS in a block"),
        ("DATABASE duck (SELECT plug FROM plugs [NOW] SLIDE 0 SECONDS)", "a SLIDE must be longer than 0"),
        ("DATABASE duck (SELECT plug FROM plugs [RANGE 9 DAYS] SLIDE 1 SECOND)", "at more than 100,000 instants"),
        ("DATABASE duck (SELECT plug FROM plugs [NOW] PARTITION BY house)", "plugs has no column house"),
        ("DATABASE duck (SELECT plug FROM plugs [NOW]", "the bracket that opens here is never closed"),
        ("DATABASE duck ()", "expected a SELECT of the database"),
        ('DATABASE duck (SELECT plug FROM "odd one" [NOW])', "cannot name an input"),
    ],
)
def test_refused(block: str, told: str) -> None:
    assert told in error(block)


def test_the_catalog_says_who_runs_text() -> None:
    with pytest.raises(SqlError, match="there is no database duck"):
        bind_query("q", "SELECT x.* FROM DATABASE duck (SELECT 1) x", Catalog())


def test_a_stream_may_be_called_database() -> None:
    streams = parse_script("CREATE STREAM database (k BIGINT, ts TIMESTAMP) TIME ts; SELECT k FROM database [NOW] d")
    assert streams.queries[0].query.aliases == ("d",)


def test_windows_are_ours_and_the_rest_is_not() -> None:
    """Brackets that are no windows, comments and strings go through as they are."""
    block = """DATABASE duck (
        SELECT [p.plug, 1][1] AS a, {'x': p.load} AS b, 'FROM plugs [NOW]' AS c -- plugs [NOW] )
        FROM plugs p [RANGE 5 MINUTES], plugs AS "user" [NOW], plugs [RANGE 5 MINUTES] q, houses
        WHERE p.plug = houses.plug SLIDE 2 SECONDS PARTITION BY plug)"""
    inner = bound(block).subqueries[0]
    assert inner.statement is not None
    assert [(i.alias, str(i.window)) for i in inner.inputs] == [
        ("plugs", "RANGE 300000000 us"), ("plugs_2", "NOW"), ("houses", "STORED"),
    ]  # fmt: skip
    assert 'FROM "plugs" AS "p", "plugs_2" AS "user", "plugs" q, houses' in inner.statement.sql
    assert "'FROM plugs [NOW]' AS c -- plugs [NOW] )" in inner.statement.sql
    assert "SLIDE" not in inner.statement.sql
    assert inner.grouping is not None
    assert inner.grouping.slide_us == 2_000_000


@pytest.mark.parametrize(
    ("select", "kept"),
    [
        ("SELECT median(load) AS m FROM plugs [NOW]", {"load"}),
        ("SELECT count(*) AS n FROM plugs [NOW]", {"plug"}),
        ("SELECT * FROM plugs [NOW]", {"plug", "load", "user", "ts"}),
        ("SELECT p FROM plugs p [NOW]", {"plug", "load", "user", "ts"}),
        ("SELECT count(*) AS n FROM plugs [NOW] JOIN houses USING (plug)", {"plug"}),
        ("SELECT count(*) AS n FROM plugs [NOW] NATURAL JOIN houses", {"plug", "load", "user", "ts"}),
        ("SELECT COLUMNS('lo.*') FROM plugs [NOW]", {"plug", "load", "user", "ts"}),
    ],
)
def test_only_columns_that_the_text_may_read_are_kept(select: str, kept: set[str]) -> None:
    assert set(bound(f"DATABASE duck ({select})").subqueries[0].needed_columns("plugs")) == kept


def test_types_are_those_of_the_database() -> None:
    query = bound("""DATABASE duck (SELECT plug, sum(plug) AS s, max(ts) AS t, list(load) AS l, ts::TIMESTAMPTZ AS z,
        "user" AS u, 1.5 AS d FROM plugs [NOW] GROUP BY ALL)""")
    assert {f.name: str(f.type) for f in query.output_schema} == {
        "plug": "int64", "s": "decimal128(38, 0)", "t": "timestamp[us]", "l": "list<item: double>", "z": "timestamp[us]",
        "u": "string", "d": "decimal128(2, 1)",
    }  # fmt: skip


def test_a_failing_statement_ends_its_query_alone() -> None:
    sql = "SELECT plug, CAST(\"user\" AS INTEGER) AS n FROM plugs [RANGE 5 SECONDS]"
    queries = [
        bind_query("bad", f"SELECT x.n FROM DATABASE duck ({sql}) x", SOURCES),
        bind_query("good", "SELECT x.n FROM DATABASE duck (SELECT count(*) AS n FROM plugs [RANGE 5 SECONDS]) x", SOURCES),
    ]
    pipeline = LocalPipeline(queries, MemoryFilesystem())
    for batch in range(4):
        ts = pa.array([batch * 1_000_000], pa.timestamp("us"))
        rows = pa.table({"plug": [1], "load": [1.0], "user": ["1" if batch < 1 else "one"], "ts": ts})
        steps = pipeline.step(batch, {"plugs": rows})
    assert list(steps) == ["good"]
    assert steps["good"].results.to_pydict() == {"n": [2]}


def test_a_block_runs_in_one_slot_unless_it_may_be_spread() -> None:
    block = "SELECT plug, median(load) AS m FROM plugs [NOW] GROUP BY plug"
    above = "SELECT x.m, p.load FROM plugs [NOW] p JOIN DATABASE duck ({}) x ON p.plug = x.plug"
    for sql, is_spread in ((block, False), (f"{block} PARTITION BY plug", True)):
        query = bind_query("q", above.format(sql), SOURCES)
        assert (choose_distribution(query, 4).grid.cells > 1) == is_spread
