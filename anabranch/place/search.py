"""Searches for the best placement, bottom-up over the tree: the paper's (004, section 7), and ours by resource.

- `pruned` is the paper's: of partial plans whose top is in the engine only the best goes on, for what comes above costs the
  same whatever is below. It is exact for C_b by operator (eq. 5). A tree of unary operators has n + 1 plans, a complete
  binary one f(1) = 2, f(h) = 1 + f(h-1)²;
- `by_front` is ours, for C_b by resource. There the best partial plan need not be part of the best plan: one that uses more
  in all may leave more of the resource that is short. So of partial plans that end in the same way (top in the engine, or in
  an open DB-op) those stay that no other undercuts in all figures that add up on the way to the root.

Why `by_front` is exact. Above a partial plan whose top is in the engine, what is added to the use of engine and database
does not depend on it; above an open DB-op neither, because the SQL of further operators, and what the whole DB-op brings
back, depends on the tree alone (`anabranch.place.cost`). So if one partial plan uses no more of either resource than another
of the same ending, this holds for every pair of whole plans that go on from them in the same way; and definition 1 prefers,
of two such plans, the one with less: its bottleneck and its sum are no larger. `tests/place` compares it with `exhaustive`.

Where no more than some statements may run in the database, a partial plan with fewer of them leaves more to what comes
above: their number is one more of the figures. `next_best` gives what is best beside a decision. The product decides by
these two (`anabranch.place.choice`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from anabranch.errors import PlanError
from anabranch.place.cost import Costs, Price, Prices, prices_of
from anabranch.place.operators import Operator, Place, Window, require_names
from anabranch.place.placement import NO_PLACEMENT, Bools, Decision, Floats, Use, best_of, bottleneck_of, rank


@dataclass(frozen=True, eq=False)
class Plans:
    """Partial plans up to one operator, side by side: which operators are in the database, and what each plan uses."""

    in_database: NDArray[np.int64]
    """By the bits of the operators; Python's own numbers if there are more than a word has."""
    engine: Floats
    database: Floats
    bottleneck: Floats
    open_u: Floats
    """What the DB-op takes so far that the top of the plan is in; not yet in `database`."""
    is_open: Bools
    """Whether the top of the plan is in a DB-op, which may grow."""
    ended: NDArray[np.int64]
    """How many DB-ops there are that do not grow."""

    @property
    def statements(self) -> NDArray[np.int64]:
        """How many DB-ops there are."""
        return self.ended + self.is_open

    def __len__(self) -> int:
        return len(self.engine)

    def columns(self) -> list[NDArray[np.generic]]:
        return [getattr(self, f.name) for f in fields(self)]

    def at(self, rows: NDArray[np.generic]) -> Plans:
        return Plans(*(column[rows] for column in self.columns()))

    def __add__(self, other: Plans) -> Plans:
        """The plans of both."""
        pairs = zip(self.columns(), other.columns(), strict=True)
        return Plans(*(np.concatenate(pair) for pair in pairs))

    def __mul__(self, other: Plans) -> Plans:
        """Each plan of an input with each of another input, or of the operator that reads both."""
        one, two = (n.ravel() for n in np.indices((len(self), len(other))))
        a, b = self.at(one), other.at(two)
        return Plans(
            a.in_database | b.in_database,
            a.engine + b.engine,
            a.database + b.database,
            np.maximum(a.bottleneck, b.bottleneck),
            a.open_u + b.open_u,
            np.zeros(len(one), dtype=bool),
            a.ended + b.ended,
        )

    def closed(self, top: Price) -> Plans:
        """The plans, where the top is in a DB-op with that DB-op at its end."""
        ending = np.where(self.is_open, self.open_u + top.leaving_u, 0.0)
        return replace(
            self,
            database=self.database + ending,
            bottleneck=np.maximum(self.bottleneck, ending),
            open_u=np.zeros(len(self)),
            is_open=np.zeros(len(self), dtype=bool),
            ended=self.statements,
        )


def plan(in_database: int = 0, engine: float = 0.0, open_u: float = 0.0) -> Plans:
    """One plan: of a window, or of an operator without what is below it."""
    bits = np.array([in_database], dtype=np.int64 if in_database.bit_length() < 64 else object)
    use, ended = np.array([engine]), np.zeros(1, dtype=np.int64)
    return Plans(bits, use, np.zeros(1), use, np.array([open_u]), np.zeros(1, dtype=bool), ended)


NONE = plan().at(np.zeros(1, dtype=bool))

Keep = Callable[[Plans], Plans]


def pruned(root: Operator, costs: Costs) -> Decision:
    """The paper's search (section 7): exact where C_b is by operator."""

    def best(plans: Plans) -> Plans:
        return plans.at(np.array([_best(plans, costs)])) if len(plans) else plans

    return _found(_search(root, costs, best, lambda plans: plans, is_exact=not costs.corrections.by_resource))


def by_front(root: Operator, costs: Costs, most_statements: int | None = None) -> Decision:
    """Ours: exact for C_b by resource, and by operator; also with at most so many statements in the database."""
    return _found(_by_front(root, costs, most_statements))


