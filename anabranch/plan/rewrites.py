"""The logical rewrites of a query, in order. SQL is bound to a `Query` as it was written; these make of it what is planned.

`rewritten` applies the list to one SELECT, whose subqueries have been through it already, so that a rewrite sees one level
at a time. A rewrite is a function from a query to a query with the same results and the same `output_schema`; applied twice
it does no more than once. One that `is_needed` makes a form that the engine asks for. Every other one can be left out
(`without`): what is planned is worse then, and gives the same. Tests check a query after each rewrite
(`anabranch.plan.verify`), and compare results with rewrites left out.

Four more things that are said to rewrite queries are not in the list, for they are no functions from a query to a query:

- *Implied filters* are read off a join graph (`JoinGraph.implied_filters`). That keys are not NULL, and two terms of one
  input equal which a class has equal, is what every lookup by classes relies on; as filters of the query they could be
  raised above the join, where they would come too late.
- *Ranges* (`JoinGraph.range_between`) belong to one lookup of one plan: the same comparison is a range of one input for rows
  of the other, and the other way round.
- *Groups below the join* (`anabranch.plan.eager.Forms`) are alternatives. Which is cheaper is decided by cost, and again
  while the query runs; the query as written stays.
- *Selects above a join* (`anabranch.plan.selects`) are part of what is executed (`Execution`), which changes while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anabranch.errors import PlanError
from anabranch.plan.flat import subqueries_to_inputs
from anabranch.plan.lookups import lookups_to_streams
from anabranch.plan.predicates import equalities_to_keys, predicates_to_filters
from anabranch.plan.query import Query


@dataclass(frozen=True)
class Rewrite:
    """One rewrite, and why it stands where it does."""

    name: str
    reason: str
    apply: Callable[[Query], Query]
    is_needed: bool = False
    """Whether the engine runs no query without it."""


REWRITES: tuple[Rewrite, ...] = (
    Rewrite(
        "subqueries_to_inputs",
        "First: what a predicate reads is known only when columns of subqueries are those of their inputs. `x.p = x.q` "
        "reads one input, and may join two when x is taken apart.",
        subqueries_to_inputs,
        is_needed=True,
    ),
    Rewrite(
        "predicates_to_filters",
        "Before keys are sought: an equality of two columns of one input is a filter, and no key.",
        predicates_to_filters,
        is_needed=True,
    ),
    Rewrite(
        "equalities_to_keys",
        "After filters: all that is left reads several inputs, or none. Without it inputs are joined row by row, and "
        "equalities are checked on what comes out.",
        equalities_to_keys,
    ),
    Rewrite(
        "lookups_to_streams",
        "Last: a table in a database is looked up by keys, and these are known now.",
        lookups_to_streams,
        is_needed=True,
    ),
)


def rewritten(query: Query, rewrites: Sequence[Rewrite] = REWRITES) -> Query:
    """The query after all rewrites, one after the other."""
    for rewrite in rewrites:
        query = rewrite.apply(query)
    return query


def without(*names: str) -> tuple[Rewrite, ...]:
    """The list with some rewrites left out.

    >>> [rewrite.name for rewrite in without("equalities_to_keys")]
    ['subqueries_to_inputs', 'predicates_to_filters', 'lookups_to_streams']
    >>> without("predicates_to_filters")
    Traceback (most recent call last):
    ...
    anabranch.errors.PlanError: predicates_to_filters cannot be left out: the engine runs no query without it
    """
    known = {rewrite.name: rewrite for rewrite in REWRITES}
    for name in names:
        if name not in known:
            raise PlanError(f"there is no rewrite {name}; there are: {', '.join(known)}")
        if known[name].is_needed:
            raise PlanError(f"{name} cannot be left out: the engine runs no query without it")
    return tuple(rewrite for rewrite in REWRITES if rewrite.name not in names)
