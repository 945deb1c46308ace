"""Shared plans of the paper, ready to run: chains of slices, and what they are compared with.

| figure | function |
|---|---|
| 2, no sharing | `unshared` |
| 3, selection pull-up | `pull_up` |
| 4, selection push-down with stream partition | `push_down` |
| 7, chain of one-way joins | `one_way_chain` |
| 8, 10, 12, 15, Mem-Opt, with selections | `sliced` with `mem_opt(…).chain`, which it takes by itself |
| 13, 16, merged slices with a router, with selections | `sliced` with any other chain |

With `is_counted` a plan gives no results and counts the same comparisons, much faster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, product

from anabranch.share.chain import Chain
from anabranch.share.mem_opt import mem_opt
from anabranch.share.reference.joins import Operator, Outlet, SlicedJoin
from anabranch.share.reference.outlets import (
    Counted,
    MergingInput,
    MergingUnion,
    PunctuatedUnion,
    Receiver,
    Routed,
    Target,
)
from anabranch.share.reference.rows import KeyBand, Meter, Pair, Reference, Row
from anabranch.share.window_queries import STREAMS, Ranked, Stream, WindowQuery, predicates_of

Entry = Callable[[Row], None]
"""What a plan does with a row that comes: selections ahead of joins, then references into the queues of joins."""


class SharedPlan:
    """Joins and what is above them. Rows are handed in with `arrive`, and operators run when they are told to."""

    def __init__(self, meter: Meter, receivers: dict[str, Receiver]) -> None:
        self.meter, self.receivers = meter, receivers
        self.joins: list[SlicedJoin] = []
        self.unions: list[PunctuatedUnion | MergingUnion] = []
        self.enter: Entry = _not_built

    @property
    def operators(self) -> list[Operator]:
        return [*self.joins, *self.unions]

    def arrive(self, row: Row) -> None:
        self.enter(row)

    def drain(self, choose: Callable[[Sequence[Operator]], Operator] | None = None) -> None:
        """Runs operators until no queue has anything left: one after the other along the plan, or as `choose` says."""
        if choose is None:
            for join in self.joins:
                while join.queue:
                    join.run_once()
            for union in self.unions:
                while union.is_waiting:
                    union.run_once()
            return
        while waiting := [operator for operator in self.operators if operator.is_waiting]:
            choose(waiting).run_once()

    def run(self, rows: Iterable[Row]) -> dict[str, list[Pair]]:
        """All rows, each drained before the next comes."""
        for row in rows:
            self.arrive(row)
            self.drain()
        return self.finish()

    def finish(self) -> dict[str, list[Pair]]:
        """Input has ended: the results of each query."""
        self.drain()
        for union in self.unions:
            if isinstance(union, MergingUnion):
                union.finish()
        return {name: receiver.pairs for name, receiver in self.receivers.items()}

    @property
    def joined(self) -> list[Counter[tuple[frozenset[str], frozenset[str]]]]:
        """How many results each join has given, by what their rows satisfy; of a plan that counts."""
        return [join.outlet.joined for join in self.joins if isinstance(join.outlet, Counted)]


def _not_built(row: Row) -> None:
    raise AssertionError(f"{row} came to a plan that is not built")


def _send(join: SlicedJoin, row: Row, lineage: int = 1) -> None:
    """Both references to a row, into the queue of a join (section 4.2)."""
    join.queue.append(Reference(row, True, lineage))
    join.queue.append(Reference(row, False, lineage))


# -- chains --------------------------------------------------------------------------------------------------------------


def sliced(
    queries: Sequence[WindowQuery], condition: KeyBand, chain: Chain | None = None, is_counted: bool = False
) -> SharedPlan:
    """A chain of binary sliced joins with its selections, routers and unions; Mem-Opt if no other chain is given."""
    ranked = Ranked.of(queries)
    chain = chain or mem_opt(ranked.windows_s).chain
    if chain.windows_s != ranked.windows_s:
        raise ValueError(f"the chain has windows {chain.windows_s}, the queries have {ranked.windows_s}")
    plan = SharedPlan(Meter(), {query.name: Receiver() for query in queries})
    meter = plan.meter
    unions = {
        query.name: PunctuatedUnion(plan.receivers[query.name], meter)
        for rank, query in zip(ranked.ranks, ranked.queries, strict=True)
        if rank > 1
    }
    for (i, j), span_s in zip(chain.edges, chain.spans_s, strict=True):
        targets = [
            Target(query, rank < j, unions.get(query.name) or plan.receivers[query.name])
            for rank, query in ranked.beyond(i)
        ]
        ending = [unions[query.name] for rank, query in ranked.beyond(i) if 1 < rank <= j]
        outlet: Outlet
        if is_counted:
            outlet = Counted(meter, targets, ranked.tests(i), j - i, unions=len(ending))
        else:
            outlet = Routed(meter, targets, ranked.tests(i), j - i, ending)
        plan.joins.append(SlicedJoin(condition, span_s, outlet, meter, i + 1))
    for join, following in pairwise(plan.joins):
        join.next = following
    plan.unions = [] if is_counted else list(unions.values())

    def enter(row: Row) -> None:
        lineage, evaluated = ranked.lineage(row.stream, row.satisfies)
        meter.filtering += evaluated
        if lineage:
            _send(plan.joins[0], row, lineage)

    plan.enter = enter
    return plan


def one_way_chain(windows_s: Sequence[float], condition: KeyBand) -> SharedPlan:
    """A[0, w_1) ⋉ B, …, A[w_{N−1}, w_N) ⋉ B (definition 2), for queries `w1` … `wN`, which get what their slices give."""
    queries = [WindowQuery(f"w{n}", window_s) for n, window_s in enumerate(windows_s, 1)]
    plan = sliced(queries, condition)

    def enter(row: Row) -> None:
        plan.joins[0].queue.append(Reference(row, row.stream == "B", len(windows_s)))

    plan.enter = enter
    return plan


# -- the other ways ------------------------------------------------------------------------------------------------------


def pull_up(queries: Sequence[WindowQuery], condition: KeyBand, is_counted: bool = False) -> SharedPlan:
    """Fig. 3: one join over the longest window; a router, and above it the selections."""
    ranked = Ranked.of(queries)
    plan = SharedPlan(Meter(), {query.name: Receiver() for query in queries})
    last_s = ranked.windows_s[-1]
    targets = [Target(query, query.window_s < last_s, plan.receivers[query.name]) for query in ranked.queries]
    tests = [(stream, name) for stream in STREAMS for name in predicates_of(queries, stream)]
    shape = (plan.meter, targets, tests, len(ranked.windows_s))
    outlet = Counted(*shape) if is_counted else Routed(*shape)
    join = SlicedJoin(condition, (0.0, last_s), outlet, plan.meter)
    plan.joins.append(join)
    plan.enter = lambda row: _send(join, row)
    return plan


def push_down(queries: Sequence[WindowQuery], condition: KeyBand, is_counted: bool = False) -> SharedPlan:
    """Fig. 4: each stream is split by the selections into rows that the same queries want, and each part of A joins
    each part of B that some query wants with it; the router of such a join tells the windows of its queries apart, and
    a query that reads several joins merges their results. A row that nobody wants is dropped by the split."""
    ranked = Ranked.of(queries)
    plan = SharedPlan(Meter(), {query.name: Receiver() for query in queries})
    meter = plan.meter
    parts = {stream: _parts(ranked, stream) for stream in STREAMS}
    pairs = [(a, b) for a, b in product(parts["A"], parts["B"]) if a & b]
    feeding = {n: [place for place, (a, b) in enumerate(pairs) if n in a & b] for n in range(len(queries))}
    merged = {
        n: MergingUnion(plan.receivers[ranked.queries[n].name], meter, len(joins))
        for n, joins in feeding.items()
        if len(joins) > 1
    }
    readers_of: dict[tuple[Stream, frozenset[int]], list[SlicedJoin]] = {}
    for place, (part_a, part_b) in enumerate(pairs):
        readers = sorted(part_a & part_b)
        last_s = max(ranked.queries[n].window_s for n in readers)
        targets = []
        for n in readers:
            query = ranked.queries[n]
            into = MergingInput(merged[n], feeding[n].index(place)) if n in merged else plan.receivers[query.name]
            targets.append(Target(query, query.window_s < last_s, into))
        windows = len({ranked.queries[n].window_s for n in readers})
        outlet: Outlet
        if is_counted:
            merging = [target for target in targets if isinstance(target.into, MergingInput)]
            outlet = Counted(meter, targets, (), windows, merged=merging)
        else:
            outlet = Routed(meter, targets, (), windows)
        join = SlicedJoin(condition, (0.0, last_s), outlet, meter)
        plan.joins.append(join)
        readers_of.setdefault(("A", part_a), []).append(join)
        readers_of.setdefault(("B", part_b), []).append(join)
    plan.unions = [] if is_counted else list(merged.values())
    predicates = {stream: len(predicates_of(queries, stream)) for stream in STREAMS}

    def enter(row: Row) -> None:
        meter.filtering += predicates[row.stream]
        part = frozenset(n for n, query in enumerate(ranked.queries) if query.wants(row.stream, row.satisfies))
        for join in readers_of.get((row.stream, part), ()):
            _send(join, row)

    plan.enter = enter
    return plan


def _parts(ranked: Ranked, stream: Stream) -> list[frozenset[int]]:
    """The sets of queries that can want the same row of a stream."""
    names = predicates_of(ranked.queries, stream)
    found: dict[frozenset[int], None] = {}
    for outcome in product((False, True), repeat=len(names)):
        satisfied = frozenset(name for name, holds in zip(names, outcome, strict=True) if holds)
        found.setdefault(frozenset(n for n, query in enumerate(ranked.queries) if query.wants(stream, satisfied)))
    return list(found)


def unshared(queries: Sequence[WindowQuery], condition: KeyBand, is_counted: bool = False) -> SharedPlan:
    """Fig. 2: a join for each query, its selections below it."""
    plan = SharedPlan(Meter(), {query.name: Receiver() for query in queries})
    meter = plan.meter
    for query in queries:
        targets = [Target(query, False, plan.receivers[query.name])]
        outlet = Counted(meter, targets, (), 1) if is_counted else Routed(meter, targets, (), 1)
        plan.joins.append(SlicedJoin(condition, (0.0, query.window_s), outlet, meter))

    def enter(row: Row) -> None:
        for query, join in zip(queries, plan.joins, strict=True):
            meter.filtering += query.predicate(row.stream) is not None
            if query.wants(row.stream, row.satisfies):
                _send(join, row)

    plan.enter = enter
    return plan