def next_best(root: Operator, costs: Costs, decision: Decision, most_statements: int | None = None) -> Decision | None:
    """The best placement but the one decided on: it has some operator elsewhere, so it is the best of those that have to.
    None if there is no other."""
    found, seen = list[Decision](), set[str]()
    for each in root:
        here = Place.DATABASE if each.name in decision.in_database else Place.ENGINE
        if not (others := each.places - {here}) or each.block in seen:
            continue
        if each.block is not None:
            seen.add(each.block)
        if (other := _by_front(_confined(root, each.name, others), costs, most_statements)) is not None:
            found.append(other)
    if not found:
        return None
    return replace(min(found, key=lambda other: rank(other.use, costs)), examined=sum(other.examined for other in found))


def _confined(node: Operator, name: str, places: frozenset[Place]) -> Operator:
    """The tree with one operator kept to some places."""
    inputs = (i if isinstance(i, Window) else _confined(i, name, places) for i in node.inputs)
    return replace(node, inputs=tuple(inputs), places=places if node.name == name else node.places)


def _by_front(root: Operator, costs: Costs, most_statements: int | None) -> Decision | None:
    def keep(plans: Plans) -> Plans:
        if most_statements is None:
            return plans.at(front(_figures(plans, costs)))
        within = plans.at(plans.statements <= most_statements)
        return within.at(front([*_figures(within, costs), within.statements.astype(np.float64)]))

    return _search(root, costs, keep, keep, is_exact=True)


def _found(decision: Decision | None) -> Decision:
    if decision is None:
        raise PlanError(NO_PLACEMENT)
    return decision


def _search(root: Operator, costs: Costs, closed: Keep, opened: Keep, is_exact: bool) -> Decision | None:
    """`closed` says which of the plans with no open DB-op are gone on from, and `opened` which of those with one. None: no
    plan is allowed."""
    require_names(root)
    names = [each.name for each in root]
    bits = {name: 1 << n for n, name in enumerate(names)}
    prices = prices_of(root, costs)
    known: dict[str, Plans] = {}
    for node in root:
        in_engine = closed(_in_engine(node, known, prices, closed))
        known[node.name] = in_engine + opened(_in_statement(node, known, prices, bits[node.name]))
    whole = known[root.name].closed(prices[root.name])
    if not len(whole):
        return None
    best = _best(whole, costs)
    use = Use(float(whole.engine[best]), float(whole.database[best]), float(whole.bottleneck[best]))
    placed = frozenset(name for name, bit in bits.items() if int(whole.in_database[best]) & bit)
    return Decision(placed, use, bottleneck_of(use, costs), len(whole), is_exact)


def _best(plans: Plans, costs: Costs) -> int:
    return best_of(plans.engine, plans.database, plans.bottleneck, costs)


def _in_engine(node: Operator, known: dict[str, Plans], prices: Prices, closed: Keep) -> Plans:
    """The plans up to an operator that runs in the engine."""
    if Place.ENGINE not in node.places:
        return NONE
    sides = (closed(_below_engine(node, i, known).closed(prices[i.name])) for i in node.below)
    return reduce(Plans.__mul__, sides, plan(engine=prices[node.name].engine_u))


def _below_engine(node: Operator, below: Operator, known: dict[str, Plans]) -> Plans:
    """The plans up to an input of an operator that runs in the engine."""
    plans = known[below.name]
    return plans.at(~plans.is_open) if node.goes_with(below) else plans


def _in_statement(node: Operator, known: dict[str, Plans], prices: Prices, bit: int) -> Plans:
    """The plans up to an operator that runs in the database: its inputs come from the same statement, or are brought in."""
    if Place.DATABASE not in node.places:
        return NONE
    price = prices[node.name]
    sides = (_entering(node, i, known, prices, u) for i, u in zip(node.inputs, price.entering_u, strict=True))
    found = reduce(Plans.__mul__, sides, plan(in_database=bit, open_u=price.statement_u))
    return replace(found, is_open=np.ones(len(found), dtype=bool))


def _entering(
    node: Operator, below: Operator | Window, known: dict[str, Plans], prices: Prices, entering_u: float
) -> Plans:
    """The plans up to an input of an operator that runs in the database."""
    if isinstance(below, Window):
        return plan(open_u=entering_u)
    plans = known[below.name]
    if node.goes_with(below):
        plans = plans.at(plans.is_open)
    elif node.block != below.block:
        plans = plans.closed(prices[below.name])
    return replace(plans, open_u=np.where(plans.is_open, plans.open_u, entering_u))


def _figures(plans: Plans, costs: Costs) -> list[Floats]:
    """What adds up on the way to the root, and decides there."""
    total = plans.engine + plans.database + plans.open_u
    if not costs.corrections.by_resource:
        return [plans.bottleneck, total, plans.open_u]
    if costs.database.is_embedded:
        return [total]
    return [plans.engine, plans.database + plans.open_u]


def front(figures: Sequence[Floats]) -> NDArray[np.int64]:
    """The places of those that no other undercuts in all figures; one of several that are equal.

    >>> front([np.array([3.0, 1.0, 2.0, 2.0]), np.array([1.0, 3.0, 3.0, 2.0])]).tolist()
    [1, 3, 0]
    """
    order = np.lexsort(tuple(reversed(figures)))
    kept: list[int] = []
    for n in order:
        if not np.logical_and.reduce([figure[kept] <= figure[n] for figure in figures]).any():
            kept.append(int(n))
    return np.array(kept, dtype=np.int64)
