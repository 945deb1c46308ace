"""Which states of two plans match (002, section 12.1.1).

States match by what is in them. A view is the combinations of its inputs, an index its state and the terms it is looked up
by: the names are the same whatever plan has them, so matching is a comparison of names.
"""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.plan.join_graph import Aliases, JoinGraph
from anabranch.plan.jtree import Plan
from anabranch.plan.routes import Index, indexes, routes, views


@dataclass(frozen=True)
class Matching:
    """The states of an old and a new plan."""

    matched: tuple[Aliases, ...]
    """Views of both: shared, not copied."""
    unmatched: tuple[Aliases, ...]
    """Views of the new plan alone, smaller ones first: they must be recomputed."""
    discarded: tuple[Aliases, ...]
    """Views of the old plan alone. All of their rows follow from the logs, so they can go (the *old state closure property*,
    section 12.1.4: what is purged has ended for everyone, at the watermark)."""
    built: tuple[Index, ...]
    """Indexes over streams, tables and matched views that only the new plan looks up."""


def match_states(old: Plan, new: Plan, graph: JoinGraph) -> Matching:
    """Compares the states of two plans.

    >>> from anabranch.plan.jtree import parse
    >>> from anabranch.sql import parse_script
    >>> graph = JoinGraph(parse_script('''
    ...     CREATE STREAM a (k INT, ts TIMESTAMP) TIME ts; CREATE STREAM b (k INT, ts TIMESTAMP) TIME ts;
    ...     CREATE STREAM c (k INT, ts TIMESTAMP) TIME ts; CREATE STREAM d (k INT, ts TIMESTAMP) TIME ts;
    ...     CREATE QUERY q AS SELECT a.k FROM a, b, c, d WHERE a.k = b.k AND b.k = c.k AND c.k = d.k WINDOW 1 SECOND
    ... ''').queries[0].query)
    >>> found = match_states(parse("(((a b) c) d)", graph), parse("(a ((b c) d))", graph), graph)
    >>> found.unmatched, found.discarded
    ((('b', 'c'), ('b', 'c', 'd')), (('a', 'b'), ('a', 'b', 'c')))
    """
    before, after = routes(old, graph), routes(new, graph)
    kept, wanted = views(before), views(after)
    fresh = [i for i in indexes(after) if i not in set(indexes(before))]
    return Matching(
        tuple(v for v in wanted if v in kept),
        tuple(v for v in wanted if v not in kept),
        tuple(v for v in kept if v not in wanted),
        tuple(i for i in fresh if len(i.state) == 1 or i.state in kept),
    )
