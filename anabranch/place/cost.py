"""What operators take in the engine and in a database (004, section 5).

*Source-driven* sizes are rows that follow from what all streams bring in a second, however long it takes to work them off:

    SELECT, PROJECT   λ_out = f·λ_in                          (1)
    JOIN              λ_out = λ_L·f·W_R + λ_R·f·W_L           (2)
    AGGREGATE         λ_out = l·g                             (3)

with W the rows of a relation at an instant, bottom-up: f·W, f·W_L·W_R, g. An operator takes u = Σ λ_i·c_i seconds a second
(4); a plan is *feasible* if no operator takes more than one: C_b = max u (5), and it uses C_u = Σ u (6). A DB-op takes the
time to bring rows in, to run its SQL, and to bring results back.

Two corrections, each of which can be switched off (`Corrections`):

- *aggregates of one slide*. Eq. 2 has each side of a join meet the other as it was. Two aggregates that slide together
  change at one instant, so their join has l·g_L·g_R·f rows, and eq. 2 counts each of them twice;
- *resources*. The paper has a core for every operator. Here operators share the cores of the slots, or those of a server;
  an embedded database runs in the slot and uses its cores. So feasibility is by resource: C_b is the share of the resource
  that is used most.

What an operator adds to a plan depends on the tree and on its own place alone, not on where others are: the statement of a
DB-op is priced as the sum of its operators, each over the relations that it reads, each run at every slide of its own
windows. The searches of `anabranch.place.search` rest on that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from anabranch.errors import PlanError
from anabranch.place.operators import Kind, Operator, Window


@dataclass(frozen=True)
class Corrections:
    """Where we leave the paper, and may go back to it."""

    aggregates_of_one_slide: bool = True
    by_resource: bool = True


PAPER = Corrections(aggregates_of_one_slide=False, by_resource=False)
OURS = Corrections()


@dataclass(frozen=True)
class Size:
    """What an operator gives: rows per second of source time, rows at an instant, and how often it slides, if it does."""

    rate_per_s: float
    rows: float
    slides_per_s: float
    is_aggregate: bool = False


def size_of(node: Operator | Window, corrections: Corrections = OURS) -> Size:
    """The source-driven output-size of an operator (eq. 1 to 3), and the size of its relation.

    >>> plugs = Window("plugs", 1000.0, 300_000.0)
    >>> loads = Operator("loads", Kind.SELECT, (plugs,), selectivity=0.5)
    >>> mean = Operator("mean", Kind.AGGREGATE, (loads,), groups=40.0)
    >>> size_of(loads).rate_per_s, size_of(mean).rate_per_s, size_of(mean).rows
    (500.0, 40.0, 40.0)
    """
    if isinstance(node, Window):
        return Size(node.rate_per_s, node.rows, node.slides_per_s, node.is_aggregate)
    given = [size_of(i, corrections) for i in node.inputs]
    if node.kind is Kind.AGGREGATE:
        slides = given[0].slides_per_s
        return Size(slides * node.groups, node.groups, slides, is_aggregate=True)
    if node.kind is not Kind.JOIN:
        (one,) = given
        f = node.selectivity
        return Size(f * one.rate_per_s, f * one.rows, one.slides_per_s, one.is_aggregate)
    return _joined(given, node.selectivity, corrections)


def _joined(given: Sequence[Size], selectivity: float, corrections: Corrections) -> Size:
    """Eq. 2 for two inputs or more: what is new of one side meets all of the others. Sides that change at one instant are
    one side, which is new as a whole at each slide, where that is corrected."""
    rows = selectivity * prod(each.rows for each in given)
    slides = max(each.slides_per_s for each in given)
    is_aggregate = all(each.is_aggregate and each.slides_per_s == slides for each in given)
    sides: list[tuple[float, float]] = []
    together = [each for each in given if each.is_aggregate and corrections.aggregates_of_one_slide]
    for at_once in dict.fromkeys(each.slides_per_s for each in together):
        held = prod(each.rows for each in together if each.slides_per_s == at_once)
        sides.append((at_once * held, held))
    sides += [(each.rate_per_s, each.rows) for each in given if each not in together]
    new = sum(rate * prod(held for m, (_, held) in enumerate(sides) if m != n) for n, (rate, _) in enumerate(sides))
    return Size(selectivity * new, rows, slides, is_aggregate)


@dataclass(frozen=True)
class EngineCosts:
    """Seconds that the stream engine takes for a row that comes to an operator: c of eq. 4."""

    per_row_s: Mapping[Kind, float]
    known_u: Mapping[str, float] = field(default_factory=dict)
    """u of operators, by name, of which more is known: the joins of a block take what the plan takes that is chosen."""

    def u(self, operator: Operator, came_per_s: float) -> float:
        """u of eq. 4."""
        known = self.known_u.get(operator.name)
        return came_per_s * self.per_row_s[operator.kind] if known is None else known


@dataclass(frozen=True)
class DatabaseCosts:
    """Seconds that a database takes, measured (`anabranch calibrate --database`)."""

    round_trip_s: float
    """For a statement that does nothing."""
    in_s: float
    """To bring a row in, and `out_s` to bring one back; 0 where the database reads our rows in place."""
    out_s: float
    per_row_s: Mapping[Kind, float]
    """For each row of a relation that an operator of a statement reads."""
    is_embedded: bool = True
    """Whether it uses the cores of the slots; else those of a server."""
    build_s: float | None = None
    """For each row of the inputs of a join but the largest: a hash join keeps those, and looks the rows of the largest up.
    None: as much as for one that is looked up."""

    def __post_init__(self) -> None:
        if min(self.round_trip_s, self.in_s, self.out_s, *self.per_row_s.values()) < 0:
            raise PlanError("what a database takes is 0 seconds or more")

    def at_pace(self, factor: float) -> DatabaseCosts:
        """What it takes if all of that takes so many times as long (`anabranch.control.pace`)."""
        return replace(
            self, round_trip_s=factor * self.round_trip_s, in_s=factor * self.in_s, out_s=factor * self.out_s,
            per_row_s={kind: factor * seconds for kind, seconds in self.per_row_s.items()},
            build_s=None if self.build_s is None else factor * self.build_s,
        )  # fmt: skip


@dataclass(frozen=True)
class Costs:
    """What there is to know to price a placement."""

    engine: EngineCosts
    database: DatabaseCosts
    engine_cores: float = 1.0
    database_cores: float = 1.0
    corrections: Corrections = OURS
    checks_feasibility: bool = True
    """Off: the plan that uses least is the best, feasible or not (004, section 8.4)."""
    paces: Mapping[str, float] = field(default_factory=dict)
    """How many times as long as calibrated the database takes for blocks, by name (`anabranch.control.pace`)."""
    logging_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds for a row that is kept for the database alone, by the operators that would read those there."""

    def database_of(self, operator: Operator) -> DatabaseCosts:
        """What the database takes for the block of an operator."""
        pace = 1.0 if operator.block is None else self.paces.get(operator.block, 1.0)
        return self.database if pace == 1 else self.database.at_pace(pace)


