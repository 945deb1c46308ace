"""Which queries may be without some of their results, and which would be wrong then.

A join over some of the rows gives some of the results, and each of them is right. A group over some of the rows is another
group: it is wrong, not missing. So FRESHNESS, and policies that may lose results (`anabranch.plan.overload`), are refused
for queries that have more than a join of streams in them, each by its reason.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from anabranch.errors import SessionError, known_names
from anabranch.plan.lengths import length_text
from anabranch.plan.lookups import looked_up
from anabranch.plan.overload import Overload, Policy
from anabranch.plan.query import Derived, Input, Query, Stream


def stream_inputs(query: Query) -> tuple[Input, ...]:
    """The inputs of a query whose rows keep coming: those that look up their partners."""
    return tuple(i for i in query.inputs if isinstance(i.source, Stream) and not isinstance(i.source, Derived))


def has_freshness(query: Query) -> bool:
    """Whether a query promises how old the rows of its results are at most."""
    return any(i.freshness_us is not None for block in query.blocks for i in block.inputs)


def why_not_partial(query: Query, changing: Collection[str] = ()) -> str | None:
    """Why a query cannot be without some of its results; None if it can. `changing` are the stored tables that are read
    again while it runs."""
    if any(block.grouping is not None for block in query.blocks):
        return "a group over a part of the rows is wrong, not missing"
    if len(query.blocks) > 1:
        return "a subquery over a part of the rows gives wrong rows, not fewer"
    if query.asked is not None:
        return f"{query.asked.database} joins its rows, and nobody could say which of them look up"
    if len(stream_inputs(query)) < 2:
        return "it reads one stream, and has no join of streams whose lookups could be left out"
    if tables := [s.table.name for s in looked_up(query)]:
        return f"the table {tables[0]} is looked up in its database: what a row found there is state, and must be whole"
    again = [s.name for s in query.base_sources if s.name in changing]
    if again:
        return f"the stored table {again[0]} is read again (REFRESH): what a row found in it is state, and must be whole"
    return None


def check_overload(query: Query, overload: Overload, changing: Collection[str] = ()) -> None:
    """Refuses a policy that a query cannot have, and FRESHNESS over a stored table that changes."""
    reason = why_not_partial(query, changing)
    if reason is not None and has_freshness(query):
        raise SessionError(f"query {query.name} cannot have FRESHNESS: {reason}; leave it out")
    if reason is not None and overload.policy.may_lose:
        raise SessionError(
            f'query {query.name} cannot run under the policy "{overload.policy}": {reason}; give it '
            f'overload=ab.Overload("{Policy.FALL_BEHIND}") (in a script: OVERLOAD \'{Policy.FALL_BEHIND}\')'
        )
    streams = [i.alias for i in stream_inputs(query)]
    for alias in overload.allowances:
        if alias in query.aliases and alias not in streams:
            raise SessionError(
                f"query {query.name} cannot have an allowance for {alias}: rows of a stored table look up nothing"
            )
        if alias not in streams:
            raise SessionError(
                f"query {query.name} has no input {alias} that an allowance could be for; "
                f"{known_names(alias, dict.fromkeys(streams))}"
            )
    if overload.allowances and all(overload.allowances.get(alias, 1) == 0 for alias in streams):
        raise SessionError(
            f"the allowances of query {query.name} are 0 for {', '.join(streams)}: it would have no results; give one of "
            "them a share above 0, or leave it out"
        )


def slack_us(query: Query) -> int | None:
    """How far a query may fall behind before results are older than promised: its least freshness beyond a window; None if
    it promises nothing."""
    return min((i.freshness_us - i.window.length_us for i in query.inputs if i.freshness_us is not None), default=None)


def late_suppressed(query: Query) -> Sequence[str]:
    """Inputs whose freshness is too short for rows that come late, as sentences: results of these are suppressed although
    nothing is behind."""
    streams = [i.source for i in stream_inputs(query) if isinstance(i.source, Stream)]
    late_us = max((s.lateness_us for s in streams), default=0)
    found = []
    for i in query.inputs:
        needed_us = i.window.length_us + late_us
        if i.freshness_us is not None and late_us and i.freshness_us < needed_us:
            found.append(
                f"the freshness of {i.alias}, {length_text(i.freshness_us)}, is below its window and the lateness together, "
                f"{length_text(needed_us)}: results of rows that come late are suppressed although nothing is behind. To "
                f"have them, write FRESHNESS {length_text(needed_us).upper()}"
            )
    return found
