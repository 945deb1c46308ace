"""Plans as trees of half-way joins, and what a probe costs (JAQPOT, section 2, equations 1 to 3; appendix A, eq. 13 to
15).

    λ_i        `Stream.rate_per_s`             rows that arrive per second
    |S_I|      `Stream.state_rows`, `Join.state_rows`     rows of a state, by the window that counts rows
    σ_I        `selectivity` of the input whose state is probed
    i ⋉ S_J    `HalfWayJoin`, called by the input i that probes
    ρ_h        `HalfWayJoin.results_per_row`   σ_J · |S_J|, equation 3

The paper has one selectivity for a join (footnote 4), and in fig. 2a one for each direction: here each state has its
own, and `join` sets both of a join alike.

Deviations. (1) A probe costs 1 in the paper; here `ProbeCost` says what a lookup, a pair that is found, and a row of an
intermediate state cost, and productivity is results per unit of *cost*. The paper's case is (1, 0, 0). What taking in
rows of streams costs is no part of it: they are all taken in. (2) A join may have more than two inputs: a row probes
the other inputs in the order in which they are written, and all of these probes are one half-way join.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite

from anabranch.errors import PlanError


@dataclass(frozen=True)
class ProbeCost:
    """What probing costs, in any unit of CPU; the capacity of a plan is in that unit per second."""

    lookup: float = 1.0
    """A row looks up one state."""
    pair: float = 0.0
    """A partner is found."""
    insert: float = 0.0
    """A row that a join below the root found is stored in its state."""


THE_PAPERS = ProbeCost()
"""The unit-time basis cost model: every probe costs 1, storing nothing (section 2)."""


@dataclass(frozen=True)
class Stream:
    """An input of the query: λ, |S| and the selectivity with which others probe its state."""

    name: str
    rate_per_s: float
    state_rows: float
    selectivity: float

    @property
    def streams(self) -> tuple[Stream, ...]:
        return (self,)


@dataclass(frozen=True)
class Join:
    """A join, and the state of its results that the join above probes; the root has no such state."""

    inputs: tuple[Stream | Join, ...]
    state_rows: float = 0.0
    selectivity: float = 0.0

    @cached_property
    def name(self) -> str:
        return f"({' '.join(each.name for each in self.inputs)})"

    @cached_property
    def streams(self) -> tuple[Stream, ...]:
        return tuple(stream for each in self.inputs for stream in each.streams)


@dataclass(frozen=True)
class HalfWayJoin:
    """New rows of one input of a join probe the states of the others."""

    input: str
    join: str
    results_per_row: float
    """ρ_h."""
    cost_per_row: float
    producers: tuple[str, ...]
    """The inputs whose half-way joins find the rows that probe here; none for a stream."""
    is_root: bool

    @property
    def productivity(self) -> float:
        """Results of the join per unit of cost; with the paper's cost it is ρ_h (definition 1)."""
        return self.results_per_row / self.cost_per_row if self.cost_per_row else float("inf")


@dataclass(frozen=True)
class Plan:
    """A plan with rates, states and selectivities, and what probing costs."""

    root: Join
    cost: ProbeCost = field(default=THE_PAPERS)

    def __post_init__(self) -> None:
        names = [stream.name for stream in self.streams]
        if len(set(names)) != len(names):
            raise PlanError(f"a stream stands twice in {self.root.name}: give each place of a stream a name of its own")
        for each in self.joins:
            if len(each.inputs) < 2:
                raise PlanError(f"a join needs two or more inputs, {each.name} has {len(each.inputs)}")
        numbers = [("selectivity", e.name, e.selectivity) for e in self.inputs.values()]
        numbers += [("state", each.name, each.state_rows) for each in self.inputs.values()]
        numbers += [("rate", stream.name, stream.rate_per_s) for stream in self.streams]
        numbers += [("cost", name, getattr(self.cost, name)) for name in ("lookup", "pair", "insert")]
        for what, of, value in numbers:
            if not (isfinite(value) and value >= 0):
                raise PlanError(f"the {what} of {of} is {value}: it must be a number, 0 or more")

    @cached_property
    def streams(self) -> tuple[Stream, ...]:
        return self.root.streams

    @cached_property
    def joins(self) -> tuple[Join, ...]:
        """All joins, those below first; the root is the last."""
        return tuple(_joins(self.root))

    @cached_property
    def inputs(self) -> dict[str, Stream | Join]:
        """The inputs of all joins, by name: each has one half-way join."""
        return {each.name: each for join in self.joins for each in join.inputs}

    @cached_property
    def half_way_joins(self) -> tuple[HalfWayJoin, ...]:
        """All half-way joins, those below first."""
        return tuple(self._half_way(join, place) for join in self.joins for place in range(len(join.inputs)))

    @cached_property
    def by_input(self) -> dict[str, HalfWayJoin]:
        return {each.input: each for each in self.half_way_joins}

    @cached_property
    def above(self) -> dict[str, str]:
        """The join that an input is an input of."""
        return {each.name: join.name for join in self.joins for each in join.inputs}

    @cached_property
    def full_rates(self) -> dict[str, float]:
        """Rows per second that come to each half-way join if nothing is limited."""
        found: dict[str, float] = {}
        for each in self.half_way_joins:
            one = self.inputs[each.input]
            found[each.input] = (
                one.rate_per_s if isinstance(one, Stream)
                else sum(found[name] * self.by_input[name].results_per_row for name in each.producers)
            )  # fmt: skip
        return found

    @property
    def saturation(self) -> float:
        """The least capacity with which nothing needs to be limited (footnote 9)."""
        return sum(self.full_rates[each.input] * each.cost_per_row for each in self.half_way_joins)

    @property
    def saturation_results_per_s(self) -> float:
        """Results per second if nothing is limited."""
        return sum(self.full_rates[e.input] * e.results_per_row for e in self.half_way_joins if e.is_root)

    def _half_way(self, join: Join, place: int) -> HalfWayJoin:
        one, is_root = join.inputs[place], join is self.root
        bound, cost = 1.0, 0.0
        for partner in (*join.inputs[:place], *join.inputs[place + 1 :]):
            found = bound * partner.selectivity * partner.state_rows
            cost += bound * self.cost.lookup + found * self.cost.pair
            bound = found
        if not is_root:
            cost += bound * self.cost.insert
        producers = tuple(each.name for each in one.inputs) if isinstance(one, Join) else ()
        return HalfWayJoin(one.name, join.name, bound, cost, producers, is_root)


def _joins(node: Join) -> Iterator[Join]:
    for each in node.inputs:
        if isinstance(each, Join):
            yield from _joins(each)
    yield node


def join(left: Stream | Join, right: Stream | Join, selectivity: float, state_rows: float = 0.0) -> Join:
    """A binary join with one selectivity for both directions, as the paper writes its plans (footnote 4).

    >>> a, b = Stream("a", 500, 1000, 0.0), Stream("b", 700, 500, 0.0)
    >>> [each.results_per_row for each in Plan(join(a, b, 0.005)).half_way_joins]
    [2.5, 5.0]
    """
    return Join((_with_selectivity(left, selectivity), _with_selectivity(right, selectivity)), state_rows)


def _with_selectivity(node: Stream | Join, selectivity: float) -> Stream | Join:
    if isinstance(node, Stream):
        return Stream(node.name, node.rate_per_s, node.state_rows, selectivity)
    return Join(node.inputs, node.state_rows, selectivity)
