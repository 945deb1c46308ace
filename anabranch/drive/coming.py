"""A query that comes while others run: what it takes of the rows that are stored, and from when on it is complete.

Example: batches 0 to 6 are committed, and q2 is to come. It comes with batch 7, unless batch 7 was begun already, by a
driver that died: that batch runs as it was begun, and q2 comes with batch 8. Rows of batch 7 are the first of its own. With
history it also meets rows of batches before, as far as the query that keeps them counts them as its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from anabranch.control.records import Commit
from anabranch.drive.steering import Steering
from anabranch.errors import SessionError
from anabranch.plan.history import Stored, complete_from_us, keeper_of, why_no_history
from anabranch.plan.lengths import instant_text
from anabranch.plan.query import BEGINNING_US, FOREVER_US


@dataclass(frozen=True)
class Coming:
    """A query that is to come."""

    query: Steering
    history: bool = False
    command: str = ""
    """The command that asked for it (`anabranch.control.commands`), if one did."""


@dataclass(frozen=True)
class Admission:
    """How a query comes in: since when rows are its own, and what people are told."""

    since: int
    text: str


def admission(coming: Coming, batch: int, base: Commit | None, running: Iterable[Steering]) -> Admission:
    """How a query comes in with a batch; SessionError if it cannot."""
    steering, keeper, running = coming.query, None, [*running]
    query, seen = steering.query, base.largest_time_us if base is not None else {}
    if coming.history and any(each.may_lose for each in running):
        raise SessionError(
            f"{query.name} cannot have history: the overload policy of {', '.join(each.name for each in running)} may lose "
            "results, and rows that came before may be shed; add it without, or, to alter it, drop it and add another one"
        )
    if coming.history and base is not None:
        running = [*running]
        if new := set(steering.streams) - {stream for each in running for stream in each.streams}:
            raise SessionError(
                f"{query.name} cannot have history: no query that runs reads {', '.join(sorted(new))}, so no row of it is "
                "stored; add it without"
            )
        keeper = keeper_of(query, steering.distribution.exchange, _stored(running, base))
        if keeper is None:
            raise SessionError(f"{query.name} cannot have history: {_why_not(query.name, why_no_history(query))}")
    since = batch if keeper is None else keeper.since
    complete_us, missing_us = complete_from_us(query, seen, since == 0), missing_before_us(since, batch, base)
    told = f"from batch {batch} on"
    if keeper is not None:
        told += f", with rows that came before, as {keeper.query.name} keeps them"
    if complete_us is not None and missing_us > complete_us:
        told += ", of which some were shed"
        complete_us = missing_us if missing_us < FOREVER_US else None
    if complete_us is None:
        return Admission(since, f"{told}; rows that came before it are missing for ever, for a window has no end")
    return Admission(since, f"{told}; results are complete from {instant_text(complete_us)} on")


def missing_before_us(since: int, batch: int, base: Commit | None) -> int:
    """The watermark up to which results of a query that comes with a batch may lack rows that were shed before it: if it has
    rows of batches before, up to when those of some query do."""
    if base is None or since == batch:
        return BEGINNING_US
    return max((own.missing_until_us for own in base.queries.values()), default=BEGINNING_US)


def _stored(running: Iterable[Steering], base: Commit) -> list[Stored]:
    """The queries that store the rows of all their inputs, and have run."""
    return [
        Stored(each.query, each.distribution.exchange, each.since)
        for each in running
        if each.name in base.queries and each.execution.grouped_input is None and each.execution.leaving is None
    ]


def _why_not(name: str, always: str | None) -> str:
    if always is not None:
        return f"{always}; add it without"
    return (
        "no query keeps all rows that it would have: one over the same streams, with windows as long, no further predicate "
        f"and all columns that {name} reads; add it without history, and it is complete when its windows have passed"
    )
