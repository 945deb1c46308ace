"""Every kind of error, with its place; and that nothing but these errors leaves the room."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch import errors
from anabranch.errors import SqlError
from anabranch.sql import parse_script
from tests.sql.sources import CATALOG, FROM, SOURCES, bind

BAD = [
    ("UnknownStreamError", "SELECT 1 FROM |trade [NOW]", "did you mean trades?"),
    ("UnknownColumnError", "SELECT t.|prize $", "did you mean price?"),
    ("UnknownColumnError", "SELECT |volume $", ""),
    ("UnknownColumnError", "SELECT |x.price $", "the inputs here are t, q"),
    ("UnknownColumnError", "SELECT 1 FROM trades [NOW] a JOIN quotes [NOW] b ON a.qty = |c.qty, trades [NOW] c", ""),
    ("AmbiguousColumnError", "SELECT |symbol $", "write t.symbol or q.symbol"),
    ("MissingWindowError", "SELECT 1 FROM quotes [NOW] q, |trades t", "WINDOW 10 SECONDS"),
    ("DuplicateNameError", "SELECT |* $", "AS other_symbol"),
    ("DuplicateNameError", "SELECT qty, n AS |QTY $", ""),
    ("DuplicateNameError", "SELECT 1 FROM trades [NOW] a, quotes [NOW] |A", ""),
    ("TypeMismatchError", "SELECT 1 $ WHERE\n  qty = n AND\n  |t.symbol = 5", "CAST"),
    ("TypeMismatchError", "SELECT 1 $ WHERE |t.symbol = n", ""),
    ("TypeMismatchError", "SELECT 1 $ WHERE |day = 'soon'", ""),
    ("TypeMismatchError", "SELECT 1 $ WHERE |qty", ""),
    ("TypeMismatchError", "SELECT 1 $ WHERE ok AND |qty", ""),
    ("TypeMismatchError", "SELECT |ok + 1 $", ""),
    ("TypeMismatchError", "SELECT |tags = tags $", ""),
    ("TypeMismatchError", "SELECT |t.ts - q.ts $", "INTERVAL"),
    ("TypeMismatchError", "SELECT |INTERVAL 5 SECONDS AS i $", ""),
    ("TypeMismatchError", "SELECT |COALESCE(NULL, NULL) AS i $", "CAST(NULL AS STRING)"),
    ("TypeMismatchError", "SELECT |DATE '2024-13-01' $", ""),
    ("TypeMismatchError", "SELECT |TIMESTAMP '2024-01-01 00:00:00+02:00' $", "zone"),
    ("TypeMismatchError", "SELECT |UPPER(qty) $", ""),
    ("TypeMismatchError", "SELECT 1 + |SUBSTRING(t.symbol) $", ""),
    ("TypeMismatchError", "SELECT |9223372036854775808 $", ""),
    ("TypeMismatchError", "SELECT |CAST(tags AS STRING) $", ""),
    ("TypeMismatchError", "SELECT |CAST(t.ts AS BIGINT) $", "YEAR, MONTH"),
    ("TypeMismatchError", "SELECT |CAST(ok AS DATE) $", "BOOLEAN cannot be cast to DATE"),
    ("TypeMismatchError", "SELECT |CAST(price AS BINARY) $", ""),
    ("TypeMismatchError", "SELECT |qty::TIMESTAMP $", ""),
    ("SyntaxSqlError", "SELECT qty + |FROM trades [NOW]", ""),
    ("SyntaxSqlError", "SELECT qty, |FROM trades [NOW]", ""),
    ("SyntaxSqlError", "SELECT qty|", ""),
    ("SyntaxSqlError", "SELECT (qty |FROM trades [NOW]", ""),
    ("SyntaxSqlError", "SELECT |'abc", "quotes"),
    ("SyntaxSqlError", "SELECT 1 |/* $", "comment"),
    ("SyntaxSqlError", "SELECT |x'zz' $", "hexadecimal"),
    ("SyntaxSqlError", "SELECT 1 FROM trades [RANGE |0 SECONDS]", "[NOW]"),
    ("SyntaxSqlError", "SELECT 1 FROM trades [RANGE |1 MONTH]", "MICROSECONDS"),
    ("SyntaxSqlError", "SELECT 1 FROM trades [RANGE 5|]", ""),
    ("SyntaxSqlError", "SELECT 1 FROM trades [NOW] a |[NOW]", ""),
    ("SyntaxSqlError", "SELECT 1 FROM trades [NOW] a JOIN quotes [NOW] b |WHERE ok", "CROSS JOIN"),
    ("SyntaxSqlError", "SELECT 1 $ WHERE qty BETWEEN 1 |2", ""),
    ("SyntaxSqlError", "SELECT qty AS |select $", "backticks"),
    ("UnsupportedSqlError", "SELECT |qty, COUNT(*) $ GROUP BY t.symbol", "MAX(qty)"),
    ("UnsupportedSqlError", "SELECT |* $ GROUP BY t.symbol", "list the keys and aggregates"),
    ("UnsupportedSqlError", "SELECT |MEDIAN(qty) $", "the aggregates are COUNT"),
    ("UnsupportedSqlError", "SELECT |SUM(DISTINCT qty) $", "COUNT(DISTINCT x)"),
    ("UnsupportedSqlError", "SELECT SUM(|*) $", "only COUNT takes *"),
    ("UnsupportedSqlError", "SELECT |MAX(SUM(qty)) $", "in a subquery"),
    ("UnsupportedSqlError", "SELECT COUNT(*) $ WHERE |SUM(qty) > 1", "in HAVING"),
    ("UnsupportedSqlError", "SELECT COUNT(*) |FILTER (WHERE ok) $", "CASE WHEN"),
    ("UnsupportedSqlError", "SELECT COUNT(*) $ GROUP BY |ROLLUP(qty)", "list the keys"),
    ("UnsupportedSqlError", "SELECT COUNT(*) $ GROUP BY |RESULT_TIME", "groups of its own"),
    ("UnsupportedSqlError", "SELECT |MAX(RESULT_TIME) $", "time column"),
    ("UnsupportedSqlError", "SELECT COUNT(qty|, n) $", "one"),
    ("SyntaxSqlError", "SELECT COUNT(*) AS c $ GROUP BY |c", "an aggregate cannot be a key"),
    ("SyntaxSqlError", "SELECT COUNT(*) $ GROUP BY |3", "no such entry"),
    ("SyntaxSqlError", "SELECT COUNT(*) $ GROUP BY qty |GROUP BY n", "GROUP BY stands twice"),
    ("SyntaxSqlError", "SELECT COUNT(*) $ |SLIDE 0 SECONDS", "longer than 0"),
    ("UnsupportedSqlError", "SELECT COUNT(*) FROM trades [RANGE 1 DAY] |SLIDE 1 MILLISECOND", "a longer SLIDE"),
    ("SyntaxSqlError", "SELECT COUNT(*) $ SLIDE |soon", "a length of time"),
    ("TypeMismatchError", "SELECT |SUM(t.symbol) $", "SUM takes numbers"),
    ("TypeMismatchError", "SELECT COUNT(*) $ HAVING |MAX(qty)", "must be BOOLEAN"),
    ("UnsupportedSqlError", "SELECT |DISTINCT qty $", "DISTINCT"),
    ("UnsupportedSqlError", "SELECT 1 $ |ORDER BY qty", "ORDER BY"),
    ("UnsupportedSqlError", "SELECT 1 FROM trades WINDOW 5 SECONDS |LIMIT 3", "LIMIT"),
    ("UnsupportedSqlError", "SELECT 1 $ |UNION ALL SELECT 1 $", "UNION"),
    ("MissingWindowError", "SELECT 1 FROM (SELECT 1 FROM |trades) x", "WINDOW 10 SECONDS"),
    ("UnknownColumnError", "SELECT x.|b FROM (SELECT qty AS a FROM trades [NOW]) x", "x has no column b"),
    ("UnsupportedSqlError", "SELECT 1 FROM (SELECT 1 FROM trades [NOW]) |[NOW] x", "windows of their own"),
    ("UnsupportedSqlError", "SELECT 1 FROM (|WITH y AS (SELECT 1) SELECT 1) x", "WITH"),
    ("SyntaxSqlError", "SELECT 1 FROM (SELECT 1 FROM trades [NOW])|", "a name for the subquery"),
    ("UnsupportedSqlError", "SELECT x.r FROM (SELECT RESULT_TIME AS r $) |x", "time column"),
    ("UnsupportedSqlError", "SELECT (|SELECT 1) $", "subquery"),
    ("UnsupportedSqlError", "SELECT 1 $ WHERE qty IN (|SELECT 1)", "subquery"),
    ("UnsupportedSqlError", "SELECT 1 $ WHERE |EXISTS (SELECT 1)", "EXISTS"),
    ("UnsupportedSqlError", "SELECT 1 $ |LEFT OUTER JOIN symbols s ON TRUE", "LEFT JOIN"),
    ("UnsupportedSqlError", "SELECT 1 $ |FULL JOIN symbols s ON TRUE", "FULL JOIN"),
    ("UnsupportedSqlError", "SELECT 1 $ |SEMI JOIN symbols s ON TRUE", "SEMI JOIN"),
    ("UnsupportedSqlError", "SELECT 1 $ |ANTI JOIN symbols s ON TRUE", "ANTI JOIN"),
    ("UnsupportedSqlError", "SELECT 1 $ |NATURAL JOIN symbols", "NATURAL JOIN"),
    ("UnsupportedSqlError", "SELECT 1 $ JOIN symbols s |USING (symbol)", "ON a.k = b.k"),
    ("UnsupportedSqlError", "SELECT 1 FROM trades [|ROWS 5]", "ROWS"),
    ("UnsupportedSqlError", "SELECT 1 FROM trades [|PARTITION BY symbol ROWS 5]", "PARTITION BY"),
    ("SyntaxSqlError", "SELECT 1 FROM trades [RANGE 5 SECONDS |SLIDE 1 SECOND]", "expected ']'"),
    ("UnsupportedSqlError", "SELECT 1 $ |SLIDE 1 SECOND", "SLIDE"),
    ("SyntaxSqlError", "SELECT 1 $ |FRESHNESS 1 SECOND", "[RANGE 10 MINUTES FRESHNESS 12 MINUTES]"),
    ("SyntaxSqlError", "SELECT 1 FROM trades [|FRESHNESS 1 SECOND]", "FRESHNESS stands after a window"),
    ("SyntaxSqlError", "SELECT 1 FROM trades [RANGE 9 SECONDS |FRESHNESS 8 SECONDS]", "write FRESHNESS 9 SECONDS"),
    ("SyntaxSqlError", "SELECT 1 FROM trades WINDOW 9 SECONDS |FRESHNESS 8 SECONDS", "below the window, 9 seconds"),
    ("SyntaxSqlError", "SELECT 1 FROM trades [NOW |FRESHNESS 0 SECONDS]", "longer than 0"),
    ("SyntaxSqlError", "SELECT 1 FROM trades [NOW FRESHNESS |soon]", "a length of time"),
    ("SyntaxSqlError", "SELECT 1 FROM trades [NOW FRESHNESS 1 DAY |FRESHNESS 2 DAYS]", "FRESHNESS stands twice"),
    ("SyntaxSqlError", "SELECT 1 FROM trades WINDOW 1 DAY FRESHNESS 1 DAY |FRESHNESS 2 DAYS", "FRESHNESS stands twice"),
    ("UnsupportedSqlError", "SELECT 1 FROM trades [UNBOUNDED |FRESHNESS 1 DAY]", "FRESHNESS of an UNBOUNDED window"),
    ("UnsupportedSqlError", "SELECT 1 $, symbols [NOW |FRESHNESS 1 DAY] s", "never too old"),
    ("UnsupportedSqlError", "SELECT 1 FROM trades [NOW |FRESHNESS 1 DAY]", "it reads one stream"),
    ("UnsupportedSqlError", "SELECT 1 FROM trades [NOW |FRESHNESS 1 DAY] t, symbols s", "it reads one stream"),
    ("UnsupportedSqlError", "SELECT COUNT(*) AS n FROM trades a, trades b WINDOW 1 DAY |FRESHNESS 1 DAY", "not missing"),
    ("UnsupportedSqlError", "SELECT 1 FROM (SELECT COUNT(*) AS n FROM trades a, trades b WINDOW 1 DAY |FRESHNESS 1 DAY) x",
     "a group over a part of the rows is wrong"),
    ("UnsupportedSqlError", "SELECT 1 FROM (SELECT COUNT(*) AS n FROM trades [NOW]) x, trades [NOW |FRESHNESS 1 DAY] t",
     "a group over a part of the rows is wrong"),
    ("UnsupportedSqlError", "SELECT 1 FROM (SELECT qty FROM trades [NOW |FRESHNESS 1 DAY]) x", "it reads one stream"),
    ("UnsupportedSqlError", "SELECT |RANK() OVER (ORDER BY qty) $", "window function"),
    ("UnsupportedSqlError", "SELECT ABS(qty) |OVER () $", "OVER"),
    ("UnsupportedSqlError", "|WITH x AS (SELECT 1) SELECT 1 $", "WITH"),
    ("UnsupportedSqlError", "|ISTREAM (SELECT 1 $)", "ISTREAM"),
    ("UnsupportedSqlError", "SELECT |RSTREAM qty $", "RSTREAM"),
    ("UnsupportedSqlError", "SELECT |DSTREAM(qty) $", "DSTREAM"),
    ("UnsupportedSqlError", "SELECT 1 $ |LATERAL VIEW explode(tags) x", "LATERAL"),
    ("UnsupportedSqlError", "SELECT |UPER(t.symbol) $", "did you mean UPPER?"),
    ("UnsupportedSqlError", "SELECT |EXTRACT(YEAR FROM t.ts) $", "YEAR(ts)"),
    ("UnsupportedSqlError", "SELECT |CURRENT_TIMESTAMP $", "RESULT_TIME"),
    ("UnsupportedSqlError", "SELECT 1 $, symbols |[NOW] s", "stored table"),
    ("UnsupportedSqlError", "SELECT name FROM |symbols", "join at least one stream"),
    ("UnsupportedSqlError", "SELECT |tags.a $", "field"),
    ("UnsupportedSqlError", "SELECT t.tags.|a $", "field"),
    ("UnsupportedSqlError", "SELECT tags|[0] $", "nested"),
    ("UnsupportedSqlError", "SELECT |qty & 1 $", "&"),
    ("UnsupportedSqlError", "SELECT |t.symbol ILIKE 'a' $", "ILIKE"),
    ("UnsupportedSqlError", "SELECT CAST(qty AS |UUID) $", "UUID"),
    ("UnsupportedSqlError", "|DROP TABLE trades", "DROP"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "marked", "said"), BAD, ids=[sql for _, sql, _ in BAD])
def test_error_names_place_and_remedy(kind: str, marked: str, said: str) -> None:
    marked = marked.replace("$", FROM)
    at = marked.index("|")
    sql = marked[:at] + marked[at + 1 :]
    with pytest.raises(SqlError) as caught:
        bind(sql)
    assert type(caught.value) is getattr(errors, kind)
    assert (caught.value.line, caught.value.column) == (marked[:at].count("\n") + 1, at - marked.rfind("\n", 0, at))
    assert said in str(caught.value)


def test_nesting_has_an_end() -> None:
    for sql in ("(" * 5000, "NOT " * 5000, "-" * 4999 + " 1", " || ".join(["t.symbol"] * 5000), "CASE WHEN " * 3000):
        with pytest.raises(errors.SyntaxSqlError):
            bind(f"SELECT {sql} {FROM}")


WORDS = r"""
SELECT FROM WHERE WINDOW JOIN ON AS AND OR NOT IN IS NULL LIKE BETWEEN CASE WHEN THEN ELSE END CAST ( ) [ ] ,
; . * + - / % = <> < > <= || :: ' " ` 'x' 1 2.5 1e9 1e999 .5 x'f' @ ? : { } # $ ^ & | ~ ! \ -> => -- /* */ t q
trades quotes symbols t.symbol q.n price qty tags ts RANGE NOW UNBOUNDED SECONDS MINUTE INTERVAL DATE
TIMESTAMP '2024-01-01' CREATE STREAM TABLE QUERY PLAN TIME LATENESS AHEAD IDLE NONE FORMAT STRING INT DECIMAL ARRAY< STRUCT<
ERROR SKIP INTO MAP< > UPPER( SUBSTRING( COUNT( IF( ROUND( GROUP BY ORDER WITH UNION OVER DISTINCT ESCAPE FOR AT TIME ZONE
RESULT_TIME RLIKE DIV <=> COLLATE JSON NaN
"""
SOUP = st.lists(st.sampled_from(WORDS.split()), max_size=25).map(" ".join)


def only_sql_errors(sql: str) -> None:
    """Whatever else is raised fails the test by itself."""
    try:
        parse_script(sql, CATALOG)
    except SqlError as error:
        shown = error.sql.splitlines() or [""]
        if not (1 <= error.line <= len(shown) and 1 <= error.column <= len(shown[error.line - 1]) + 1):
            pytest.fail(f"{error.line}:{error.column} is not in {error.sql!r}")


@settings(max_examples=300, deadline=None)
@given(SOUP, st.sampled_from(("{}", "SELECT {} $", "SELECT 1 $ {}", "CREATE STREAM s (a {} TIME a")))
def test_word_soup_raises_nothing_else(soup: str, around: str) -> None:
    only_sql_errors(around.replace("{}", soup).replace("$", FROM))


@settings(max_examples=200, deadline=None)
@given(SOUP.map(lambda soup: f"SELECT 1 {FROM} WHERE {soup}"), st.data())
def test_conditions_with_holes_raise_nothing_else(sql: str, data: st.DataObject) -> None:
    good = f"SELECT CASE WHEN ok THEN 1 END, t.ts + INTERVAL 1 DAY {FROM} WHERE qty IN (1, n) AND t.symbol LIKE 'a%'"
    text = data.draw(st.sampled_from((sql, good, SOURCES.strip())))
    start = data.draw(st.integers(0, len(text)))
    only_sql_errors(text[:start] + data.draw(SOUP) + text[data.draw(st.integers(start, len(text))) :])


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
def test_any_text_raises_nothing_else(sql: str) -> None:
    only_sql_errors(sql)
