"""CREATE STREAM, CREATE TABLE, CREATE QUERY, scripts and catalogs."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest

from anabranch.errors import (
    DuplicateNameError,
    InvalidNameError,
    MissingTimeColumnError,
    SessionError,
    SqlError,
    SyntaxSqlError,
    UnsupportedSqlError,
)
from anabranch.plan.lengths import window_text
from anabranch.plan.on_error import FAIL, SKIP, OnError
from anabranch.plan.overload import Algorithm, Clock, Overload, Policy
from anabranch.plan.query import AHEAD_US, Field, Stream, Table
from anabranch.sql import Catalog, Location, bind_query, parse_duration, parse_script
from tests.sql.sources import CATALOG, SOURCES


def test_create_stream() -> None:
    trades = CATALOG.source("TRADES")
    assert isinstance(trades, Stream)
    assert (trades.name, trades.time, trades.lateness_us) == ("trades", "ts", 5_000_000)
    assert [(f.name, f.type) for f in trades.fields] == [
        ("symbol", pa.string()),
        ("price", pa.float64()),
        ("qty", pa.int32()),
        ("amount", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("ok", pa.bool_()),
        ("tags", pa.list_(pa.struct([("a", pa.int32()), ("b", pa.string())]))),
        ("ts", pa.timestamp("us")),
    ]
    assert CATALOG.location("trades") == Location("trades/*.csv", "csv")


@pytest.mark.parametrize(
    ("clauses", "ahead_us", "idle_us"),
    [
        ("", AHEAD_US, None), ("AHEAD NONE", None, None), ("AHEAD 0 SECONDS IDLE 2 SECONDS", 0, 2_000_000),
        ("IDLE '1 minute' AHEAD INTERVAL '2' HOURS LATENESS 1 SECOND", 7_200_000_000, 60_000_000),
        ("idle none", AHEAD_US, None),
    ],
)  # fmt: skip
def test_how_far_ahead_and_how_long_idle(clauses: str, ahead_us: int | None, idle_us: int | None) -> None:
    stream = parse_script(f"CREATE STREAM s (at TIMESTAMP) TIME at {clauses}").catalog.source("s")
    assert isinstance(stream, Stream)
    assert (stream.ahead_us, stream.idle_us) == (ahead_us, idle_us)


@pytest.mark.parametrize(
    ("clauses", "message"),
    [
        ("IDLE 0 SECONDS", "a stream cannot be idle at once"), ("AHEAD", "expected a length of time"),
        ("AHEAD NONE AHEAD NONE", "AHEAD stands twice"), ("IDLE -1 SECOND", "expected a length of time"),
        ("EARLY 1 DAY", "expected TIME, LATENESS, AHEAD, IDLE, FROM, FORMAT"),
    ],
)  # fmt: skip
def test_what_cannot_be_said_of_time(clauses: str, message: str) -> None:
    with pytest.raises(SyntaxSqlError, match=message):
        parse_script(f"CREATE STREAM s (at TIMESTAMP) TIME at {clauses}")


@pytest.mark.parametrize(
    ("clause", "on_error"),
    [
        ("", FAIL),
        ("ON ERROR FAIL", FAIL),
        ("on error skip", SKIP),
        ("ON ERROR INTO 'bad/rows'", OnError("into", "bad/rows")),
    ],
)
def test_what_becomes_of_what_cannot_be_read(clause: str, on_error: OnError) -> None:
    for text in (f"FROM 'a.csv' {clause} LATENESS 1 SECOND", f"{clause} FROM 'a.csv'"):
        location = parse_script(f"CREATE STREAM s (at TIMESTAMP) TIME at {text}").catalog.location("s")
        assert location is not None
        assert location.on_error == on_error


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("STREAM s (at TIMESTAMP) TIME at FROM 'a.csv' ON ERROR SKIPP", r"(?s)FAIL, SKIP or INTO.*did you mean SKIP\?"),
        ("STREAM s (at TIMESTAMP) TIME at FROM 'a.csv' ON ERROR", "expected FAIL, SKIP or INTO 'folder' after ON ERROR"),
        ("STREAM s (at TIMESTAMP) TIME at FROM 'a.csv' ON FAILURE SKIP", "expected ERROR after ON"),
        ("STREAM s (at TIMESTAMP) TIME at FROM 'a.csv' ON ERROR INTO bad", "expected a folder in '…'"),
        ("STREAM s (at TIMESTAMP) TIME at FROM 'a.csv' ON ERROR INTO ''", "the name of the folder is missing"),
        ("STREAM s (at TIMESTAMP) TIME at FROM 'a.csv' ON ERROR SKIP ON ERROR SKIP", "ON stands twice"),
        ("STREAM s (at TIMESTAMP) TIME at ON ERROR SKIP", "ON ERROR is for rows of files"),
        ("TABLE t (k BIGINT) FROM 'a.csv' ON ERROR SKIP", "ON ERROR of a table is not supported"),
    ],
)
def test_what_cannot_become_of_it(statement: str, message: str) -> None:
    with pytest.raises(SqlError, match=message):
        parse_script(f"CREATE {statement}")


def test_tables_have_no_clock() -> None:
    with pytest.raises(SyntaxSqlError, match="expected FROM, FORMAT, REFRESH"):
        parse_script("CREATE TABLE t (k BIGINT) IDLE 5 SECONDS")


def test_time_column_is_found_without_regard_to_case() -> None:
    quotes = CATALOG.source("quotes")
    assert isinstance(quotes, Stream)
    assert (quotes.time, quotes.lateness_us) == ("ts", 0)
    assert CATALOG.location("quotes") is None


def test_create_table() -> None:
    symbols = CATALOG.source("symbols")
    assert isinstance(symbols, Table)
    assert symbols.field("Kind") == Field("Kind", pa.int16())
    assert CATALOG.location("SYMBOLS") == Location("symbols", "json")


def test_script_keeps_plans_names_and_texts() -> None:
    script = parse_script(
        """-- two queries
        CREATE QUERY Pairs PLAN '(t q)' AS SELECT t.symbol FROM trades t, quotes q /* both */ WINDOW 1 MINUTE;
        SELECT qty FROM trades [NOW];;
        """,
        CATALOG,
    )
    assert [(b.query.name, b.plan) for b in script.queries] == [("Pairs", "(t q)"), ("query2", None)]
    assert script.queries[1].query.sql == "SELECT qty FROM trades [NOW]"
    assert script.catalog == CATALOG


def test_empty_script() -> None:
    assert parse_script(" -- nothing\n").queries == ()


def test_names_in_quotes_and_words_that_are_no_keywords() -> None:
    script = parse_script(
        "CREATE STREAM `my stream` (`select` INT, time TIMESTAMP, date DATE, format STRING) TIME time FORMAT arrow;"
        'SELECT `select`, "date", time, s.format FROM `my stream` [NOW] s'
    )
    assert script.queries[0].query.output_schema.names == ["select", "date", "time", "format"]


@pytest.mark.parametrize(
    ("sql", "kind", "at"),
    [
        ("CREATE STREAM `../../x` (a INT, ts TIMESTAMP) TIME ts", InvalidNameError, (1, 15)),
        ("CREATE TABLE `a/b` (a INT)", InvalidNameError, (1, 14)),
        ("CREATE TABLE `` (a INT)", InvalidNameError, (1, 14)),
        (SOURCES + "CREATE QUERY `..` AS SELECT 1 FROM trades [NOW]", InvalidNameError, (8, 14)),
        ("CREATE STREAM s (a INT)", MissingTimeColumnError, (1, 15)),
        ("CREATE STREAM s (a INT)\nTIME b", MissingTimeColumnError, (2, 6)),
        ("CREATE STREAM s (a INT) TIME a", MissingTimeColumnError, (1, 30)),
        ("CREATE STREAM s (a INT, A INT, ts TIMESTAMP) TIME ts", DuplicateNameError, (1, 25)),
        ("CREATE TABLE s (a INT);\nCREATE TABLE S (a INT)", DuplicateNameError, (2, 14)),
        (SOURCES + "CREATE QUERY Trades AS SELECT 1 FROM trades [NOW]", DuplicateNameError, (8, 14)),
        (SOURCES + "CREATE QUERY x AS SELECT n FROM quotes [NOW];\nCREATE TABLE X(a INT)", DuplicateNameError, (9, 14)),
        ("CREATE STREAM s (a INT, ts TIMESTAMP) TIME ts TIME ts", SyntaxSqlError, (1, 47)),
        ("CREATE STREAM s", SyntaxSqlError, (1, 16)),
        ("CREATE TABLE s (a INT) TIME a", SyntaxSqlError, (1, 24)),
        ("CREATE TABLE s (a DECIMAL(40, 2))", SyntaxSqlError, (1, 19)),
        ("CREATE VIEW v AS SELECT 1", SyntaxSqlError, (1, 8)),
        ("CREATE STREAM s (a INT, ts TIMESTAMP) TIME ts FROM 'x", SyntaxSqlError, (1, 52)),
    ],
)
def test_bad_create(sql: str, kind: type[SqlError], at: tuple[int, int]) -> None:
    with pytest.raises(SqlError) as caught:
        parse_script(sql)
    assert type(caught.value) is kind
    assert (caught.value.line, caught.value.column) == at


def test_catalog_checks_what_code_adds() -> None:
    stream = Stream("s", (Field("ts", pa.timestamp("ns")),), "ts")
    with pytest.raises(MissingTimeColumnError):
        Catalog().with_stream(stream)
    with pytest.raises(DuplicateNameError, match=r"^Trades exists already: choose another name$"):
        CATALOG.with_table(Table("Trades", ()))
    with pytest.raises(InvalidNameError, match=r"^'\.\./x' cannot be a name: it holds '\.': a name has letters"):
        CATALOG.with_table(Table("../x", ()))
    with pytest.raises(InvalidNameError, match="a name cannot be empty"):
        bind_query("", "SELECT qty FROM trades [NOW]", CATALOG)


@pytest.mark.parametrize("kind", ["STREAM s (ts TIMESTAMP) TIME ts", "TABLE s (a INT)"])
def test_the_ending_of_a_path_tells_the_format(kind: str) -> None:
    for path in ("x/*.jsonl", "x/*.ndjson", "x.json.zst"):
        assert parse_script(f"CREATE {kind} FROM '{path}'").catalog.location("s") == Location(path, "json")
    assert parse_script(f"CREATE {kind} FROM 'x.ipc'").catalog.location("s") == Location("x.ipc", "arrow")
    assert parse_script(f"CREATE {kind} FROM 'x.txt' FORMAT csv").catalog.location("s") == Location("x.txt", "csv")
    with pytest.raises(UnsupportedSqlError, match=r"the ending \.txt of 'x\.txt' names no format") as caught:
        parse_script(f"CREATE {kind}\nFROM 'x.txt'")
    assert (caught.value.line, caught.value.column) == (2, 6)


def test_bind_query_takes_one_select() -> None:
    for sql in ("", "CREATE TABLE x (a INT)", "SELECT qty FROM trades [NOW]; SELECT qty FROM trades [NOW]"):
        with pytest.raises(SyntaxSqlError):
            bind_query("q", sql, CATALOG)


def test_durations() -> None:
    assert parse_duration("1.5 hours 1 microsecond") == 5_400_000_001
    assert parse_duration("5s") == parse_duration("5 sec") == parse_duration(timedelta(seconds=5)) == 5_000_000
    assert parse_duration("5 min") == parse_duration("5m") == 300_000_000
    assert parse_duration("2h") == 2 * parse_duration("1 HR") == 7_200_000_000
    assert parse_duration("1d 1ms 1µs") == 86_400_001_001
    for text in ("", "5", "5 months", "x seconds", "0.5 microseconds", "NaN days", "99999999999 days", "-5s", "5s!", "s5",
                 "1..5 s", 5, 5.0, None, timedelta(seconds=-1)):  # fmt: skip
        with pytest.raises(SessionError):
            parse_duration(text)


@pytest.mark.parametrize(
    ("windows", "freshness_s"),
    [
        ("trades [RANGE 10 SECONDS FRESHNESS 12 SECONDS] a, trades [NOW FRESHNESS 1 MINUTE] b", (12, 60)),
        ("trades [RANGE 10 SECONDS] a, trades [NOW FRESHNESS '1 minute'] b", (None, 60)),
        ("trades a, trades b WINDOW 10 SECONDS FRESHNESS 12 SECONDS", (12, 12)),
        ("trades [RANGE 20 SECONDS] a, trades b WINDOW 10 SECONDS FRESHNESS 12 SECONDS", (None, 12)),
        ("trades a, (SELECT * FROM trades WINDOW 5 SECONDS FRESHNESS 9 SECONDS) x WINDOW 1 SECOND", (None, 9)),
        ("trades freshness [NOW], trades b [NOW]", (None, None)),
    ],
)
def test_freshness_goes_with_the_window(windows: str, freshness_s: tuple[int | None, ...]) -> None:
    query = bind_query("q", f"SELECT 1 AS one FROM {windows}", CATALOG)
    assert tuple(i.freshness_us and i.freshness_us // 1_000_000 for i in query.inputs) == freshness_s


def test_a_window_is_shown_with_its_freshness() -> None:
    query = bind_query("q", "SELECT 1 AS one FROM trades a, trades [NOW] b WINDOW 1 DAY FRESHNESS 36 HOURS", CATALOG)
    assert [window_text(i) for i in query.inputs] == ["RANGE 1 DAY FRESHNESS 36 HOURS", "NOW"]


@pytest.mark.parametrize(
    ("clauses", "overload"),
    [
        ("", None),
        ("OVERLOAD 'fall behind'", Overload()),
        ("OVERLOAD 'shed' CPU 1.5", Overload(Policy.SHED, cpu=1.5)),
        ("PLAN '(a b)' OVERLOAD 'adapt joins' CLOCK wall ALLOW a 0.4, b 0", Overload(
            Policy.ADAPT_JOINS, Clock.WALL, allowances={"a": 0.4, "b": 0})),
        ("overload 'adapt joins' pilot 0.1 p 0.3 epsilon 0.2 algorithm uniform may shed plan '(a b)'", Overload(
            Policy.ADAPT_JOINS, algorithm=Algorithm.UNIFORM, may_shed=True, pilot=0.1, p=0.3, epsilon=0.2)),
    ],
)  # fmt: skip
def test_what_a_query_does_under_overload(clauses: str, overload: Overload | None) -> None:
    (bound,) = parse_script(f"CREATE QUERY q {clauses} AS SELECT a.qty FROM trades [NOW] a, trades [NOW] b", CATALOG).queries
    assert bound.overload == overload
    assert bound.plan == ("(a b)" if "plan" in clauses.lower() else None)


@pytest.mark.parametrize(
    ("marked", "message"),
    [
        ("OVERLOAD |AS", "a policy in '…', like 'adapt joins'"),
        ("OVERLOAD |'adapt join' AS", 'did you mean adapt joins?'),
        ("OVERLOAD 'shed' |OVERLOAD 'shed' AS", "OVERLOAD stands twice"),
        ("PLAN '(a b)' |PLAN '(a b)' AS", "PLAN stands twice"),
        ("OVERLOAD 'shed' CPU 1 |CPU 2 AS", "CPU stands twice"),
        ("OVERLOAD 'shed' |CPU 0 AS", "above 0"),
        ("OVERLOAD 'shed' CPU |many AS", "a number after CPU"),
        ("OVERLOAD 'shed' |ALLOW a 0.4 AS", 'allowances go with policy="adapt joins"'),
        ("OVERLOAD 'adapt joins' |ALLOW a 1.4 AS", "a share from 0 to 1"),
        ("OVERLOAD 'adapt joins' |ALLOW a -0.4 AS", "a share from 0 to 1"),
        ("OVERLOAD 'adapt joins' ALLOW a 1, |a 0 AS", "a stands twice"),
        ("OVERLOAD 'shed' |CLOCK noon AS", "clock='noon'"),
        ("OVERLOAD 'adapt joins' MAY |AS", "SHED after MAY"),
        ("|SHARED AS", "PLAN '…', OVERLOAD '…', or AS and a SELECT"),
    ],
)
def test_what_is_wrong_with_overload_is_told_where_it_stands(marked: str, message: str) -> None:
    text = f"CREATE QUERY q {marked} SELECT a.qty FROM trades [NOW] a, trades [NOW] b"
    with pytest.raises(SyntaxSqlError) as caught:
        parse_script(text.replace("|", ""), CATALOG)
    assert message in str(caught.value)
    assert f"line 1, column {text.index('|') + 1}:" in str(caught.value)
