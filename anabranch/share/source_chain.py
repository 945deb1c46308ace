"""How the rows of a source are cut into slices: the cheapest chain on this engine (State-Slice, VLDB 2006, section 5).

The paper has two chains, one for memory and one for CPU, and leaves it to what a system is short of which of them is built
(section 5). Here a byte has a price in CPU, and the chain is the cheapest of all by both:

- at a price of nothing it is *CPU-Opt* (section 5.2, 6.2);
- at a price that nothing else matters beside, it is *Mem-Opt* (section 5.1, 6.1);
- the usual price is that of the budget, if it bounds both: a tenth of the memory is worth a tenth of the CPU; else that of
  machines as they are sold (`BYTE_CORES`).

Where the chain that is cheapest does not fit into the memory that is left, and Mem-Opt keeps less, it is Mem-Opt.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from anabranch.cost.model import Cost, UnitCosts
from anabranch.plan.lengths import length_text
from anabranch.plan.query import FOREVER_US, Query
from anabranch.share.chain import Chain
from anabranch.share.cpu_opt import cpu_opt
from anabranch.share.mem_opt import mem_opt
from anabranch.share.slice_cost import NOTHING, SliceCost, SourceLoad, slice_cost

BYTE_CORES = 0.125 / 2**30
"""What a byte of state is worth in cores where no budget says it: machines are sold with some 8 GiB for a core."""

MOST_WINDOWS = 64
"""Windows beyond so many are not told apart: chains are searched in time that grows with their square."""

MEM_OPT, CPU_OPT, PULL_UP, BETWEEN = "Mem-Opt", "CPU-Opt", "pull-up", "between Mem-Opt and CPU-Opt"


@dataclass(frozen=True)
class KeptSlice:
    """A slice, and what it holds."""

    limit_us: int
    """For how long its rows are kept."""
    rows_per_s: float
    rows: float
    bytes: float
    """Of its rows, and of their entries in indexes."""


@dataclass(frozen=True)
class SourceChain:
    """How the rows of a source are cut, what that costs, and why."""

    source: str
    slices: tuple[KeptSlice, ...]
    """Shortest first."""
    cost: Cost
    """Of the slices alone: keeping them, and looking them up."""
    way: str
    """`MEM_OPT`, `CPU_OPT`, `PULL_UP` (one slice) or `BETWEEN`."""
    reason: str
    one: Cost
    """What one slice would cost."""
    finest: Cost
    """What a slice for each window would."""

    @property
    def limits_us(self) -> tuple[int, ...]:
        """For how long rows of each slice are kept."""
        return tuple(each.limit_us for each in self.slices)

    def worth(self, byte_cores: float) -> float:
        """What it takes, in cores, with what its bytes are worth."""
        return worth(self.cost, byte_cores)


def worth(cost: Cost, byte_cores: float) -> float:
    """What a cost is in cores, at a price of bytes."""
    return cost.cpu + cost.memory * byte_cores


def chain_of(
    load: SourceLoad, units: UnitCosts, byte_cores: float = BYTE_CORES, most_bytes: float = float("inf")
) -> SourceChain:
    """The cheapest chain for a source, of those that keep to `most_bytes` if one does."""
    load = coarse(load)
    edge, w = slice_cost(load, units), load.windows_s
    finest, one = mem_opt(w).chain, Chain(w, (len(w),))
    fastest = cpu_opt(w, lambda i, j: edge(i, j).cpu).chain
    found = cpu_opt(w, lambda i, j: worth(edge(i, j), byte_cores)).chain
    costs = {chain: priced(chain, edge) for chain in (found, finest, fastest, one)}
    is_tight = costs[found].memory > most_bytes and costs[finest].memory < costs[found].memory
    chosen = finest if is_tight else found
    return SourceChain(
        load.source, slices_of(limits_of(chosen, load), load, units), costs[chosen],
        way_of(chosen, finest, fastest, one, load),
        _reason(chosen, costs[chosen], costs[finest], costs[one], load, is_tight), costs[one], costs[finest],
    )  # fmt: skip


def told_chain(load: SourceLoad, units: UnitCosts, limits_us: tuple[int, ...]) -> SourceChain:
    """A source that is cut as told."""
    edge, w = slice_cost(load, units), load.windows_s
    finest, one, chosen = mem_opt(w).chain, Chain(w, (len(w),)), Chain(w, load.ends(limits_us))
    fastest, cost = cpu_opt(w, lambda i, j: edge(i, j).cpu).chain, priced(chosen, edge)
    return SourceChain(
        load.source, slices_of(limits_us, load, units), cost, way_of(chosen, finest, fastest, one, load),
        _reason(chosen, cost, priced(finest, edge), priced(one, edge), load, False), priced(one, edge), priced(finest, edge),
    )  # fmt: skip


def priced(chain: Chain, edge: SliceCost) -> Cost:
    """What the slices of a chain cost together."""
    return sum((edge(i, j) for i, j in chain.edges), NOTHING)


def slices_of(limits_us: tuple[int, ...], load: SourceLoad, units: UnitCosts) -> tuple[KeptSlice, ...]:
    """What each slice holds, by for how long it is kept: the rows that are wanted for longer than the slice before is kept,
    and no longer than it is itself."""
    edge, begin, found = slice_cost(load, units), 0, list[KeptSlice]()
    for limit_us in limits_us:
        end = bisect_right(load.windows_us, limit_us)
        rate = sum(load.wanted_per_s[begin:end])
        kept_s = load.windows_s[end - 1] + units.slack_s
        size = edge(begin, end).memory if rate else 0.0
        found.append(KeptSlice(limit_us, rate, rate * kept_s, size))
        begin = end
    return tuple(found)


def readers_of(source: str, limits_us: Sequence[int], queries: Iterable[Query]) -> list[tuple[str, ...]]:
    """For each slice of a source the queries that read it: those that join rows of it within a window that is no longer."""
    shortest: dict[str, int] = {}
    for query in queries:
        inputs = [i for block in query.blocks if len(block.inputs) > 1 for i in block.inputs]
        if own := [i.window.length_us for i in inputs if i.source.name == source]:
            shortest[query.name] = min(own)
    return [tuple(name for name, us in shortest.items() if us <= limit_us) for limit_us in limits_us]


def limits_of(chain: Chain, load: SourceLoad) -> tuple[int, ...]:
    """For how long rows of each slice are kept; slices that no row goes to are left out."""
    ends = [j for i, j in chain.edges if any(load.wanted_per_s[i:j]) or j == len(load.windows_us)]
    return tuple(load.windows_us[end - 1] for end in ends)


def way_of(chosen: Chain, finest: Chain, fastest: Chain, one: Chain, load: SourceLoad) -> str:
    """What the paper calls a chain; one slice is pull-up, whatever else it is."""
    limits = limits_of(chosen, load)
    for chain, name in ((one, PULL_UP), (fastest, CPU_OPT), (finest, MEM_OPT)):
        if limits == limits_of(chain, load):
            return name
    return BETWEEN


def coarse(load: SourceLoad) -> SourceLoad:
    """A load with at most `MOST_WINDOWS` windows: of neighbours the longer one stands for both, those first that differ
    least."""
    windows, wanted, probes = list(load.windows_us), list(load.wanted_per_s), list(load.probes_per_s)
    while len(windows) > MOST_WINDOWS:
        place = min(range(len(windows) - 1), key=lambda p: windows[p + 1] / windows[p])
        wanted[place + 1] += wanted[place]
        probes[place + 1] += probes[place]
        del windows[place], wanted[place], probes[place]
    if len(windows) == len(load.windows_us):
        return load
    rates = tuple(wanted), tuple(probes)
    return SourceLoad(load.source, tuple(windows), *rates, load.match, load.row_bytes, load.indexes)


def _reason(chosen: Chain, cost: Cost, finest: Cost, one: Cost, load: SourceLoad, is_tight: bool) -> str:
    lengths = [_length(us) for us in limits_of(chosen, load)]
    if not load.is_choosy:
        return f"all rows are wanted for {_length(load.windows_us[-1])}: there is one slice, however it is cut"
    if is_tight:
        return "memory is short: each window has a slice, and no row is kept longer than it is wanted"
    if len(lengths) == 1:
        more = (one.memory / finest.memory - 1) * 100 if finest.memory else 0.0
        return (
            f"one slice: looking into more of them would cost more than they spare, {more:.0f} % of the bytes. Whose a "
            "result is costs the same in every chain here"
        )
    saved = (1 - cost.memory / one.memory) * 100 if one.memory else 0.0
    return f"{len(lengths)} slices keep {saved:.0f} % fewer bytes than one, and {_cpu(cost, one)}"


def _cpu(cost: Cost, one: Cost) -> str:
    change = (cost.cpu / one.cpu - 1) * 100 if one.cpu else 0.0
    return f"take {abs(change):.0f} % {'more' if change > 0 else 'less'} CPU to look up"


def _length(window_us: int) -> str:
    return "ever" if window_us == FOREVER_US else length_text(window_us)
