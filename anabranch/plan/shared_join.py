"""A join that several queries have in common: they run it once, and each takes its own results from it.

    SELECT t.price FROM trades [RANGE 5 SECONDS] t, quotes [RANGE 5 SECONDS] q WHERE t.sym = q.sym AND t.size > 100
    SELECT b.bid FROM quotes [RANGE 60 SECONDS] b, trades [RANGE 60 SECONDS] a WHERE a.sym = b.sym

join the same streams by the same keys. Their shared join is `trades [60 s] t, quotes [60 s] q WHERE t.sym = q.sym`: the
largest window of each stream, and the predicates that all its *members* have. What else a member asks (its windows, its
filters, its other predicates) decides which of the combinations are its own. (Wang et al., State-Slice, VLDB 2006, call
this a shared query plan; the rows that only some queries want are told apart by their *lineage*, section 6.1.)

A member may ask for more than the join: `… WHERE a.sym = b.sym AND a.venue = b.venue` takes those of its combinations whose
venues are equal, too (`loosened`). And a member may be over some of the inputs only, a *part* of the join: it takes what has
been joined of these inputs, before the others come to it. Rows of other inputs are none of its own, nor is what they meet.

The first member is the *lead*, which has all inputs: the join is written in its aliases, and so are the members
(`in_names_of`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import pyarrow as pa

from anabranch.plan.demand import asked_of
from anabranch.plan.expression import Call, Column, Expr, aliases_of, columns_of
from anabranch.plan.expression import replace as rewrite
from anabranch.plan.identity import Wanted, streams_key
from anabranch.plan.join_graph import Aliases, JoinGraph
from anabranch.plan.query import Equality, Input, Query, Stream

MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}
"""Comparisons, and what they are with their sides exchanged."""


@dataclass(frozen=True)
class SharedJoin:
    """What queries have in common, and the queries."""

    join: Query
    """The common join. It selects nothing; `kept` has the columns that its members read."""
    members: tuple[Query, ...]
    """The queries in the aliases of the join, the lead first. Each has some inputs of the join, or all."""
    since: tuple[int, ...]
    """For each member the first batch whose rows are its own: it may have come while others ran."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.members)

    @cached_property
    def streams(self) -> tuple[str, ...]:
        """For each member the streams whose watermark decides which rows are its own, as segments tell for whom rows were
        late."""
        return tuple(streams_key(s.name for s in m.base_sources if isinstance(s, Stream)) for m in self.members)

    def members_over(self, alias: str) -> tuple[int, ...]:
        """The places of the members that have an input."""
        return self._over[alias]

    @cached_property
    def _over(self) -> dict[str, tuple[int, ...]]:
        return {a: tuple(place for place, m in enumerate(self.members) if a in m.aliases) for a in self.join.aliases}

    @cached_property
    def asked(self) -> dict[str, tuple[Expr, ...]]:
        """For each input the predicates that all members over it have: a row that fails one is nobody's. That a key is not
        NULL is among them only if it is a key of all: a quote without a venue is a row of members that do not join by it."""
        graph, found = JoinGraph(self.join), {}
        for alias in self.join.aliases:
            known = [_known(m, alias) for m in self.members if alias in m.aliases]
            asked = {str(normal(f)): f for f in asked_of(graph, alias)}
            found[alias] = tuple(f for text, f in asked.items() if all(text in each for each in known))
        return found

    @cached_property
    def own_filters(self) -> dict[str, tuple[dict[str, Expr], ...]]:
        """For each input and member the predicates on it that not all members over it have, by their texts."""
        found = {}
        for alias in self.join.aliases:
            common = {str(normal(f)) for f in self.asked[alias]}
            asked = [_asked(m, alias) for m in self.members]
            found[alias] = tuple({text: f for text, f in own.items() if text not in common} for own in asked)
        return found

    @cached_property
    def own_residuals(self) -> tuple[tuple[Expr, ...], ...]:
        """For each member the predicates over several inputs that combinations of its inputs have not passed in the join."""
        graph, found = JoinGraph(self.join), []
        for m in self.members:
            passed = {str(normal(r)) for r in graph.decided_in(set(m.aliases))}
            found.append(tuple(r for r in m.residuals if str(normal(r)) not in passed))
        return tuple(found)

    def windows_us(self, alias: str) -> tuple[int, ...]:
        """The window of an input, of each member; 0 if it does not have the input."""
        return self._windows_us[alias]

    @cached_property
    def _windows_us(self) -> dict[str, tuple[int, ...]]:
        own = [{i.alias: i.window.length_us for i in m.inputs} for m in self.members]
        return {alias: tuple(windows.get(alias, 0) for windows in own) for alias in self.join.aliases}

    def beyond(self, aliases: Set[str]) -> tuple[int, ...]:
        """The places of the members that have some inputs, and others: these want combinations of the former to go on."""
        return tuple(place for place, m in enumerate(self.members) if aliases < set(m.aliases))

    def filters_in(self, alias: str, aliases: Aliases) -> tuple[Expr, ...]:
        """The predicates on an input that all combinations have passed that are kept in a view of some inputs."""
        first, *others = (_asked(self.members[place], alias) for place in self.beyond(set(aliases)))
        return tuple(f for text, f in first.items() if all(text in other for other in others))

    def window_in(self, alias: str, aliases: Set[str]) -> int:
        """The longest window of an input of those who want combinations of some inputs to go on."""
        return max(self.windows_us(alias)[place] for place in self.beyond(aliases))

    def wanted(self, aliases: Aliases) -> tuple[Wanted, ...]:
        """Which combinations of some inputs are kept in a view: those that some member wants, told as what members ask of
        these inputs, without aliases, and by whose watermark rows are theirs, if not by that of the lead. Nothing is told
        if one of them wants all."""
        asked, longest = set(), [self.window_in(alias, set(aliases)) for alias in aliases]
        common = [{str(normal(f)) for f in self.filters_in(alias, aliases)} for alias in aliases]
        beyond = self.beyond(set(aliases))
        is_one = all(self.streams[place] == self.streams[0] for place in beyond)
        for place in beyond:
            windows, since = [self.windows_us(alias)[place] for alias in aliases], self.since[place]
            own = [
                [f for text, f in _asked(self.members[place], alias).items() if text not in known]
                for alias, known in zip(aliases, common, strict=True)
            ]
            if is_one and not any(own) and windows == longest and not since:
                return ()
            inputs = []
            for alias, us, filters in zip(aliases, windows, own, strict=True):
                inputs.append(" and ".join((f"[{us}]", *sorted(str(normal(renamed(f, {alias: ""}))) for f in filters))))
            by = "" if self.streams[place] == self.streams[0] else f" accepted by ({self.streams[place]})"
            asked.add(Wanted("; ".join(inputs) + by, since))
        return tuple(sorted(asked))


