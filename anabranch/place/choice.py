"""Where the operators of a query run, by what is known of a database: the optimizer's first duty is to leave them alone.

A cost that was never measured is not trusted: without a calibration of the database (`anabranch.place.calibrate`) every
operator stays in the engine, unless a hint places it. A query has a choice if some operator may run in either place, or a
hint has one in the database.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.cost.facts import Given
from anabranch.cost.model import UnitCosts
from anabranch.place.calibrate import Measured
from anabranch.place.cost import Costs
from anabranch.place.operators import Operator, Place
from anabranch.place.parts import by_parts
from anabranch.place.placement import Decision
from anabranch.place.search import MOST_OPERATORS, by_front, next_best
from anabranch.place.tree import CanRun, engine_costs, operators_of
from anabranch.plan.query import Query


@dataclass(frozen=True)
class Choice:
    """Where operators run, and why."""

    database: str
    root: Operator
    in_database: frozenset[str]
    decision: Decision | None = None
    """None: the database was never measured."""
    other: Decision | None = None
    """The next best."""

    def place_of(self, operator: Operator) -> str:
        return self.database if operator.name in self.in_database else Place.ENGINE.value


def choose_places(
    query: Query,
    facts: Given,
    units: UnitCosts,
    join_cpu: Mapping[str, float],
    database: str,
    can_run: CanRun,
    measured: Measured | None,
    cores: float = 1.0,
) -> Choice | None:
    """The places of a query's operators between the engine and one database; None if there is no choice.

    `join_cpu` has what the joins of each block take by their plan, by operator (`anabranch.place.tree.joining_blocks`).
    """
    root = operators_of(query, facts, can_run)
    if not any(Place.DATABASE in each.places for each in root):
        return None
    there = None if measured is None else measured.costs()
    if there is None:
        return Choice(database, root, frozenset(each.name for each in root if Place.ENGINE not in each.places))
    costs = Costs(engine_costs(root, units, join_cpu), there, engine_cores=cores)
    found = by_parts(root, costs, MOST_OPERATORS, by_front)
    other = next_best(root, costs, found) if found.is_exact else None
    return Choice(database, root, found.in_database, found, other)
