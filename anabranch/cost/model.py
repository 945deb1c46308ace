"""The CPU and the memory of a join tree (equations 1 to 7 of Zhu, Raghavan, Rundensteiner, DKE 2009, made general).

A join of the sets X1 … Xk pays for each of them

    R(X)·(insert + delete)·keys(X)              to keep the rows of X where the other inputs find them
    R(X)·[L(Y1) + J(X Y1) + …]                  for the probe order Y1, Y2, … of X: rows so far times the cost of a
                                                lookup in the next state, and a pair of rows joined for each match;
                                                from the second lookup on, rows must be sorted by their next key first

and their state is N(X) + R(X)·slack rows, or R(X)·(shortest window + slack) where rows go with those they came with. With
one key for every state, lookups for nothing and no slack these are the papers' equations. Both sums are over the joins of
the tree and depend on the *sets* below a join alone, which is what exact search relies on: rows on the way from X through a
set of others to the union u are R(X)·N(u)/N(X), whatever the order was.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anabranch.cost.streams import Mask, StreamGraph
from anabranch.plan.jtree import Join, Leaf, Plan


@dataclass(frozen=True)
class UnitCosts:
    """What single operations cost: seconds of CPU, and bytes."""

    insert: float
    """Ci: a row into one index of a state."""
    delete: float
    """Cd: a row out of one index."""
    join: float
    """Cj: a pair of rows that match."""
    lookup: float = 0.0
    """Cl: a row looked up in a state, the first run of it."""
    lookup_run: float = 0.0
    """What every further run of the state adds to a lookup."""
    rekey: float = 0.0
    """A combined row made ready for its next lookup: its key is fetched, hashed and sorted. Rows that begin a join were
    sorted when they were indexed."""
    view_insert: float | None = None
    """Ci for a combined row, where it is another."""
    accept: float = 0.0
    """A row of a stream taken in and logged."""
    step: float = 0.0
    """One lookup of a whole batch, however few rows it has; every stream makes its own at every join above it."""
    upkeep: float = 0.0
    """An index brought up to date with a batch, however few rows it has; that of a view for every stream in it."""
    batch: float = 0.0
    """A batch, however few rows it has."""
    result: float = 0.0
    """A result handed out."""
    fold: float = 0.0
    """A row folded into the groups of a query."""
    counts_keys: bool = False
    """Whether a state has an index for each key it is looked up by; the papers have one for all."""
    index_bytes: float = 0.0
    """A row in an index of a stream."""
    view_row_bytes: float = 1.0
    """A combined row, whatever it consists of."""
    view_part_bytes: float = 0.0
    """And for each of its parts."""
    view_index_bytes: float = 0.0
    """A combined row in an index."""
    keeps_segments: bool = False
    """Whether rows are dropped with the last of those that arrived together: combined rows then stay as long as those that
    live longest, the shortest window."""
    slack_s: float = 0.0
    """And so much longer: lateness, the span of a batch, and what is purged with others."""
    view_slack_s: float | None = None
    """The same for combined rows, where it is another: few live as long as the shortest window allows."""
    batch_s: float = 1.0
    """The span of a batch: with the window it tells how many runs a state has."""

    def runs(self, span_s: float) -> float:
        """About how many runs of an index a lookup visits: one per batch at first, then fewer, for they are merged."""
        batches = max(1.0, span_s / self.batch_s)
        return batches if batches <= 6 else 6 + 1.6 * math.log(batches / 6, 4)


PAPER = UnitCosts(insert=2.0e-7, delete=2.0e-7, join=2.2e-6)
"""Table 3 of the paper, in seconds; memory is counted in rows."""


@dataclass(frozen=True)
class Cost:
    """Seconds of CPU per second, and bytes of state."""

    cpu: float
    memory: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.cpu + other.cpu, self.memory + other.memory)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.cpu - other.cpu, self.memory - other.memory)

    def within(self, cpu: float, memory: float) -> bool:
        return self.cpu <= cpu and self.memory <= memory

    def dominates(self, other: Cost) -> bool:
        """Whether this is at least as good in both, and better in one."""
        return self.cpu <= other.cpu and self.memory <= other.memory and self != other


class CostModel:
    """Costs of plans over a graph of streams."""

    def __init__(self, graph: StreamGraph, units: UnitCosts = PAPER) -> None:
        self.graph, self.units = graph, units

    # -- states ------------------------------------------------------------------------------------------------------

    def keys(self, streams: Mask, others: Mask) -> int:
        """By how many keys the others look up a state."""
        return max(1, self.graph.keys_between(streams, others)) if self.units.counts_keys else 1

    def span(self, streams: Mask) -> float:
        """The shortest window of some streams, in seconds; infinite for tables alone."""
        members = [s for i, s in enumerate(self.graph.streams) if streams >> i & 1]
        return min((1 / s.renewal for s in members if s.renewal), default=math.inf)

    def stored_rows(self, streams: Mask) -> float:
        rate, span = self.graph.rate(streams), self.span(streams)
        alive = rate * span if self.units.keeps_segments and span < math.inf else self.graph.rows(streams)
        u = self.units
        return alive + rate * (u.slack_s if u.view_slack_s is None or not streams & (streams - 1) else u.view_slack_s)

    def state_bytes(self, streams: Mask, others: Mask) -> float:
        """The memory of an input of a join."""
        rows, keys, u = self.stored_rows(streams), self.keys(streams, others), self.units
        if streams & (streams - 1):
            width = u.view_row_bytes + streams.bit_count() * u.view_part_bytes + keys * u.view_index_bytes
        else:
            width = self.graph.streams[streams.bit_length() - 1].row_bytes + keys * u.index_bytes
        return rows * width

    def lookup(self, streams: Mask) -> float:
        """The cost of looking up one row in a state."""
        u = self.units
        if not u.lookup_run:
            return u.lookup
        return u.lookup + u.lookup_run * (u.runs(min(self.span(streams), 1e9)) - 1)

    # -- joins -------------------------------------------------------------------------------------------------------

    def probe(self, streams: Mask, order: Sequence[Mask]) -> float:
        """CPU per second for the new rows of an input of a join, along a probe order."""
        rows, bound, spent = self.graph.rate(streams), streams, 0.0
        per_row = rows / base if (base := self.graph.rows(streams)) else 0.0
        for place, other in enumerate(order):
            bound |= other
            matches = per_row * self.graph.rows(bound)
            spent += rows * (self.lookup(other) + (self.units.rekey if place else 0.0)) + matches * self.units.join
            rows = matches
        return spent

    def maintain(self, streams: Mask, others: Mask) -> float:
        """CPU per second to keep the rows of an input of a join."""
        u = self.units
        insert = u.insert if u.view_insert is None or not streams & (streams - 1) else u.view_insert
        upkeep = streams.bit_count() * u.upkeep / u.batch_s
        return (self.graph.rate(streams) * (insert + u.delete) + upkeep) * self.keys(streams, others)

    def join(self, inputs: Sequence[Mask], orders: Sequence[Sequence[int]]) -> Cost:
        """A join of some sets alone, without what is below it."""
        everything = 0
        for streams in inputs:
            everything |= streams
        steps = everything.bit_count() * (len(inputs) - 1)
        cpu, memory = steps * self.units.step / self.units.batch_s, 0.0
        for streams, order in zip(inputs, orders, strict=True):
            others = everything & ~streams
            cpu += self.maintain(streams, others) + self.probe(streams, [inputs[j] for j in order])
            memory += self.state_bytes(streams, others)
        return Cost(cpu, memory)

    # -- plans -------------------------------------------------------------------------------------------------------

    def fixed(self) -> Cost:
        """What every plan pays: rows taken in and results handed out."""
        rows = sum(s.rate for s in self.graph.streams)
        results = self.graph.rate(self.graph.everything)
        u = self.units
        return Cost(rows * u.accept + results * u.result + u.batch / u.batch_s, 0.0)

    def cost(self, plan: Plan) -> Cost:
        """A plan, whole."""
        total = self.fixed()
        for _, cost in self.nodes(plan):
            total += cost
        return total

    def nodes(self, plan: Plan) -> Iterator[tuple[Join, Cost]]:
        """Every join of a plan with its own cost, children before parents."""
        if isinstance(plan, Leaf):
            return
        for child in plan.inputs:
            yield from self.nodes(child)
        inputs = [self.graph.mask(child.aliases) for child in plan.inputs]
        yield plan, self.join(inputs, plan.orders)
