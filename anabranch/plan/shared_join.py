"""A join that several queries have in common: they run it once, and each takes its own results from it.

    SELECT t.price FROM trades [RANGE 5 SECONDS] t, quotes [RANGE 5 SECONDS] q WHERE t.sym = q.sym AND t.size > 100
    SELECT b.bid FROM quotes [RANGE 60 SECONDS] b, trades [RANGE 60 SECONDS] a WHERE a.sym = b.sym

join the same streams by the same keys. Their shared join is `trades [60 s] t, quotes [60 s] q WHERE t.sym = q.sym`: the
largest window of each stream, and the predicates that all its *members* have. What else a member asks (its windows, its
filters, its other predicates) decides which of the combinations are its own. (Wang et al., State-Slice, VLDB 2006, call
this a shared query plan; the rows that only some queries want are told apart by their *lineage*, section 6.1.)

The first member is the *lead*: the join is written in its aliases, and so are the members (`in_names_of`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from anabranch.plan.demand import asked_of
from anabranch.plan.expression import Call, Column, Expr, columns_of
from anabranch.plan.expression import replace as rewrite
from anabranch.plan.identity import Wanted
from anabranch.plan.join_graph import Aliases, JoinGraph
from anabranch.plan.query import Equality, Input, Query

MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}
"""Comparisons, and what they are with their sides exchanged."""


@dataclass(frozen=True)
class SharedJoin:
    """What queries have in common, and the queries."""

    join: Query
    """The common join. It selects nothing; `kept` has the columns that its members read."""
    members: tuple[Query, ...]
    """The queries in the aliases of the join, the lead first."""
    since: tuple[int, ...]
    """For each member the first batch whose rows are its own: it may have come while others ran."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.members)

    @cached_property
    def own_filters(self) -> dict[str, tuple[dict[str, Expr], ...]]:
        """For each input and member the predicates on it that the join does not have, by their texts."""
        graph = JoinGraph(self.join)
        found = {}
        for alias in self.join.aliases:
            common = {str(normal(f)) for f in asked_of(graph, alias)}
            asked = [{str(normal(f)): f for f in asked_of(JoinGraph(m), alias)} for m in self.members]
            found[alias] = tuple({text: f for text, f in own.items() if text not in common} for own in asked)
        return found

    @cached_property
    def own_residuals(self) -> tuple[tuple[Expr, ...], ...]:
        """For each member the predicates over several inputs that the join does not have."""
        common = {str(normal(r)) for r in self.join.residuals}
        return tuple(tuple(r for r in m.residuals if str(normal(r)) not in common) for m in self.members)

    def windows_us(self, alias: str) -> tuple[int, ...]:
        """The window of an input, of each member."""
        return self._windows_us[alias]

    @cached_property
    def _windows_us(self) -> dict[str, tuple[int, ...]]:
        return {a: tuple(m.input(a).window.length_us for m in self.members) for a in self.join.aliases}

    def wanted(self, aliases: Aliases) -> tuple[Wanted, ...]:
        """Which combinations of some inputs are kept in a view: those that some member wants, told as what members ask of
        these inputs, without aliases. Nothing is told if one of them wants all."""
        asked, longest = set(), [self.join.input(alias).window.length_us for alias in aliases]
        for place, since in enumerate(self.since):
            windows = [self.windows_us(alias)[place] for alias in aliases]
            own = [self.own_filters[alias][place].values() for alias in aliases]
            if not any(own) and windows == longest and not since:
                return ()
            inputs = []
            for alias, us, filters in zip(aliases, windows, own, strict=True):
                inputs.append(" and ".join((f"[{us}]", *sorted(str(normal(renamed(f, {alias: ""}))) for f in filters))))
            asked.add(Wanted("; ".join(inputs), since))
        return tuple(sorted(asked))


def normal(expr: Expr) -> Expr:
    """A predicate, the same however its sides were written.

    >>> import pyarrow as pa
    >>> a, b = (Column(pa.int64(), name, "x") for name in "ab")
    >>> str(normal(Call(pa.bool_(), "gt", (b, a))))
    '(a.x < b.x)'
    """

    def rule(node: Expr) -> Expr:
        if not isinstance(node, Call):
            return node
        if node.op in MIRRORED and str(node.args[1]) < str(node.args[0]):
            return Call(node.type, MIRRORED[node.op], node.args[::-1])
        if node.op in ("and", "or"):
            return Call(node.type, node.op, tuple(sorted(node.args, key=str)))
        return node

    return rewrite(expr, rule)


def shared_join(queries: Sequence[Query], orders: Sequence[Aliases], since: Sequence[int] = ()) -> SharedJoin:
    """The join that queries have in common. `orders` has the inputs of each, those of one place for one another; `since` the
    first batch whose rows are its own, by default the first of all."""
    lead, order = queries[0], orders[0]
    members = [in_names_of(lead, q, dict(zip(own, order, strict=True))) for q, own in zip(queries, orders, strict=True)]
    return SharedJoin(_common(lead, members), tuple(members), tuple(since) or (0,) * len(members))


def _common(lead: Query, members: Sequence[Query]) -> Query:
    filters = {a: [{str(normal(f)): f for f in m.input(a).filters} for m in members] for a in lead.aliases}
    residuals = [{str(normal(r)): r for r in m.residuals} for m in members]
    inputs = []
    for i in lead.inputs:
        longest = max((m.input(i.alias).window for m in members), key=lambda window: window.length_us)
        inputs.append(Input(i.alias, i.source, longest, _in_all(filters[i.alias])))
    read: dict[Column, None] = {}
    for member in members:
        for i in member.inputs:
            fields = {f.name: f.type for f in i.source.fields}
            read |= {Column(fields[name], i.alias, name): None for name in member.needed_columns(i.alias)}
            read |= dict.fromkeys(c for f in asked_of(JoinGraph(member), i.alias) for c in sorted(columns_of(f), key=str))
    return Query(lead.name, tuple(inputs), lead.equalities, _in_all(residuals), (), kept=tuple(read))


def _in_all(predicates: Sequence[Mapping[str, Expr]]) -> tuple[Expr, ...]:
    """The predicates that stand in all of several lists."""
    first, *others = predicates
    return tuple(predicate for text, predicate in first.items() if all(text in other for other in others))


def in_names_of(lead: Query, query: Query, names: Mapping[str, str]) -> Query:
    """A query in the aliases of another, and with its inputs in that one's order."""
    inputs = {
        names[i.alias]: replace(i, alias=names[i.alias], filters=tuple(renamed(f, names) for f in i.filters))
        for i in query.inputs
    }
    return replace(
        query,
        inputs=tuple(inputs[alias] for alias in lead.aliases),
        equalities=tuple(Equality(renamed(e.left, names), renamed(e.right, names)) for e in query.equalities),
        residuals=tuple(renamed(r, names) for r in query.residuals),
        select=tuple((name, renamed(expr, names)) for name, expr in query.select),
        kept=tuple(Column(c.type, names[c.alias], c.name) for c in query.kept),
    )


def renamed(expr: Expr, names: Mapping[str, str]) -> Expr:
    """An expression in other aliases."""
    return rewrite(expr, lambda e: Column(e.type, names[e.alias], e.name) if isinstance(e, Column) else e)