@dataclass(frozen=True)
class Price:
    """What one operator adds to a plan, in seconds a second."""

    engine_u: float
    """u of a SPE-op (eq. 4): what comes to it, times what a row takes."""
    entering_u: tuple[float, ...]
    """By input: what it takes to bring its rows into the database, or to keep them for it."""
    statement_u: float
    """What it adds to the SQL of a DB-op: each execution reads the relations of its inputs, and there is one each slide."""
    leaving_u: float
    """What it takes to send the statement of a DB-op whose top it is, and to bring the results back."""


Prices = Mapping[str, Price]


def prices_of(root: Operator, costs: Costs) -> Prices:
    """The price of each operator of a tree, by its name."""
    return {each.name: _price(each, costs) for each in root}


def _price(operator: Operator, costs: Costs) -> Price:
    database, logging_s = costs.database_of(operator), costs.logging_s.get(operator.name, 0.0)
    given = [size_of(i, costs.corrections) for i in operator.inputs]
    executions = executions_per_s(operator)
    rows = [i.rows for i in given]
    kept = sum(rows) - max(rows) if operator.kind is Kind.JOIN and database.build_s is not None else 0.0
    return Price(
        engine_u=costs.engine.u(operator, sum(i.rate_per_s for i in given)),
        entering_u=tuple(i.rate_per_s * (database.in_s + logging_s) for i in given),
        statement_u=executions * ((sum(rows) - kept) * database.per_row_s[operator.kind] + kept * (database.build_s or 0.0)),
        leaving_u=executions * database.round_trip_s + size_of(operator, costs.corrections).rate_per_s * database.out_s,
    )


def executions_per_s(operator: Operator) -> float:
    """How often a statement must be run so that its results are those of every instant."""
    return max((w.slides_per_s for w in operator.windows), default=1.0)
