"""What GROUP BY means: a column before a name of the select list, a place, each key once."""

from __future__ import annotations

import pytest

from anabranch.errors import SyntaxSqlError, UnsupportedSqlError
from tests.sql.sources import bind

FROM = "FROM trades [RANGE 10 SECONDS] AS t"


def keys_of(select: str, group_by: str) -> list[str]:
    query = bind(f"SELECT {select} {FROM} GROUP BY {group_by}")
    assert query.grouping is not None
    return [str(expr) for _, expr in query.select[: query.grouping.keys]]


def test_a_column_comes_before_a_name_of_the_select_list() -> None:
    assert keys_of("MAX(qty) AS day, COUNT(*) AS n", "day") == ["t.day"]
    with pytest.raises(UnsupportedSqlError, match="price is neither in GROUP BY nor in an aggregate"):
        bind(f"SELECT price AS day, COUNT(*) AS n {FROM} GROUP BY day")
    assert keys_of("qty % 2 AS odd, COUNT(*) AS n", "odd") == keys_of("qty % 2 AS odd, COUNT(*) AS n", "qty % 2")


def test_places_count_from_one() -> None:
    assert keys_of("symbol, day, COUNT(*) AS n", "2, 1") == ["t.day", "t.symbol"]
    for place in ("0", "4", "1.5"):
        with pytest.raises(SyntaxSqlError, match="there is no such entry in the select list"):
            bind(f"SELECT symbol, day, COUNT(*) AS n {FROM} GROUP BY {place}")


def test_a_key_that_stands_twice_is_one() -> None:
    assert keys_of("symbol, COUNT(*) AS n", "symbol, t.symbol, 1") == ["t.symbol"]
