"""Where the blocks of a query run, by what is known of a database: the optimizer's first duty is to leave them alone.

A block with groups goes to a database as a whole, and one block of a query does at most (004 places each operator by itself:
`anabranch.place.search`). So there are few placements to compare: all in the engine, and each block that may go. The best by
definition 1 is taken; of those that use the same, the one that leaves all where it is.

The engine folds the rows of a block over one stream and forgets them; a database reads them in the log. What it takes to log
them is the price of the database then, at most what taking them in costs.

A cost that was never measured is not trusted: without a calibration of the database (`anabranch.place.calibrate`) every
block stays in the engine, unless a hint places it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from anabranch.cost.facts import Given
from anabranch.cost.model import UnitCosts
from anabranch.place.calibrate import Measured
from anabranch.place.capabilities import Abilities
from anabranch.place.cost import Costs, size_of
from anabranch.place.operators import Kind, Operator, Place, Window
from anabranch.place.placement import Decision, Use, bottleneck_of, rank, use_of
from anabranch.place.tree import engine_costs, operators_of
from anabranch.plan.query import Query


@dataclass(frozen=True)
class Choice:
    """Where operators run, and why."""

    database: str
    root: Operator
    in_database: frozenset[str]
    """The operators that run there, by name."""
    decision: Decision | None = None
    """What they use; None: the database was never measured."""
    other: Decision | None = None
    """The next best."""

    def place_of(self, operator: Operator) -> str:
        return self.database if operator.name in self.in_database else Place.ENGINE.value

    @property
    def blocks(self) -> frozenset[str]:
        """The blocks that run in the database, by name."""
        return _blocks(self.root, self.in_database)


def choose_places(
    query: Query,
    facts: Given,
    units: UnitCosts,
    join_cpu: Mapping[str, float],
    database: str,
    abilities: Abilities,
    measured: Measured | None,
    cores: float = 1.0,
    ran: frozenset[str] | None = None,
    logged: frozenset[str] = frozenset(),
) -> Choice | None:
    """The places of a query's operators between the engine and one database; None if there is no choice.

    `join_cpu` has what the joins of each block take by their plan, by operator (`anabranch.place.tree.joining_blocks`). The
    blocks `ran` are where they are, in the database, and all others in the engine; None: they may go anywhere. The rows of
    blocks that are `logged` are kept wherever these run.
    """
    root = operators_of(query, facts, abilities)
    if not any(Place.DATABASE in each.places for each in root):
        return None
    candidates = placements(root)
    there = None if measured is None else measured.costs()
    held = next((each for each in candidates if ran is not None and _blocks(root, each) >= ran), None)
    if there is None:
        return Choice(database, root, candidates[0] if held is None else held)
    costs = Costs(engine_costs(root, units, join_cpu), there, engine_cores=cores)
    kept = logged | (ran or frozenset())
    logging = {each: _logged_per_s(root, each, kept) * units.accept for each in candidates}
    uses = {each: use_of(root, each, costs) + Use(database=logging[each]) for each in candidates}
    best, *others = sorted(candidates, key=lambda each: (held is not None and each != held, rank(uses[each], costs)))

    def decision(placed: frozenset[str]) -> Decision:
        return Decision(placed, uses[placed], bottleneck_of(uses[placed], costs), len(candidates), is_exact=True)

    return Choice(database, root, best, decision(best), decision(others[0]) if others else None)


def _logged_per_s(root: Operator, in_database: frozenset[str], logged: frozenset[str]) -> float:
    """Rows per second that are logged because a database reads them, and for no join."""
    there = [each for each in root if each.name in in_database and each.block not in logged]
    alone = [each for each in there if each.kind is Kind.AGGREGATE]
    return sum(size_of(each.inputs[0]).rate_per_s for each in alone if _is_stream(each.inputs[0]))


def _is_stream(node: Operator | Window) -> bool:
    return isinstance(node, Window) or (node.kind is Kind.SELECT and isinstance(node.inputs[0], Window))


def _blocks(root: Operator, in_database: frozenset[str]) -> frozenset[str]:
    return frozenset(each.block for each in root if each.name in in_database and each.block is not None)


def placements(root: Operator) -> list[frozenset[str]]:
    """The operators in the database of each placement that there is: first as few of them as there may be, then, if a user
    has placed no block, one block more for each that may go."""
    fixed = frozenset(each.name for each in root if Place.ENGINE not in each.places)
    may_go = {each.block for each in root if Place.ENGINE in each.places and Place.DATABASE in each.places}
    blocks = [] if fixed else sorted(block for block in may_go if block is not None)
    return [fixed, *(frozenset(each.name for each in root if each.block == block) for block in blocks)]
