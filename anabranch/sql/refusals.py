"""What is SQL elsewhere but not here (yet): how it is called, and what to write instead."""

from __future__ import annotations

from sqlglot import TokenType

OWN_QUERY = "make it a query of its own"
REFUSED_TOKENS: dict[TokenType, tuple[str, str]] = {
    TokenType.QUALIFY: ("QUALIFY", "filter rows with WHERE"),
    TokenType.ORDER_BY: ("ORDER BY", "results of a stream have no end to sort at; sort what the sink has received"),
    TokenType.LIMIT: ("LIMIT", "a continuous query has no last row; filter with WHERE"),
    TokenType.OFFSET: ("OFFSET", "a continuous query has no first row; filter with WHERE"),
    TokenType.UNION: ("UNION", "write one CREATE QUERY for each part, into the same sink"),
    TokenType.EXCEPT: ("EXCEPT", OWN_QUERY),
    TokenType.INTERSECT: ("INTERSECT", "join the two streams on all columns"),
    TokenType.LATERAL: ("LATERAL", "join streams and tables by name"),
    TokenType.PARTITION_BY: ("PARTITION BY", "windows are [RANGE d], [NOW] or [UNBOUNDED]"),
    TokenType.USING: ("USING", "write ON a.k = b.k"),
    TokenType.NATURAL: ("NATURAL JOIN", "write JOIN … ON a.k = b.k"),
    TokenType.LEFT: ("a LEFT JOIN", "only inner joins are supported yet; write JOIN"),
    TokenType.RIGHT: ("a RIGHT JOIN", "only inner joins are supported yet; write JOIN"),
    TokenType.FULL: ("a FULL JOIN", "only inner joins are supported yet; write JOIN"),
    TokenType.OUTER: ("an OUTER JOIN", "only inner joins are supported yet; write JOIN"),
    TokenType.SEMI: ("a SEMI JOIN", "only inner joins are supported yet; write JOIN"),
    TokenType.ANTI: ("an ANTI JOIN", "only inner joins are supported yet; write JOIN"),
    TokenType.WITH: ("WITH", "write the subquery in FROM: FROM (SELECT …) x"),
    TokenType.VALUES: ("VALUES", "create a table and join it"),
    TokenType.UNNEST: ("UNNEST", "nested columns can only be selected"),
    TokenType.OVER: ("a window function (OVER)", "windows stand in FROM: stream [RANGE 10 SECONDS]"),
    TokenType.DISTINCT: ("DISTINCT", "select the rows as they are and remove repetitions in the sink"),
}
REFUSED_WORDS: dict[str, tuple[str, str]] = {
    "ROWS": ("a ROWS window", "write [RANGE d], [NOW] or [UNBOUNDED]"),
    "ISTREAM": ("ISTREAM", "leave it out: results are emitted when they appear"),
    "DSTREAM": ("DSTREAM", "leave it out: results are emitted when they appear"),
    "RSTREAM": ("RSTREAM", "leave it out: results are emitted when they appear"),
    "TABLESAMPLE": ("TABLESAMPLE", "filter with WHERE"),
    "PIVOT": ("PIVOT", "write CASE expressions"),
    "UNPIVOT": ("UNPIVOT", OWN_QUERY),
    "FETCH": ("FETCH", "a continuous query has no last row; filter with WHERE"),
    "MINUS": ("MINUS", OWN_QUERY),
    "ASOF": ("an ASOF JOIN", "join with windows: [RANGE d]"),
}  # fmt: skip
REFUSED_STATEMENTS = ("DROP", "ALTER", "INSERT", "DELETE", "UPDATE", "MERGE", "SET", "USE", "SHOW", "EXPLAIN")
OUTPUT_WORDS = ("ISTREAM", "DSTREAM", "RSTREAM")