def _asked(member: Query, alias: str) -> dict[str, Expr]:
    """What a member asks of rows of an input, by texts; nothing if it does not have it."""
    if alias not in member.aliases:
        return {}
    return {str(normal(f)): f for f in asked_of(JoinGraph(member), alias)}


def _known(member: Query, alias: str) -> set[str]:
    """What a member knows of its rows of an input, by texts: all it asks, however it is written. Of `a.k = b.k AND
    a.j = b.k` it knows that a.k is not NULL, that a.j is not, and that both are equal."""
    found = set(_asked(member, alias))
    for terms in JoinGraph(member).classes:
        mine = [term for term in terms if aliases_of(term) == {alias}]
        found |= {str(Call(pa.bool_(), "not", (Call(pa.bool_(), "is_null", (t,)),))) for t in mine}
        found |= {str(normal(Call(pa.bool_(), "eq", pair))) for pair in combinations(mine, 2)}
    return found


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
    """The join that queries have in common. `orders` has the inputs of each, those of one place for one another, and nothing
    ("") where a query has none; `since` the first batch whose rows are its own, by default the first of all. The first query
    has all inputs, and some query with all inputs has no equalities but those that all have."""
    lead, order = queries[0], orders[0]
    names = [{own: its for own, its in zip(each, order, strict=True) if own} for each in orders]
    members = [in_names_of(lead, query, own) for query, own in zip(queries, names, strict=True)]
    base = min((m for m in members if len(m.inputs) == len(lead.inputs)), key=key_count)
    members = [loosened(member, base) for member in members]
    return SharedJoin(_common(lead, base, members), tuple(members), tuple(since) or (0,) * len(members))


