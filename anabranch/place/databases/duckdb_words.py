"""What a SELECT reads, by the tree that DuckDB's own parser makes of it (`json_serialize_sql`).

A block runs over the windows that it names and over nothing else, and gives the same for the same rows. So FROM may name
inputs, subqueries, VALUES and the few table functions that only compute; functions that read the clock, a setting, a
sequence or chance are refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from anabranch.plan.statement import NameAt, StatementError, Words

TABLE_FUNCTIONS = frozenset({"range", "generate_series", "unnest"})
"""Functions in FROM that compute rows from their arguments alone."""

RELATIONS = frozenset({"BASE_TABLE", "SUBQUERY", "JOIN", "EXPRESSION_LIST", "EMPTY", "TABLE_FUNCTION", "PIVOT"})
"""What may stand in FROM, as the tree calls it."""

CLOCKS = frozenset({"current_timestamp", "current_date", "current_time", "localtime", "localtimestamp"})
"""Words that look like columns and read the clock."""

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
    defined: set[str] = set()
    columns: set[str] = set()
    is_whole = False
    for node in _nodes(statements[0]):
        kind, at = str(node.get("type", "")), char_of(sql, node.get("query_location"))
        defined |= {str(each["key"]).lower() for each in node.get("cte_map", {}).get("map", ())}
        if kind == "RECURSIVE_CTE_NODE":
            defined.add(str(node.get("cte_name", "")).lower())
        if node.get("class") == "COLUMN_REF":
            _check_stable(str(node["column_names"][-1]), at, CLOCKS)
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
            tables.setdefault(name.lower(), NameAt(name, at or 0))
        elif "sample" in node and "select_list" not in node and kind not in RELATIONS:
            raise StatementError(f"{kind.replace('_', ' ').lower()} in FROM is not supported", at,
                                 "select from streams with windows, and from stored tables")  # fmt: skip
    found = tuple(name for key, name in tables.items() if key not in defined)
    return Words(found, None if is_whole else frozenset(columns))


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
    if kind != "TABLE_FUNCTION":
        _check_stable(name, at, unstable)


def _check_stable(name: str, at: int | None, unstable: Collection[str]) -> None:
    if name.lower() in unstable:
        raise StatementError(f"{name} is not supported: its result is not one of the rows alone", at,
                             "a batch that is run again must give the same")  # fmt: skip


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Every object in a tree."""
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            yield node
            left += node.values()
        elif isinstance(node, list):
            left += node
