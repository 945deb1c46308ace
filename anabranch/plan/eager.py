"""GROUP BY below a join (Zhu, dissertation 2006, chapter 14): rows of one input are grouped before they are joined.

    SELECT b.g, SUM(a.x) FROM a, b WHERE a.k = b.k GROUP BY b.g

gives at every instant the same as

    SELECT b.g, SUM(s.x) FROM (SELECT k, SUM(x) AS x FROM a GROUP BY k) s, b WHERE s.k = b.k GROUP BY b.g

for a row of b that is valid at the instant meets each valid row of a with its key once, whether they come one by one or
summed up. (A row of b that begins between two instants meets the sum of the first, but not at an instant.) COUNT becomes a
sum of counts, MIN and MAX those of the parts, AVG and SUM those of partial sums (`PARTS`). COUNT DISTINCT and STDDEV stay
where they are.

If b has at most one row for each key (the key/foreign-key case), every group below has at most one partner above, and if the
keys of the groups are the key of the join, nothing is left for the upper grouping to do but to hand on.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import pyarrow as pa

from anabranch.plan.expression import Call, Column, Expr, ResultTime, aliases_of, columns_of
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.query import (
    GROUP,
    INSTANT,
    PARTS,
    Aggregate,
    Derived,
    Equality,
    Field,
    Grouping,
    Input,
    Query,
    Stream,
    range_window,
)

MOVABLE = frozenset({"count", "sum", "avg", "min", "max"})


class Forms:
    """A query as it is written, and with the groups of one input below the join, for each input that may have them. A form
    is named by that input, the *grouped* one; as written, by None."""

    def __init__(self, query: Query) -> None:
        self.written = query

    @cached_property
    def graphs(self) -> dict[str | None, JoinGraph]:
        """The forms, by name."""
        found: dict[str | None, JoinGraph] = {None: JoinGraph(self.written)}
        for alias in pushable_inputs(self.written):
            found[alias] = JoinGraph(with_groups_below(self.written, alias))
        return found

    def query(self, grouped_input: str | None) -> Query:
        return self.graphs[grouped_input].query

    def grouped(self, one: str | None, other: str | None) -> Input:
        """The input whose rows are grouped elsewhere in another form."""
        alias = one or other
        assert alias is not None, "one of two forms groups an input"
        return self.written.input(alias)

    def why_not(self, old: str | None, new: str | None) -> str | None:
        """Why groups cannot go from one form to another while the query runs; None if they can."""
        if new is not None and new not in self.graphs:
            able = ", ".join(name for name in self.graphs if name is not None) or "none"
            return f"rows of {new} cannot be grouped before they are joined; inputs of which that is possible: {able}"
        if old is not None and new is not None and old != new:
            return f"the groups of {old} stand below the join: take them above it before those of {new} go below"
        source = self.grouped(old, new).source
        if sum(1 for block in self.written.blocks for i in block.inputs if i.source is source) > 1:
            return f"{source.name} stands in FROM more than once: its rows cannot be told apart by when they came"
        return None


def pushable_inputs(query: Query) -> tuple[str, ...]:
    """The inputs whose rows may be grouped before they are joined: all aggregates are of them alone."""
    grouping = query.grouping
    if grouping is None or grouping.statement is not None or len(query.inputs) < 2:
        return ()
    if any(a.function not in MOVABLE for a in grouping.aggregates):
        return ()
    arguments = [query.select[a.argument][1] for a in grouping.aggregates if a.argument is not None]
    read = frozenset().union(*(aliases_of(e) for e in arguments))
    # The rows of a table have no beginning: there is no first instant at which they could be grouped by themselves.
    streams = [i for i in query.inputs if isinstance(i.source, Stream) and not isinstance(i.source, Derived)]
    return tuple(i.alias for i in streams if read <= {i.alias})


def with_groups_below(query: Query, alias: str) -> Query:
    """The query with the rows of an input grouped by all that the rest of the query needs of them."""
    grouping, input_ = query.grouping, query.input(alias)
    assert grouping is not None
    needed: list[Expr] = []

    def need(expr: Expr) -> None:
        """What an expression needs: itself, if it reads the input alone; else the columns of it."""
        if aliases_of(expr) == {alias}:
            if expr not in needed:
                needed.append(expr)
            return
        for column in sorted(columns_of(expr), key=str):
            if column.alias == alias and column not in needed:
                needed.append(column)

    keys = [expr for _, expr in query.select[: grouping.keys]]
    for expr in (*(side for e in query.equalities for side in (e.left, e.right)), *query.residuals, *keys):
        need(expr)
    below, moved = _below(query, input_, needed)
    above: list[tuple[str, Expr]] = [(f"key{i}", moved(key)) for i, key in enumerate(keys)]
    aggregates = []
    for place, aggregate in enumerate(grouping.aggregates):
        part = Column(_part_type(aggregate), alias, f"part{place}")
        function = "sum" if aggregate.function == "count" else aggregate.function
        aggregates.append(Aggregate(function, grouping.keys + place, aggregate.type))
        above.append((f"arg{place}", part))
    inputs = tuple(below if i.alias == alias else i for i in query.inputs)
    equalities = tuple(Equality(moved(e.left), moved(e.right)) for e in query.equalities)
    residuals = tuple(moved(r) for r in query.residuals)
    upper = replace(grouping, aggregates=tuple(aggregates))
    return Query(query.name, inputs, equalities, residuals, tuple(above), query.sql, upper)


def _below(query: Query, input_: Input, needed: list[Expr]) -> tuple[Input, _Moved]:
    """The subquery that groups an input, as an input, and how expressions over the input become ones over its groups."""
    grouping, alias = query.grouping, input_.alias
    assert grouping is not None
    rows: list[tuple[str, Expr]] = [(f"key{i}", expr) for i, expr in enumerate(needed)]
    aggregates, arguments = [], [query.select[a.argument][1] for a in grouping.aggregates if a.argument is not None]
    distinct = list(dict.fromkeys(arguments))
    rows += [(f"arg{i}", expr) for i, expr in enumerate(distinct)]
    for aggregate in grouping.aggregates:
        place = None
        if aggregate.argument is not None:
            place = len(needed) + distinct.index(query.select[aggregate.argument][1])
        aggregates.append(Aggregate(aggregate.function, place, _part_type(aggregate)))
    select: list[tuple[str, Expr]] = [(f"key{i}", Column(e.type, GROUP, f"key{i}")) for i, e in enumerate(needed)]
    select += [(f"part{i}", Column(a.type, GROUP, f"agg{i}")) for i, a in enumerate(aggregates)]
    select.append((INSTANT, ResultTime(pa.timestamp("us"))))
    lower = Grouping(len(needed), tuple(aggregates), tuple(select), None, grouping.slide_us)
    inner = Query(f"{query.name}.{alias}", (input_,), (), (), tuple(rows), "", lower)
    fields = tuple(Field(f.name, f.type) for f in inner.output_schema)
    source = Derived(inner.name, fields, INSTANT, query=inner)
    return Input(alias, source, range_window(grouping.slide_us)), _Moved(alias, needed)


def _part_type(aggregate: Aggregate) -> pa.DataType:
    """What the groups below hand on. Of a sum that by itself would be rounded, or out of range, they hand on all that is
    known of it, so that what comes out above does not depend on where groups stand."""
    if aggregate.function == "avg" or (aggregate.function == "sum" and not pa.types.is_integer(aggregate.type)):
        return PARTS
    return aggregate.type


class _Moved:
    """Expressions over an input as expressions over its groups."""

    def __init__(self, alias: str, needed: list[Expr]) -> None:
        self.alias, self.needed = alias, needed

    def __call__(self, expr: Expr) -> Expr:
        if expr in self.needed:
            return Column(expr.type, self.alias, f"key{self.needed.index(expr)}")
        if isinstance(expr, Call):
            return Call(expr.type, expr.op, tuple(self(arg) for arg in expr.args))
        return expr

