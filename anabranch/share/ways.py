"""The ways to run queries that have a join in common, by one contract: from a join to a chain, its cost, and why.

| way | what it is | State-Slice, VLDB 2006 |
|---|---|---|
| `mem_opt_way` | one join, a slice for each window | section 5.1, 6.1 |
| `cpu_opt_way` | one join, the slices that take the least CPU | section 5.2, 6.2 |
| `pull_up_way` | one join, one slice for each stream, predicates told at the end | section 3.1 |
| `push_down_way` | a join for the queries of each set of filters, over the same logs | section 3.2 |
| `unshared_way` | a join, a state and a pipeline for each query | fig. 2 |

Costs are those of `anabranch.cost.model` for the join with the largest windows and the rows that some member wants. In its
place of one slice for each stream stand the slices of a chain (`anabranch.share.slice_cost`). On top come predicates that
are evaluated when rows come in, and results handed to members. What a finer chain spares later steps of a join of three or
more streams is not counted.

The first three differ in nothing but slices, which may change from batch to batch: the chain that runs is decided for each
source, whoever reads it (`anabranch.share.source_chain`). Whether queries start with one join or several is decided once
(`chosen_way`): another way than one join must be cheaper by a tenth, for what filters let through is assumed then, and what
is shared can be sliced anew while queries run. Who runs joins with whom stands in the record of what a query runs
(`anabranch.plan.migration.Execution.company`), or follows from pipelines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from anabranch.cost.model import Cost
from anabranch.share.chain import Chain
from anabranch.share.cpu_opt import cpu_opt
from anabranch.share.join_cost import HANDED_S, MEMBER_S
from anabranch.share.join_load import JoinLoad
from anabranch.share.joint_budget import UNBOUNDED
from anabranch.share.mem_opt import mem_opt
from anabranch.share.slice_cost import NOTHING, SET_S, SourceLoad, slice_cost
from anabranch.share.source_chain import BYTE_CORES, CPU_OPT, MEM_OPT, PULL_UP, chain_of, limits_of, priced, worth

PREDICATE_S = 4e-9
"""A predicate evaluated for a row (`python -m bench.slices`)."""

PIPELINE_S = 0.25
"""A batch of a pipeline of its own, however few rows it has: CPU of Spark's driver, its JVM and workers (`python -m
bench.many_queries --queries 1,6 --ways shared,separate --rate 200`: what each of five more pipelines adds)."""

READ_S = 1e-6
"""A row that another pipeline reads and exchanges once more: what `python -m bench.limit` says of a batch of 600,000 rows
through our reader, less joining and `PIPELINE_S`. DataFrames take more."""

CHEAPER = 0.9
"""Queries start with several joins only if these take less than this share of one: what filters let through is assumed."""

PUSH_DOWN, UNSHARED, TOGETHER = "push-down", "unshared", "together"

Limits = tuple[tuple[str, tuple[int, ...]], ...]
"""For each source, for how long rows of each slice are kept, shortest first."""

Cut = Callable[[SourceLoad], Chain]


@dataclass(frozen=True)
class SharingDecision:
    """A way to run queries that have a join in common."""

    way: str
    limits_us: Limits
    """Nothing, where queries have several joins."""
    cost: Cost
    """Cores, and bytes of state."""
    groups: tuple[tuple[str, ...], ...]
    """The queries that run each join."""
    reason: str
    alone: Cost | None = None
    """What the queries would take unshared, if the way was chosen beside that."""

    @property
    def joins(self) -> int:
        """So many are run."""
        return len(self.groups)


Way = Callable[[JoinLoad], SharingDecision]


def pull_up_way(load: JoinLoad) -> SharingDecision:
    """One slice for each stream."""
    reason = "every row is kept for the longest window"
    return _chained(load, PULL_UP, lambda s: Chain(s.windows_s, (len(s.windows_s),)), reason)


def mem_opt_way(load: JoinLoad) -> SharingDecision:
    """A slice for each window: no row is kept longer than it is wanted (theorem 4)."""
    return _chained(load, MEM_OPT, lambda s: mem_opt(s.windows_s).chain, "no row is kept longer than it is wanted")


def cpu_opt_way(load: JoinLoad) -> SharingDecision:
    """The slices of each stream that take the least CPU."""

    def cut(source: SourceLoad) -> Chain:
        edge = slice_cost(source, load.model.units)
        return cpu_opt(source.windows_s, lambda i, j: edge(i, j).cpu).chain

    return _chained(load, CPU_OPT, cut, "no other slices take less CPU")


def push_down_way(load: JoinLoad) -> SharingDecision:
    """A join for the members of each set of filters. Logs are there once, and rows come in once."""
    units, groups = load.model.units, _by_filters(load)
    decisions = [cpu_opt_way(group) for group in groups]
    again = (len(groups) - 1) * (sum(load.rates_per_s) * units.accept + units.batch / units.batch_s)
    logs = sum(_log_bytes(group) for group in groups) - _log_bytes(load)
    cost = sum((decision.cost for decision in decisions), NOTHING) - Cost(again, logs)
    reason = f"{len(groups)} joins, none of which has rows that fail a filter"
    return SharingDecision(PUSH_DOWN, (), cost, tuple(_names(group) for group in groups), reason)


def unshared_way(load: JoinLoad) -> SharingDecision:
    """Each member by itself."""
    units, alone = load.model.units, [load.of([member]) for member in load.members]
    again = (len(alone) - 1) * (PIPELINE_S / units.batch_s + sum(load.rates_per_s) * READ_S)
    cost = sum((cpu_opt_way(each).cost for each in alone), Cost(again, 0.0))
    reason = f"{len(alone)} pipelines, each with a state of its own"
    return SharingDecision(UNSHARED, (), cost, tuple(_names(each) for each in alone), reason)


WAYS: tuple[Way, ...] = (mem_opt_way, cpu_opt_way, pull_up_way, push_down_way, unshared_way)


def chosen_way(load: JoinLoad, byte_cores: float = BYTE_CORES, most: Cost = UNBOUNDED) -> SharingDecision:
    """The way that queries start with: one join with the slices that are cheapest, or several, if these are cheaper by far
    and keep to what may be taken."""
    sources = [load.source_load(place) for place in range(len(load.sources))]
    limits = [(source.source, chain_of(source, load.model.units, byte_cores).limits_us) for source in sources]
    together = as_cut(load, limits, TOGETHER, "one join, whose rows and lookups all queries share")
    several = [way(load) for way in (push_down_way, unshared_way)]
    fitting = [each for each in several if each.joins > 1 and each.cost.within(most.cpu, most.memory)]
    alone = several[1].cost
    best = min(fitting, key=lambda each: worth(each.cost, byte_cores), default=together)
    share = worth(best.cost, byte_cores) / worth(together.cost, byte_cores)
    if share >= CHEAPER:
        return replace(together, alone=alone)
    less = f"with what bytes are worth, {100 * (1 - share):.0f} % less than one join of all"
    return replace(best, reason=f"{best.reason}; {less}", alone=alone)


def as_cut(load: JoinLoad, limits_us: Sequence[tuple[str, tuple[int, ...]]], way: str, reason: str) -> SharingDecision:
    """The join with slices that are told."""
    told = dict(limits_us)

    def cut(source: SourceLoad) -> Chain:
        return Chain(source.windows_s, source.ends(told.get(source.source, ())))

    return _chained(load, way, cut, reason)


def _chained(load: JoinLoad, way: str, cut: Cut, reason: str) -> SharingDecision:
    units, limits, cost = load.model.units, dict[str, set[int]](), _beside(load)
    set_s = SET_S if len(load.members) > 1 else 0.0
    for place, whole in enumerate(load.whole):
        source = load.source_load(place)
        chain = cut(source)
        cost += priced(chain, slice_cost(source, units, set_s)) - slice_cost(whole, units, 0.0)(0, 1)
        limits.setdefault(source.source, set()).update(limits_of(chain, source))
    told = tuple((source, tuple(sorted(us))) for source, us in limits.items())
    return SharingDecision(way, told, cost, (_names(load),), reason)


def _names(load: JoinLoad) -> tuple[str, ...]:
    return tuple(member.name for member in load.members)


def _beside(load: JoinLoad) -> Cost:
    """What a shared join takes in every chain."""
    units, failing = load.model.units, sum(load.rates_per_s) - sum(s.rate for s in load.model.graph.streams)
    handed = 0.0
    if len(load.members) > 1:
        # The model has the results of the largest windows and of all rows; what nobody wants is no result.
        nobodys = max(0.0, load.model.graph.rate(load.model.graph.everything) - load.results_per_s)
        handed = load.results_per_s * HANDED_S + len(load.members) * MEMBER_S / units.batch_s - nobodys * units.result
    return load.cost + Cost(failing * units.accept + load.predicates_per_s * PREDICATE_S + handed, 0.0)


def _by_filters(load: JoinLoad) -> list[JoinLoad]:
    """The members with the same filters on every stream, as joins of their own."""
    alike: dict[tuple[frozenset[str], ...], list[int]] = {}
    for place, member in enumerate(load.members):
        alike.setdefault(tuple(want.filters for want in member.wants), []).append(place)
    return [load.of([load.members[place] for place in places]) for places in alike.values()]


def _log_bytes(load: JoinLoad) -> float:
    """What logs take that keep no row longer than somebody wants it."""
    units = replace(load.model.units, index_bytes=0.0)
    sources = [load.source_load(place) for place in range(len(load.sources))]
    return sum(priced(mem_opt(s.windows_s).chain, slice_cost(s, units)).memory for s in sources)