def key_count(query: Query) -> int:
    """How many equalities a query asks for, of which none follows from others."""
    return sum(len(terms) - 1 for terms in JoinGraph(query).classes)


def loosened(member: Query, base: Query) -> Query:
    """A member with no other keys than a join has that it follows from: its further equalities are predicates on what the
    join gives. What follows from them for single inputs is asked of rows.

    Example: of `a.k = b.k AND a.j = b.j` and a join by k, the key k stays, `a.j = b.j` is a residual; rows must have a j.
    """
    inside, graph = set(member.aliases), JoinGraph(member)
    keys = {frozenset(t for t in terms if aliases_of(t) <= inside) for terms in JoinGraph(base).classes}
    if {frozenset(terms) for terms in graph.classes} == {k for k in keys if len(set().union(*map(aliases_of, k))) > 1}:
        return member
    stays = [any({e.left, e.right} <= terms for terms in keys) for e in member.equalities]
    further = [e for e, is_key in zip(member.equalities, stays, strict=True) if not is_key]
    return replace(
        member,
        inputs=tuple(replace(i, filters=tuple(dict.fromkeys(asked_of(graph, i.alias)))) for i in member.inputs),
        equalities=tuple(e for e, is_key in zip(member.equalities, stays, strict=True) if is_key),
        residuals=(*member.residuals, *(Call(pa.bool_(), "eq", (e.left, e.right)) for e in further)),
    )


def _common(lead: Query, base: Query, members: Sequence[Query]) -> Query:
    inputs = []
    for i in lead.inputs:
        over = [m.input(i.alias) for m in members if i.alias in m.aliases]
        longest = max((each.window for each in over), key=lambda window: window.length_us)
        inputs.append(Input(i.alias, i.source, longest, _in_all([{str(normal(f)): f for f in e.filters} for e in over])))
    graph, residuals = JoinGraph(lead), []
    for text, residual in {str(normal(r)): r for r in lead.residuals}.items():
        deciding = [m for m in members if graph.inputs_needed(residual) <= set(m.aliases)]
        if all(any(str(normal(r)) == text for r in m.residuals) for m in deciding):
            residuals.append(residual)
    read: dict[Column, None] = {}
    for member in members:
        for i in member.inputs:
            fields = {f.name: f.type for f in i.source.fields}
            read |= {Column(fields[name], i.alias, name): None for name in member.needed_columns(i.alias)}
            read |= dict.fromkeys(c for f in asked_of(JoinGraph(member), i.alias) for c in sorted(columns_of(f), key=str))
    return Query(lead.name, tuple(inputs), base.equalities, tuple(residuals), (), kept=tuple(read))


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
        inputs=tuple(inputs[alias] for alias in lead.aliases if alias in inputs),
        equalities=tuple(Equality(renamed(e.left, names), renamed(e.right, names)) for e in query.equalities),
        residuals=tuple(renamed(r, names) for r in query.residuals),
        select=tuple((name, renamed(expr, names)) for name, expr in query.select),
        kept=tuple(Column(c.type, names[c.alias], c.name) for c in query.kept),
    )


def renamed(expr: Expr, names: Mapping[str, str]) -> Expr:
    """An expression in other aliases."""
    return rewrite(expr, lambda e: Column(e.type, names[e.alias], e.name) if isinstance(e, Column) else e)
