"""Conditions on event times that windows defeat: they ask for rows to be joined that are never valid together.

A row of `a` at time s is valid `[s, s + A)` under a window of length A, and one of `b` at time t `[t, t + B)`. They meet iff
`-B < t - s < A`: the earlier row must still be valid when the later one comes. A condition on the times allows differences
of its own:

    FROM a [RANGE 1 MINUTE], b [RANGE 1 MINUTE] WHERE a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL 5 MINUTES

allows 0 to 5 minutes, and the window of a lets pairs meet that are less than a minute apart: the condition asks for four
minutes more than will ever be joined. In engines where such a condition *is* the window, nothing is missing; here
the user is told.

All conjuncts that compare two times, each with constants added, say `x - y <= c`. The least such c for each pair of inputs,
over all chains of conjuncts, is their shortest path (a system of difference constraints; Cormen et al., section 22.4). The
path is tight: there are times that fulfil all conjuncts and are that far apart. So a window is told to be too short iff
there are such times that it keeps apart, as far as these conjuncts say. A side without a bound is not told of: whoever
writes `a.ts < b.ts` alone leaves the rest to the window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from math import inf

import pyarrow as pa

from anabranch.plan.expression import Call, Column, Expr, Literal, ResultTime
from anabranch.plan.lengths import length_text, window_text
from anabranch.plan.query import FOREVER_US, SECOND_US, Derived, Query, Stream

_NEGATED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}
_TIME = pa.timestamp("us")


@dataclass(frozen=True)
class Defeated:
    """A window that is too short for the conditions: they let rows of `later` come up to `apart_us` after rows of `earlier`,
    which are valid for less than that, or for no longer."""

    query: str
    earlier: str
    later: str
    source: str
    """What the window is of."""
    window: str
    window_us: int
    apart_us: int

    @property
    def needed_us(self) -> int:
        """A window of this length defeats nothing: the shortest such one or, above a second, the next whole second."""
        shortest = self.apart_us + 1
        return shortest if shortest < SECOND_US else -(-shortest // SECOND_US) * SECOND_US

    @property
    def needed(self) -> str:
        """The window that is needed, as a user would write it."""
        return f"RANGE {length_text(self.needed_us).upper()}"

    def __str__(self) -> str:
        valid, alias = length_text(self.window_us), "" if self.earlier == self.source else f" {self.earlier}"
        return (
            f"the condition lets rows of {self.later} be {_up_to(self.apart_us)} later than rows of {self.earlier}, which "
            f"are valid for {valid} ({self.source} [{self.window}]{alias}): rows that are {valid} or more apart are never "
            f"joined. To join all that the condition allows, write {self.source} [{self.needed}]{alias}"
        )


def _up_to(apart_us: int) -> str:
    """How far apart times may be. One microsecond less than a round length is what `<` leaves of it.

    >>> _up_to(5_000_000), _up_to(4_999_999)
    ('up to 5 seconds', 'nearly 5 seconds')
    """
    if (apart_us + 1) % SECOND_US == 0:
        return f"nearly {length_text(apart_us + 1)}"
    return f"up to {length_text(apart_us)}"


def defeated(query: Query) -> list[Defeated]:
    """The windows of a query and of its subqueries that are too short for their conditions on times."""
    return [found for block in query.blocks for found in _defeated_in(block)]


def _defeated_in(block: Query) -> Iterator[Defeated]:
    apart = _largest_differences(block)
    if any(apart[alias, alias] < 0 for alias in block.aliases):
        return  # No times fulfil the conditions: there is nothing to join.
    for i in block.inputs:
        bounded = [(most, alias) for alias in block.aliases if (most := apart[alias, i.alias]) < inf]
        most, later = max(bounded)
        if i.window.length_us != FOREVER_US and i.window.length_us <= most:
            window, window_us = window_text(i), i.window.length_us
            yield Defeated(block.name, i.alias, later, i.source.name, window, window_us, int(most))


def _largest_differences(block: Query) -> dict[tuple[str, str], float]:
    """By how many microseconds the time of one input may exceed that of another at most, for each pair."""
    apart = {(x, y): 0.0 if x == y else inf for x in block.aliases for y in block.aliases}
    for predicate in (*block.residuals, *(Call(pa.bool_(), "eq", (e.left, e.right)) for e in block.equalities)):
        for x, y, most_us in _constraints(predicate, block):
            apart[x, y] = min(apart[x, y], most_us)
    for via, x, y in product(block.aliases, repeat=3):
        apart[x, y] = min(apart[x, y], apart[x, via] + apart[via, y])
    return apart


def _constraints(predicate: Expr, block: Query) -> Iterator[tuple[str, str, int]]:
    """What a conjunct says about two times, as triples (x, y, c) that mean `x - y <= c`."""
    if not isinstance(predicate, Call):
        return
    op, args = predicate.op, predicate.args
    if op == "not" and isinstance(args[0], Call) and args[0].op in _NEGATED:
        op, args = _NEGATED[args[0].op], args[0].args
    if op == "and":
        for arg in args:
            yield from _constraints(arg, block)
    if op not in ("lt", "le", "gt", "ge", "eq"):
        return
    left, right = (_shifted_time(arg, block) for arg in args)
    if left is None or right is None or left[0] == right[0]:
        return
    (x, x_us), (y, y_us) = left, right
    strictly = op in ("lt", "gt")
    if op in ("lt", "le", "eq"):  # x + x_us <= y + y_us
        yield x, y, y_us - x_us - strictly
    if op in ("gt", "ge", "eq"):
        yield y, x, x_us - y_us - strictly


def _shifted_time(expr: Expr, block: Query) -> tuple[str, int] | None:
    """The input whose event time an expression is, and what is added to it; None if it is anything else."""
    shift_us = 0
    while isinstance(expr, Call):
        if expr.op == "cast" and expr.type == expr.args[0].type == _TIME:
            expr = expr.args[0]
            continue
        if expr.op not in ("add", "sub"):
            return None
        term, added = expr.args
        if not isinstance(added, Literal) or not isinstance(added.value, timedelta):
            return None
        added_us = added.value // timedelta(microseconds=1)
        shift_us += added_us if expr.op == "add" else -added_us
        expr = term
    return (expr.alias, shift_us) if isinstance(expr, Column) and _is_time(expr, block) else None


def _is_time(column: Column, block: Query) -> bool:
    """Whether a column is the event time of its input; of groups, whether it is their instant."""
    source = block.input(column.alias).source
    if isinstance(source, Derived) and source.query is not None and source.query.grouping is not None:
        return isinstance(dict(source.query.grouping.select).get(column.name), ResultTime)
    return isinstance(source, Stream) and source.time == column.name
