"""Queries built by hand, random ones, and random plans for them."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
from hypothesis import strategies as st

from anabranch.plan.expression import Call, Column, Expr, Literal, ResultTime
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Join, Leaf, Plan
from anabranch.plan.query import Equality, Field, Input, Query, Stream, Window, range_window

INT, TEXT, BOOL, TIME = pa.int64(), pa.string(), pa.bool_(), pa.timestamp("us")
FIELDS = (*(Field(name, INT) for name in "xyz"), Field("s", TEXT), Field("ts", TIME))
SECOND = range_window(1_000_000)


def stream(name: str) -> Stream:
    return Stream(name, FIELDS, "ts")


def column(text: str) -> Column:
    """`A.x` as a column; x, y and z are integers, s is a string."""
    alias, name = text.split(".")
    return Column(next(f.type for f in FIELDS if f.name == name), alias, name)


def equal(text: str) -> Equality:
    left, right = text.split(" = ")
    return Equality(column(left), column(right))


def less(left: str, right: str) -> Call:
    return Call(BOOL, "lt", (column(left), column(right)))


def query(
    aliases: str,
    equalities: str = "",
    residuals: tuple[Expr, ...] = (),
    windows: dict[str, Window] | None = None,
    filters: dict[str, tuple[Expr, ...]] | None = None,
    sources: dict[str, Stream] | None = None,
    select: tuple[tuple[str, Expr], ...] | None = None,
) -> Query:
    """A query over streams named like their aliases, e.g. `query("A B C", "A.x = B.x, B.y = C.y")`."""
    names = aliases.split()
    inputs = tuple(
        Input(
            a, (sources or {}).get(a) or stream(a.lower()), (windows or {}).get(a, SECOND), (filters or {}).get(a, ())
        )
        for a in names
    )
    return Query(
        "q",
        inputs,
        tuple(equal(e) for e in equalities.split(", ") if e),
        residuals,
        select or tuple((f"{a}_x", column(f"{a}.x")) for a in names),
    )


def graph(aliases: str, equalities: str = "", residuals: tuple[Expr, ...] = ()) -> JoinGraph:
    return JoinGraph(query(aliases, equalities, residuals))


@st.composite
def graphs(draw: st.DrawFn, min_inputs: int = 2, max_inputs: int = 6) -> JoinGraph:
    """Any join graph: chains, stars, cycles, products; with residual predicates over any inputs, none, or the result."""
    names = draw(st.permutations("ABCDEF"))[: draw(st.integers(min_inputs, max_inputs))]
    equalities, residuals = [], []
    for _ in range(draw(st.integers(0, 8))):
        left, right = draw(st.permutations(names))[:2]
        # Expressions are terms of their own: x + 1 is in no class with x.
        terms = [column(f"{a}.{draw(st.sampled_from('xyz'))}") for a in (left, right)]
        if draw(st.integers(0, 4)) == 0:
            terms[0] = Call(INT, "add", (terms[0], Literal(INT, 1)))
        equalities.append(Equality(*terms))
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["columns", "columns", "nothing", "time"]))
        args: list[Expr] = [column(f"{a}.z") for a in draw(st.permutations(names))[: draw(st.integers(2, len(names)))]]
        if kind == "nothing":
            args = [Literal(INT, 1), Literal(INT, 2)]
        elif kind == "time":
            args = [Call(INT, "cast", (ResultTime(TIME),)), args[0]]
        residuals.append(Call(BOOL, "in", tuple(args)))
    built = query(" ".join(names), "", tuple(residuals))
    return JoinGraph(Query("q", built.inputs, tuple(equalities), tuple(residuals), built.select))


@st.composite
def plans_for(draw: st.DrawFn, aliases: tuple[str, ...]) -> Plan:
    """Any jtree over the aliases, with any probe orders."""
    if len(aliases) == 1:
        return Leaf(aliases[0])
    shuffled = draw(st.permutations(aliases))
    cuts = draw(st.sets(st.integers(1, len(aliases) - 1), min_size=1))
    edges = [0, *sorted(cuts), len(aliases)]
    inputs = tuple(draw(plans_for(tuple(shuffled[a:b]))) for a, b in pairwise(edges))
    orders = tuple(tuple(draw(st.permutations([j for j in range(len(inputs)) if j != i]))) for i in range(len(inputs)))
    return Join(inputs, orders)


@st.composite
def planned(draw: st.DrawFn, max_inputs: int = 6) -> tuple[JoinGraph, Plan]:
    found = draw(graphs(max_inputs=max_inputs))
    return found, draw(plans_for(found.query.aliases))


def components(pairs: list[tuple[Expr, Expr]]) -> set[frozenset[Expr]]:
    """Which expressions are equal if these pairs are: the slow way, until nothing changes."""
    sets = [{left, right} for left, right in pairs]
    while True:
        overlapping = next(((a, b) for a in sets for b in sets if a is not b and a & b), None)
        if overlapping is None:
            return {frozenset(s) for s in sets}
        overlapping[0].update(overlapping[1])
        sets = [s for s in sets if s is not overlapping[1]]
