"""What a SELECT reads, by the tree that DuckDB's own parser makes of it (`json_serialize_sql`).

A block runs over the windows that it names and over nothing else, and gives the same for the same rows. So FROM may name
inputs, subqueries, VALUES and the few table functions that only compute; functions that read the clock, a setting, a
sequence or chance are refused (`duckdb_functions.py` beside this), and so are samples.

What WITH defines has its name in the statement that it stands in, in what is defined after it, and in itself if that is
recursive. Anywhere else the name is that of an input, or of one of DuckDB's own tables, which no block may read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from anabranch.place.databases.duckdb_functions import CLOCKS_ALONE, WORDS
from anabranch.plan.statement import NameAt, StatementError, Words

TABLE_FUNCTIONS = frozenset({"range", "generate_series", "unnest"})
"""Functions in FROM that compute rows from their arguments alone."""

RELATIONS = frozenset({"BASE_TABLE", "SUBQUERY", "JOIN", "EXPRESSION_LIST", "EMPTY", "TABLE_FUNCTION", "PIVOT"})
"""What may stand in FROM, as the tree calls it."""

RECURSIVE = "RECURSIVE_CTE_NODE"
"""A part of WITH that reads itself, as the tree calls it."""

SAME = "a batch that is run again must give the same"

WHOLE_ROWS = frozenset({"STAR", "POSITIONAL_REFERENCE"})
"""Expressions that mean columns without naming them."""


def words_of(sql: str, tree: dict[str, Any], unstable: Collection[str]) -> Words:
    """What a statement reads; `unstable` are functions whose result is not one of their arguments alone."""
    if tree.get("error"):
        message = str(tree.get("error_message", "the text cannot be read"))
        if tree.get("error_type") == "not implemented":
            raise StatementError("a block of a database is one SELECT", 0, "write SELECT … FROM stream [RANGE 5 MINUTES]")
        raise StatementError(message, char_of(sql, tree.get("position")))
    statements = tree["statements"]
    if len(statements) != 1:
        raise StatementError(f"a block of a database is one SELECT, not {len(statements)}", 0, "leave out ';'")
    tables: dict[str, NameAt] = {}
    columns: set[str] = set()
    is_whole = False
    for node, defined in _nodes(statements[0]):
        kind, at = str(node.get("type", "")), char_of(sql, node.get("query_location"))
        if node.get("sample") is not None:
            place = at if at is not None else char_of(sql, node.get("from_table", {}).get("query_location"))
            raise StatementError("a sample is not supported: it has other rows each time", place, SAME)
        if node.get("class") == "COLUMN_REF":
            _check_word(node["column_names"], at)
            columns |= {str(name).lower() for name in node["column_names"]}
        is_whole = is_whole or node.get("class") in WHOLE_ROWS or node.get("ref_type") == "NATURAL"
        columns |= {str(name).lower() for name in node.get("using_columns", ())}
        if kind == "TABLE_FUNCTION" or "function_name" in node:
            _check_function(node, kind, at, unstable)
        if kind == "BASE_TABLE":
            name = str(node["table_name"])
            if node.get("schema_name") or node.get("catalog_name"):
                raise StatementError(f"a name of several parts, {node.get('schema_name')}.{name}, is not supported", at,
                                     "streams and tables have one name")  # fmt: skip
            if name.lower() not in defined:
                tables.setdefault(name.lower(), NameAt(name, at or 0))
        elif "sample" in node and "select_list" not in node and kind not in RELATIONS:
            raise StatementError(f"{kind.replace('_', ' ').lower()} in FROM is not supported", at,
                                 "select from streams with windows, and from stored tables")  # fmt: skip
    return Words(tuple(tables.values()), None if is_whole else frozenset(columns))


def char_of(sql: str, place: Any) -> int | None:
    """The place in characters of a place in bytes; None, if there is none.

    >>> char_of("é = x", 5), char_of("x", 2**64 - 1), char_of("x", None)
    (4, None, None)
    """
    data = sql.encode()
    if place is None or not 0 <= int(place) <= len(data):
        return None
    return len(data[: int(place)].decode(errors="ignore"))


def _check_function(node: dict[str, Any], kind: str, at: int | None, unstable: Collection[str]) -> None:
    called = node["function"] if kind == "TABLE_FUNCTION" else node
    name = str(called.get("function_name", "")).lower()
    if kind == "TABLE_FUNCTION" and name not in TABLE_FUNCTIONS:
        raise StatementError(f"the table function {name} is not supported", at,
                             "a block reads streams with windows, and stored tables")  # fmt: skip
    is_clock = name in CLOCKS_ALONE and len(called.get("arguments", ())) < 2  # the first may stand ahead of it: x.age()
    if kind != "TABLE_FUNCTION" and (is_clock or name in unstable):
        raise StatementError(f"{name} is not supported: its result is not one of the rows alone", at, SAME)


def _check_word(names: Sequence[str], at: int | None) -> None:
    if len(names) == 1 and names[0].lower() in WORDS:
        raise StatementError(f"{names[0]} is not supported: its result is not one of the rows alone", at,
                             f"{SAME}; of a column, write its input, too: x.{names[0]}")  # fmt: skip


def _nodes(tree: Any, defined: frozenset[str] = frozenset()) -> Iterator[tuple[dict[str, Any], frozenset[str]]]:
    """Every object in a tree, with the names that WITH has defined where it stands."""
    left = [(tree, defined)]
    while left:
        node, defined = left.pop()
        if isinstance(node, list):
            left += [(each, defined) for each in node]
        if not isinstance(node, dict):
            continue
        parts = dict(node)
        for each in parts.pop("cte_map", {}).get("map", ()):
            left.append((each["value"], defined))
            defined |= {str(each["key"]).lower()}
        if node.get("type") == RECURSIVE:
            left.append((parts.pop("right"), defined | {str(node["cte_name"]).lower()}))
        yield node, defined
        left += [(part, defined) for part in parts.values()]
