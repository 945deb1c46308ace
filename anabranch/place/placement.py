"""Which operators run in the engine and which in a database: what a placement uses, and which is better (004, 4 to 6).

A plan is better than another (definition 1) if it is feasible and the other is not; if both are, and it uses less; if
neither is, and its bottleneck is less. Here is that order, what a placement uses by its definition, and the best of all 2^n
placements: the oracle of `anabranch.place.search`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anabranch.errors import PlanError
from anabranch.place.cost import Costs, Price, Prices, prices_of
from anabranch.place.operators import Operator, Place, Window, require_names

MOST_EXHAUSTIVE = 20
"""More operators than this have more placements than anybody waits for."""

NO_PLACEMENT = "operators that go together may not run in one place, or too many of them have to leave the engine"


@dataclass(frozen=True)
class Use:
    """What a plan uses, in seconds a second."""

    engine: float = 0.0
    database: float = 0.0
    bottleneck: float = 0.0
    """C_b by operator (eq. 5): the most that one operator takes."""

    @property
    def total(self) -> float:
        """C_u (eq. 6)."""
        return self.engine + self.database

    def __add__(self, other: Use) -> Use:
        return Use(
            self.engine + other.engine, self.database + other.database, max(self.bottleneck, other.bottleneck)
        )  # fmt: skip


@dataclass(frozen=True)
class Decision:
    """The best placement that a search found."""

    in_database: frozenset[str]
    use: Use
    bottleneck: float
    """C_b, of operators or of resources as the corrections say; the plan is feasible up to 1."""
    examined: int
    """How many whole plans the search looked at."""
    is_exact: bool

    @property
    def is_feasible(self) -> bool:
        return self.bottleneck <= 1


Rank = tuple[bool, float, float]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def bottleneck_of(use: Use, costs: Costs) -> float:
    """C_b: by operator, or by resource. An embedded database uses the cores of the engine."""
    if not costs.corrections.by_resource:
        return use.bottleneck
    if costs.database.is_embedded:
        return use.total / costs.engine_cores
    return max(use.engine / costs.engine_cores, use.database / costs.database_cores)


def rank(use: Use, costs: Costs) -> Rank:
    """Definition 1 as an order: the least is the best. Definition 1 says nothing of infeasible plans with one bottleneck; of
    those the one that uses less is taken."""
    bottleneck = bottleneck_of(use, costs)
    is_infeasible = costs.checks_feasibility and bottleneck > 1
    return is_infeasible, bottleneck if is_infeasible else use.total, use.total


def exhaustive(root: Operator, costs: Costs, most_statements: int | None = None) -> Decision:
    """The best of all placements, which are priced side by side: a column has one value for each of them. At most so many
    statements run in the database, if that is bounded."""
    require_names(root)
    operators = tuple(root)
    if len(operators) > MOST_EXHAUSTIVE:
        raise PlanError(f"{len(operators)} operators have 2^{len(operators)} placements: too many to look at all")
    prices = prices_of(root, costs)
    placements = np.arange(1 << len(operators), dtype=np.int64)
    is_in = {each.name: (placements >> n & 1).astype(bool) for n, each in enumerate(operators)}
    allowed = np.ones(len(placements), dtype=bool)
    engine, database, bottleneck, statements = (np.zeros(len(placements)) for _ in range(4))
    open_u: dict[str, Floats] = {}
    for each in operators:
        price, here = prices[each.name], is_in[each.name]
        for place, is_there in ((Place.DATABASE, here), (Place.ENGINE, ~here)):
            if place not in each.places:
                allowed &= ~is_there
        engine += np.where(here, 0.0, price.engine_u)
        bottleneck = np.maximum(bottleneck, np.where(here, 0.0, price.engine_u))
        open_u[each.name] = np.full(len(placements), price.statement_u)
        for i, entering in zip(each.inputs, price.entering_u, strict=True):
            if isinstance(i, Window):
                open_u[each.name] += entering
                continue
            there, below = is_in[i.name], open_u[i.name]
            goes_on = there & here & (each.block == i.block)
            open_u[each.name] += np.where(goes_on, below, entering)
            closed = np.where(there & ~goes_on, below + prices[i.name].leaving_u, 0.0)
            database, bottleneck = database + closed, np.maximum(bottleneck, closed)
            statements += there & ~goes_on
            if each.goes_with(i):
                allowed &= there == here
    last = np.where(is_in[root.name], open_u[root.name] + prices[root.name].leaving_u, 0.0)
    database, bottleneck = database + last, np.maximum(bottleneck, last)
    statements += is_in[root.name]
    if most_statements is not None:
        allowed &= statements <= most_statements
    if not allowed.any():
        raise PlanError(NO_PLACEMENT)
    best = best_of(engine, database, bottleneck, costs, allowed)
    use = Use(float(engine[best]), float(database[best]), float(bottleneck[best]))
    placed = frozenset(name for name, there in is_in.items() if there[best])
    return Decision(placed, use, bottleneck_of(use, costs), int(allowed.sum()), is_exact=True)


def best_of(engine: Floats, database: Floats, bottleneck: Floats, costs: Costs, allowed: Bools | None = None) -> int:
    """The place of the best of many plans that are given in columns: `rank` for all of them."""
    total = engine + database
    if costs.corrections.by_resource:
        cores = costs.engine_cores, costs.database_cores
        is_embedded = costs.database.is_embedded
        bottleneck = total / cores[0] if is_embedded else np.maximum(engine / cores[0], database / cores[1])
    is_infeasible = (bottleneck > 1) & costs.checks_feasibility
    out = np.zeros(len(total), dtype=bool) if allowed is None else ~allowed
    return int(np.lexsort((total, np.where(is_infeasible, bottleneck, total), is_infeasible, out))[0])


def use_of(root: Operator, in_database: frozenset[str], costs: Costs) -> Use:
    """What a whole plan uses, by its definition: each operator in the engine what it takes, each DB-op all that it does."""
    return _use(root, in_database, prices_of(root, costs))


def _use(root: Operator, in_database: frozenset[str], prices: Prices) -> Use:
    use, open_u = _walk(root, in_database, prices)
    return use if open_u is None else use + closed_use(prices[root.name], open_u)


def _walk(node: Operator, in_database: frozenset[str], prices: Prices) -> tuple[Use, float | None]:
    """What is used below and by an operator; and what the DB-op takes that it is in, which is not closed yet, or None."""
    use, open_u, is_in, price = Use(), 0.0, node.name in in_database, prices[node.name]
    for i, entering in zip(node.inputs, price.entering_u, strict=True):
        below: float | None = None
        if isinstance(i, Operator):
            used, below = _walk(i, in_database, prices)
            use = use + used
            if below is not None and not (is_in and node.block == i.block):
                use, below = use + closed_use(prices[i.name], below), None
        if is_in:
            open_u += entering if below is None else below
    if not is_in:
        return use + engine_use(price), None
    return use, open_u + price.statement_u


def engine_use(price: Price) -> Use:
    """What an operator in the engine uses."""
    return Use(engine=price.engine_u, bottleneck=price.engine_u)


def closed_use(top: Price, open_u: float) -> Use:
    """What a DB-op uses that ends with an operator."""
    u = open_u + top.leaving_u
    return Use(database=u, bottleneck=u)
