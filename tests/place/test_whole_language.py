"""Every function and operator of the language, over hostile values, in the engine and in DuckDB: what is on the list of what
DuckDB computes gives the same there, bit by bit, and everything else is off the list.

Functions are those of the language's own table, and what all expressions here become must be all operations that the engine
has: a function, operator or operation that is new fails a test until it is looked at.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest

from anabranch.engine.expressions import OPERATIONS, evaluate
from anabranch.errors import SqlError
from anabranch.place.capabilities import COMPUTED, why_not_computed
from anabranch.place.databases.embedded import open_embedded
from anabranch.place.sql_text import PRINTED, expression_text
from anabranch.plan.expression import Call, Expr, walk
from anabranch.sql import Catalog, bind_query, parse_script
from anabranch.sql.functions import FUNCTIONS
from anabranch.sql.types import SIMPLE_TYPES, spell
from tests.support.hostile import HOSTILE, bits, column_of

KINDS = [*HOSTILE]
COLUMNS = {f"{chr(97 + n)}{place}": (kind, 31 * n + place) for n, kind in enumerate(KINDS) for place in range(2)}
ROWS = pa.table({name: column_of(kind, 300, seed) for name, (kind, seed) in COLUMNS.items()})
DUCK = open_embedded("duck")

OPERATORS = {
    "OR": "{x} OR {y}", "AND": "{x} AND {y}", "NOT": "NOT {x}", "=": "{x} = {y}", "==": "{x} == {y}", "<>": "{x} <> {y}",
    "!=": "{x} != {y}", "<=>": "{x} <=> {y}", "<": "{x} < {y}", "<=": "{x} <= {y}", ">": "{x} > {y}", ">=": "{x} >= {y}",
    "IS": "{x} IS NULL", "IN": "{x} IN ({y}, {x})", "BETWEEN": "{x} BETWEEN {y} AND {x}", "LIKE": "{x} LIKE 'a%_'",
    r"\|\|": "{x} || {y}", "+": "{x} + {y}", "-": "{x} - {y}", "*": "{x} * {y}", "/": "{x} / {y}", "%": "{x} % {y}",
    "-x": "-{x}", "+x": "+{x}", "x::type": "{x}::STRING", "CASE": "CASE WHEN {x} = {y} THEN {x} ELSE {y} END",
    "INTERVAL": "{x} + INTERVAL 90 MINUTES",
}  # fmt: skip
"""The operators, as docs/sql.md writes them."""


@cache
def catalog() -> Catalog:
    columns = ", ".join(f"{name} {spell(kind)}" for name, (kind, _) in COLUMNS.items())
    return parse_script(f"CREATE STREAM t ({columns}, ts TIMESTAMP) TIME ts").catalog


def bound(text: str) -> Expr | None:
    """An expression; None if the language does not take it."""
    try:
        return bind_query("q", f"SELECT {text} AS x FROM t [NOW]", catalog()).select[0][1]
    except SqlError:
        return None


def calls_of(name: str) -> list[Expr]:
    """A function over columns of each type that it takes, and constants."""
    function, found = FUNCTIONS[name], []
    most = function.least + 2 if function.most is None else function.most
    for n in range(len(KINDS)):
        x, y = f"{chr(97 + n)}0", f"{chr(97 + n)}1"
        for count in range(function.least, most + 1):
            ways = {(x, y, x)[:count], (x, "1", "2")[:count], (x, "2")[:count], ("a0", x, y)[:count]}
            found += [bound(f"{name}({', '.join(args)})") for args in sorted(ways) if len(args) == count]
    return [each for each in found if each is not None]


def operations_of(text: str) -> list[Expr]:
    """An operator over two columns of each type, and of types that meet in a third."""
    names = [chr(97 + n) for n in range(len(KINDS))]
    pairs = [(f"{one}0", f"{one}1") for one in names]
    pairs += [(f"{one}0", f"{other}0") for one in names for other in names if one < other]
    found = [bound(text.format(x=x, y=y)) for x, y in pairs]
    return [each for each in found if each is not None]


def casts() -> list[Expr]:
    kinds = dict.fromkeys([*SIMPLE_TYPES, "DECIMAL(10,2)", "DECIMAL(38,6)", "DECIMAL(3,0)"])
    found = [bound(f"CAST({name} AS {kind})") for name in COLUMNS if name.endswith("0") for kind in kinds]
    return [each for each in found if each is not None]


def check(exprs: list[Expr]) -> set[str]:
    """Runs expressions in the engine, and those that are on the list in DuckDB; the operations in all of them."""
    assert exprs, "the language takes it for no type: nothing is tested"
    listed = [expr for expr in exprs if why_not_computed(expr) is None]
    ours = {expr: evaluate(expr, lambda c: ROWS.column(c.name).combine_chunks(), ROWS.num_rows) for expr in exprs}
    if listed:
        select = ", ".join(f"{expression_text(expr)} AS x{n}" for n, expr in enumerate(listed))
        given = DUCK.run(f"SELECT {select} FROM t", {"t": ROWS})
        for n, expr in enumerate(listed):
            theirs = given.column(n).combine_chunks()
            assert theirs.type == expr.type, str(expr)
            wrong = [(a, b) for a, b in zip(bits(ours[expr]), bits(theirs), strict=True) if a != b]
            assert not wrong, (str(expr), wrong[:3])
    return {node.op for expr in exprs for node in walk(expr) if isinstance(node, Call)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    check(calls_of(name))


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str) -> None:
    check(operations_of(OPERATORS[name]))


def test_casts() -> None:
    check(casts())


def test_these_are_all_operations_that_the_engine_has() -> None:
    reached = {node.op for expr in casts() for node in walk(expr) if isinstance(node, Call)}
    for exprs in (*map(calls_of, FUNCTIONS), *map(operations_of, OPERATORS.values())):
        reached |= {node.op for expr in exprs for node in walk(expr) if isinstance(node, Call)}
    assert reached == OPERATIONS.keys()
    assert COMPUTED.keys() <= reached


def test_these_are_all_operators_and_functions_of_the_document() -> None:
    document = (Path(__file__).parents[2] / "docs" / "sql.md").read_text()
    operators = document.partition("### Operators")[2].partition("### Functions")[0]
    cells = [re.split(r"(?<!\\)\|", line)[1] for line in operators.splitlines() if line.startswith("| `")]
    written = {word for cell in cells for word in re.findall(r"`([^`]+)`", cell)}
    assert len(written) > 20
    assert written <= OPERATORS.keys(), "not tested"
    functions = document.partition("### Functions")[2].partition("### NULL")[0]
    rows = [line for line in functions.splitlines() if line.startswith("| `")]
    named = {name for line in rows for name in re.findall(r"`([A-Z_]{2,})\b", line)}
    assert named == FUNCTIONS.keys()


def test_a_list_that_is_too_long_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMPUTED, "lt", lambda call: True)
    monkeypatch.setitem(PRINTED, "lt", PRINTED["le"])
    with pytest.raises(AssertionError):
        check(operations_of("{x} < {y}"))
