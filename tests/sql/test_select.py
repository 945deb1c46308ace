"""SELECT: windows, joins, names, and where each predicate goes."""

from __future__ import annotations

import pytest

from anabranch.plan.query import NOW, STORED, UNBOUNDED, Window, range_window
from tests.sql.sources import FROM, bind, where

MINUTE = range_window(60_000_000)


@pytest.mark.parametrize(
    ("clause", "windows"),
    [
        ("trades [RANGE 10 SECONDS]", {"trades": range_window(10_000_000)}),
        ("trades [RANGE 1.5 MINUTES] AS a", {"a": range_window(90_000_000)}),
        ("trades AS a [RANGE 1 MINUTE]", {"a": MINUTE}),
        ("trades [RANGE INTERVAL '1' MINUTE] a", {"a": MINUTE}),
        ("trades [RANGE INTERVAL '60 seconds'] a", {"a": MINUTE}),
        ("trades [range 500 milliseconds] a", {"a": range_window(500_000)}),
        ("trades [NOW] a, quotes [UNBOUNDED] b, symbols", {"a": NOW, "b": UNBOUNDED, "symbols": STORED}),
        ("trades a, quotes [NOW] b, symbols c WINDOW 1 MINUTE", {"a": MINUTE, "b": NOW, "c": STORED}),
        ("trades a CROSS JOIN quotes b INNER JOIN symbols ON TRUE WINDOW 1 MINUTE",
         {"a": MINUTE, "b": MINUTE, "symbols": STORED}),
        ("Trades [NOW] T", {"T": NOW}),
    ],
)  # fmt: skip
def test_windows(clause: str, windows: dict[str, Window]) -> None:
    assert {i.alias: i.window for i in bind(f"SELECT 1 FROM {clause}").inputs} == windows


@pytest.mark.parametrize(
    ("condition", "places"),
    [
        ("t.symbol = q.symbol", {"=": ["t.symbol = q.symbol"]}),
        ("qty = n", {"=": ["CAST(t.qty AS int64) = q.n"]}),
        ("t.amount = q.n + 1", {"=": ["CAST(t.amount AS decimal128(22, 2)) = CAST((q.n + 1) AS decimal128(22, 2))"]}),
        ("UPPER(t.symbol) = q.symbol || 'x'", {"=": ["upper(t.symbol) = concat(q.symbol, 'x')"]}),
        ("(t.symbol = q.symbol AND (qty > 3)) AND (q.n) = 5",
         {"=": ["t.symbol = q.symbol"], "t": ["(CAST(t.qty AS int64) > 3)"], "q": ["(q.n = 5)"]}),
        ("t.symbol = q.symbol OR ok", {"residual": ["((t.symbol = q.symbol) OR t.ok)"]}),
        ("price BETWEEN bid AND 10",
         {"t": ["(t.price <= 10.0)"], "residual": ["(t.price >= CAST(q.bid AS double))"]}),
        ("t.ts > q.ts - INTERVAL 5 SECONDS", {"residual": ["(t.ts > (q.ts - 0:00:05))"]}),
        ("t.symbol <> q.symbol", {"residual": ["(t.symbol <> q.symbol)"]}),
        ("qty + n = n", {"residual": ["((CAST(t.qty AS int64) + q.n) = q.n)"]}),
        ("1 = 1 AND TRUE", {"residual": ["(1 = 1)", "True"]}),
        ("tags IS NOT NULL", {"t": ["not(is_null(t.tags))"]}),
    ],
)  # fmt: skip
def test_predicates_go_where_they_belong(condition: str, places: dict[str, list[str]]) -> None:
    assert where(condition) == places


def test_on_and_where_are_one_conjunction() -> None:
    query = bind(
        "SELECT a.qty FROM trades [NOW] a JOIN quotes [NOW] b ON a.symbol = b.symbol AND a.ok "
        "JOIN trades [NOW] c ON c.qty = b.n WHERE c.symbol = a.symbol"
    )
    assert [str(e) for e in query.equalities] == [
        "a.symbol = b.symbol", "CAST(c.qty AS int64) = b.n", "c.symbol = a.symbol",
    ]  # fmt: skip
    assert [str(f) for f in query.input("a").filters] == ["a.ok"]


@pytest.mark.parametrize(
    ("items", "names"),
    [
        ("t.Symbol, PRICE", ["Symbol", "PRICE"]),
        ("qty AS a, n b, q.n", ["a", "b", "n"]),
        ("qty + 1, price, n + 1", ["col1", "price", "col3"]),
        ("q.*, price", ["symbol", "bid", "n", "raw", "ts", "price"]),
        ("Result_Time, result_time AS rt", ["Result_Time", "rt"]),
    ],
)
def test_output_names(items: str, names: list[str]) -> None:
    assert bind(f"SELECT {items} {FROM}").output_schema.names == names


def test_star() -> None:
    assert bind("SELECT * FROM quotes [NOW]").output_schema.names == ["symbol", "bid", "n", "raw", "ts"]


def test_a_thousand_conditions() -> None:
    for connector in (" OR ", " AND "):
        assert len(bind(f"SELECT qty {FROM} WHERE {connector.join(['qty = n'] * 1000)}").inputs) == 2
