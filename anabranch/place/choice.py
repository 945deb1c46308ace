"""Where the blocks of a query run, by what is known of a database: the optimizer's first duty is to leave them alone.

The tree of a query's operators (`anabranch.place.tree`) is searched for the best placement by definition 1, phase two of 004
(`anabranch.place.search.by_front`), and for the next best (`next_best`). The migration candidates are those that the engine
can hand over: the operators of a block go together, as one statement, and one block of a query at most leaves the engine,
unless a user has placed more. Of placements that use the same, the one that leaves all where it is is taken.

The engine folds the rows of a block over one stream and forgets them; a database reads them in the log. What it takes to log
them is the price of the database then, at most what taking them in costs (`Costs.logging_s`).

A cost that was never measured is not trusted: without a calibration of the database (`anabranch.place.calibrate`) every
block stays in the engine, unless a hint places it. So does one whose size nobody measured and nobody gave: the number of its
groups, how many rows meet in its join, or either of a block that it reads (`Operator.assumed`); one that is in the database
stays there for as long. What was calibrated is corrected by what was measured since: by the pace
of the block (`Costs.paces`, `anabranch.control.pace`), the seconds that the database took for it beside those that
`CallCosts` expects for the instants that were asked for and the rows that these read.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from anabranch.control.pace import Pace, factors
from anabranch.cost.facts import Given
from anabranch.cost.model import UnitCosts
from anabranch.place.calibrate import Measured
from anabranch.place.capabilities import Abilities
from anabranch.place.cost import Costs, DatabaseCosts, executions_per_s, size_of
from anabranch.place.operators import Kind, Operator, Place, Window
from anabranch.place.placement import Decision, bottleneck_of, use_of
from anabranch.place.search import by_front, next_best
from anabranch.place.tree import IN_DATABASE, IN_ENGINE, engine_costs, operators_of
from anabranch.plan.query import Query

AS_CALIBRATED: Mapping[str, Pace] = MappingProxyType({})
"""No block takes more or less than what was calibrated."""


@dataclass(frozen=True)
class CallCosts:
    """What a block takes in its database by what was calibrated: an instant, and each row of the windows that it reads. That
    a call for several instants makes fewer round trips is for the pace of the block to tell: it is priced by instants."""

    round_trip_s: float
    row_s: float

    def seconds(self, instants: int, rows: int) -> float:
        """What some instants take that read so many rows together."""
        return instants * self.round_trip_s + rows * self.row_s


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
    examined: int = 0
    """How many whole plans were looked at to find both."""
    calls: Mapping[str, CallCosts] = field(default_factory=dict)
    """What the blocks that may go to the database are expected to take there, by name."""
    movable: frozenset[str] = frozenset()
    """The blocks that may go to the database or stay, once enough is known of them."""

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
    fixed, free = _fixed(root), _free(root, logged)
    held = None if ran is None else next((each for each in (fixed, *free.values()) if _blocks(root, each) >= ran), None)
    there = None if measured is None else measured.costs()
    if there is None:
        return Choice(database, root, fixed if held is None else held, movable=frozenset(free))
    known = {block: names for block, names in free.items() if block not in _assumed(root)}
    kept = logged | (ran or frozenset())
    costs = Costs(
        engine_costs(root, units, join_cpu), there, engine_cores=cores, paces=_factors(root, paces, there),
        logging_s={each.name: units.accept for each in root if _reads_log_alone(each) and each.block not in kept},
    )  # fmt: skip
    unknown = free.keys() - known.keys()
    stay = unknown & _blocks(root, held or frozenset())
    tree, most = _confined(root, frozenset(known), stay), max(1, len(_blocks(root, fixed)))
    best = by_front(tree, costs, most) if held is None else _decided(root, held, costs)
    other = next_best(tree, costs, best, most)
    examined = best.examined + (0 if other is None else other.examined)
    alone = [each for each in (fixed, *known.values()) if len(_blocks(root, each)) == 1]
    calls = {next(iter(_blocks(root, each))): _call_costs(root, each, costs) for each in alone}
    return Choice(database, root, best.in_database, best, other, examined, calls, frozenset(free))


def _decided(root: Operator, in_database: frozenset[str], costs: Costs) -> Decision:
    """A placement that stands, for the query runs."""
    use = use_of(root, in_database, costs)
    return Decision(in_database, use, bottleneck_of(use, costs), examined=1, is_exact=True)


def _fixed(root: Operator) -> frozenset[str]:
    """The operators that have to be in the database, by name."""
    return frozenset(each.name for each in root if Place.ENGINE not in each.places)


def _free(root: Operator, logged: frozenset[str]) -> Mapping[str, frozenset[str]]:
    """The blocks that may go to the database or stay, by name, with the names of their operators: if a user has placed none,
    and none but those that are logged if there are such."""
    blocks = {each.block for each in root if len(each.places) > 1 and each.block is not None}
    may_go = set[str]() if _fixed(root) else blocks & logged if logged else blocks
    return {block: frozenset(each.name for each in root if each.block == block) for block in sorted(may_go)}


def _assumed(root: Operator) -> frozenset[str]:
    """The blocks of which too little is known to move them: something of their sizes is assumed, or of what they read."""
    return frozenset(each.block for each in root if each.block is not None and each.assumptions)


def _confined(node: Operator, free: frozenset[str], stay: Set[str]) -> Operator:
    """The tree, of which no other blocks leave the engine than those that are free to, or have to; and of those in the
    database none that is to stay."""
    inputs = tuple(_confined(i, free, stay) if isinstance(i, Operator) else i for i in node.inputs)
    if node.block in stay:
        return replace(node, inputs=inputs, places=IN_DATABASE)
    is_kept = Place.ENGINE in node.places and node.block not in free
    return replace(node, inputs=inputs, places=IN_ENGINE if is_kept else node.places)


def _factors(root: Operator, paces: Mapping[str, Pace], there: DatabaseCosts) -> Mapping[str, float]:
    """How many times as long as calibrated the database takes, by block."""
    blocks = {each.block for each in root}
    return factors({block: pace.beside(there.round_trip_s) for block, pace in paces.items() if block in blocks})


def _call_costs(root: Operator, in_database: frozenset[str], costs: Costs) -> CallCosts:
    """What the statement of the one block takes that a placement has in the database: what each of its executions takes,
    over the rows that these read."""
    placed = [each for each in root if each.name in in_database]
    rows = sum(
        size_of(i).rows for each in placed for i in each.inputs if isinstance(i, Window) or i.name not in in_database
    )
    executions, trip_s = max(map(executions_per_s, placed)), costs.database.round_trip_s
    a_call_s = use_of(root, in_database, replace(costs, paces={}, logging_s={})).database / executions
    return CallCosts(trip_s, max(0.0, a_call_s - trip_s) / rows if rows else 0.0)


def _reads_log_alone(operator: Operator) -> bool:
    """Whether a database would read rows of a stream for an operator that the engine keeps for no join."""
    return operator.kind is Kind.AGGREGATE and _is_stream(operator.inputs[0])


def _is_stream(node: Operator | Window) -> bool:
    return isinstance(node, Window) or (node.kind is Kind.SELECT and isinstance(node.inputs[0], Window))


def _blocks(root: Operator, in_database: frozenset[str]) -> frozenset[str]:
    return frozenset(each.block for each in root if each.name in in_database and each.block is not None)
