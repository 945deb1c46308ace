"""Where the blocks of a query run, by what is known of a database: the optimizer's first duty is to leave them alone.

A block with groups goes to a database as a whole, and one block of a query does at most (004 places each operator by itself:
`anabranch.place.search`). So there are few placements to compare: all in the engine, and each block that may go. The best by
definition 1 is taken; of those that use the same, the one that leaves all where it is.

The engine folds the rows of a block over one stream and forgets them; a database reads them in the log. What it takes to log
them is the price of the database then, at most what taking them in costs.

A cost that was never measured is not trusted: without a calibration of the database (`anabranch.place.calibrate`) every
block stays in the engine, unless a hint places it. What was calibrated is corrected by what was measured since: by the pace
of the block (`anabranch.control.pace`), the seconds that the database took for it beside those that `CallCosts` expects for
the calls that were made and the rows that these read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from anabranch.control.pace import Pace
from anabranch.cost.facts import Given
from anabranch.cost.model import UnitCosts
from anabranch.place.calibrate import Measured
from anabranch.place.capabilities import Abilities
from anabranch.place.cost import Costs, executions_per_s, size_of
from anabranch.place.operators import Kind, Operator, Place, Window
from anabranch.place.placement import Decision, Use, bottleneck_of, rank, use_of
from anabranch.place.tree import engine_costs, operators_of
from anabranch.plan.query import Query

AS_CALIBRATED: Mapping[str, Pace] = MappingProxyType({})
"""No block takes more or less than what was calibrated."""


@dataclass(frozen=True)
class CallCosts:
    """What a block takes in its database by what was calibrated: a call, and each row of the windows that it reads."""

    round_trip_s: float
    row_s: float

    def seconds(self, calls: int, rows: int) -> float:
        """What some calls take that read so many rows together."""
        return calls * self.round_trip_s + rows * self.row_s


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
    calls: Mapping[str, CallCosts] = field(default_factory=dict)
    """What the blocks that may go to the database are expected to take there, by name."""

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
    paces: Mapping[str, Pace] = AS_CALIBRATED,
) -> Choice | None:
    """The places of a query's operators between the engine and one database; None if there is no choice.

    `join_cpu` has what the joins of each block take by their plan, by operator (`anabranch.place.tree.joining_blocks`). The
    blocks `ran` are where they are, in the database, and all others in the engine; None: they may go anywhere. The rows of
    blocks that are `logged` are kept wherever these run; no others go while there are such. `paces` are those that the
    database has for blocks.
    """
    root = operators_of(query, facts, abilities)
    if not any(Place.DATABASE in each.places for each in root):
        return None
    first, *others = placements(root)
    candidates = [first, *(each for each in others if not logged or _blocks(root, each) <= logged)]
    there = None if measured is None else measured.costs()
    held = next((each for each in candidates if ran is not None and _blocks(root, each) >= ran), None)
    if there is None:
        return Choice(database, root, candidates[0] if held is None else held)
    costs = Costs(engine_costs(root, units, join_cpu), there, engine_cores=cores)
    paced = {each: _at_pace(costs, _blocks(root, each), paces) for each in candidates}
    kept = logged | (ran or frozenset())
    logging = {each: _logged_per_s(root, each, kept) * units.accept for each in candidates}
    uses = {each: use_of(root, each, paced[each]) + Use(database=logging[each]) for each in candidates}
    best, *others = sorted(candidates, key=lambda each: (held is not None and each != held, rank(uses[each], costs)))

    def decision(placed: frozenset[str]) -> Decision:
        return Decision(placed, uses[placed], bottleneck_of(uses[placed], costs), len(candidates), is_exact=True)

    alone = {each: tuple(_blocks(root, each)) for each in candidates}
    calls = {blocks[0]: _call_costs(root, each, costs) for each, blocks in alone.items() if len(blocks) == 1}
    return Choice(database, root, best, decision(best), decision(others[0]) if others else None, calls)


def _at_pace(costs: Costs, blocks: frozenset[str], paces: Mapping[str, Pace]) -> Costs:
    """Costs at the pace that the database has for some blocks: for the slowest of them, if it has several."""
    known = (paces.get(block, Pace()).beside(costs.database.round_trip_s) for block in blocks)
    return replace(costs, database=costs.database.at_pace(max((pace.factor for pace in known), default=1.0)))


def _call_costs(root: Operator, in_database: frozenset[str], costs: Costs) -> CallCosts:
    """What the statement of the one block takes that a placement has in the database: what each of its executions takes,
    over the rows that these read."""
    placed = [each for each in root if each.name in in_database]
    rows = sum(
        size_of(i).rows for each in placed for i in each.inputs if isinstance(i, Window) or i.name not in in_database
    )
    executions, trip_s = max(map(executions_per_s, placed)), costs.database.round_trip_s
    a_call_s = use_of(root, in_database, costs).database / executions
    return CallCosts(trip_s, max(0.0, a_call_s - trip_s) / rows if rows else 0.0)


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
