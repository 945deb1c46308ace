"""How to spread a query with groups: by a key that all its parts have, so that every group is whole in one slot.

A block of the query can be spread by a key if that is one of the keys it groups by. Inputs that have the key, as members of
a class of equal terms, are parted by it; the others go to every slot. The groups of a subquery carry a key upwards as a
column; a subquery that does not have it is computed in every slot. Where no key of the groups will do, the rows are spread
as for a join, and what slots have of a group is combined. Without any key all rows go to one slot.

A single stream without groups needs no spreading, also where it meets stored tables, if these are small: its rows are good
wherever they come in.
"""

from __future__ import annotations

from anabranch.balance.shares import choose_grid, is_routable
from anabranch.plan.distribution import Distribution, name_of, renamed
from anabranch.plan.expression import Column, Expr, aliases_of
from anabranch.plan.grid import Dimension, Grid
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.lookups import reads_found
from anabranch.plan.query import GROUP, Derived, Input, Query, Stream

MOST_COPIED_BYTES = 64 << 20
"""Stored tables that together have at most so many bytes are kept whole by every slot where that spares an exchange."""

Terms = dict[tuple[int, str], Expr]
"""The term of each input by the place of its block and its alias."""


def choose_distribution(query: Query, cells: int, may_skip_exchange: bool = True) -> Distribution:
    """How to spread a query over so many slots; `may_skip_exchange`: stored tables are small enough for each to have all."""
    is_single = len(query.blocks) == 1
    if may_skip_exchange and not needs_exchange(query):
        stream = _only_stream(query)
        assert stream is not None
        return Distribution(Grid((Dimension((), stream),), (cells,)) if cells > 1 else Grid(), needs_no_exchange=True)
    if query.grouping is None and is_single:
        return Distribution(choose_grid(JoinGraph(query), cells))
    if cells == 1:
        return Distribution()
    terms, groups_span_slots = common_key(query, by_group=True), False
    is_apart = query.grouping is not None and len(terms) < (len(query.inputs) if is_single else 1)
    if is_apart and query.statement is not None:
        return Distribution()  # a database gives whole groups
    if is_apart:
        if is_single:
            return Distribution(choose_grid(JoinGraph(query), cells), groups_span_slots=True)
        terms, groups_span_slots = common_key(query, by_group=False), True
    if not terms:
        return Distribution()
    found = tuple(t if is_single else renamed(t, name_of(b, a)) for (b, a), t in terms.items())
    return Distribution(Grid((Dimension(found),), (cells,)), groups_span_slots)


def needs_exchange(query: Query) -> bool:
    """Whether rows of a query must meet, if every slot may have all rows of its stored tables."""
    return len(query.blocks) > 1 or query.grouping is not None or _only_stream(query) is None


def _only_stream(query: Query) -> str | None:
    return query.aliases[0] if len(query.inputs) == 1 else query.passing_stream


def common_key(query: Query, by_group: bool) -> Terms:
    """The terms by which the whole query can be spread, for as many streams and tables as possible; none if it cannot. With
    `by_group` every group is then in one slot."""
    grouping = query.grouping
    if grouping is not None and by_group:
        candidates = [expr for _, expr in query.select[: grouping.keys]]
    elif len(query.inputs) == 1:
        candidates = [Column(f.type, query.aliases[0], f.name) for f in query.inputs[0].source.shown_fields]
    else:
        candidates = [term for terms in JoinGraph(query).classes for term in terms]
    known = (key for key in candidates if is_routable(key) and not reads_found(query, key))
    found = (_spread_by(query, key, len(query.blocks) - 1) for key in known)
    return max((terms for terms in found if _parts_databases(query, terms)), key=len, default={})


def _parts_databases(query: Query, terms: Terms) -> bool:
    """Whether rows of every block with groups that a database runs are spread, by a key of these or as PARTITION BY allows:
    such a block is never run by several slots over the same rows, of which a database may make something else each time."""
    groups = [(place, block) for place, block in enumerate(query.blocks) if block.grouping is not None]
    placed = [(place, block) for place, block in groups if block.statement is not None]
    streams = [(place, i.alias) for place, block in placed for i in block.inputs if isinstance(i.source, Stream)]
    return all(each in terms for each in streams)


def _spread_by(query: Query, key: Expr | None, place: int) -> Terms:
    """The terms of the block at `place` and of those below it. Without a key every slot has all of it."""
    terms = _terms(query, key) if key is not None else {}
    found: Terms = {(place, i.alias): terms[i.alias] for i in query.inputs if i.alias in terms and not _is_derived(i)}
    # Blocks stand before those above them, each after all of its own.
    below = place - 1
    for inner in reversed(query.subqueries):
        keys = {_key_below(inner, terms.get(i.alias)) for i in query.inputs if _is_of(i, inner)}
        found |= _spread_by(inner, keys.pop() if len(keys) == 1 else None, below)
        below -= len(inner.blocks)
    return dict(sorted(found.items(), key=lambda item: item[0][0]))


def _is_derived(i: Input) -> bool:
    return isinstance(i.source, Derived)


def _is_of(i: Input, inner: Query) -> bool:
    return isinstance(i.source, Derived) and i.source.query is inner


def _terms(query: Query, key: Expr) -> dict[str, Expr]:
    """For the inputs of a block the terms that equal a key, where they have one."""
    if query.statement is not None and not query.statement.is_printed:
        return _partition_terms(query, key)
    own = dict.fromkeys(aliases_of(key), key)
    for terms in JoinGraph(query).classes:
        if key in terms:
            same = [t for t in terms if len(aliases_of(t)) == 1 and is_routable(t) and not reads_found(query, t)]
            return {a: t for t in reversed(same) for a in aliases_of(t)}
    return own


def _partition_terms(query: Query, key: Expr) -> dict[str, Expr]:
    """The column of PARTITION BY in all inputs of a block that a database runs, where these have one."""
    assert isinstance(key, Column), "PARTITION BY names a column"
    own = {i.alias: [f for f in i.source.fields if f.name.lower() == key.name.lower()] for i in query.inputs}
    return {alias: Column(found[0].type, alias, found[0].name) for alias, found in own.items() if found}


def _key_below(inner: Query, term: Expr | None) -> Expr | None:
    """The key of a subquery that a term over its groups is."""
    if not isinstance(term, Column) or inner.grouping is None:
        return None
    selected = dict(inner.grouping.select).get(term.name)
    if not isinstance(selected, Column) or selected.alias != GROUP or not selected.name.startswith("key"):
        return None
    key = inner.select[int(selected.name.removeprefix("key"))][1]
    return None if reads_found(inner, key) else key
