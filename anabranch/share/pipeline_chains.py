"""The queries of a pipeline as loads, and how the rows of their streams are cut into slices to begin with.

A stream is cut in one way for all who read it, whatever they join it with: its log is there once, and so are indexes that
several joins look up. So each join that queries run, together or alone, says how it wants and looks up its streams
(`anabranch.share.join_load`), and a chain is decided on for each stream (`anabranch.share.source_chain`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from anabranch.cost.facts import Facts
from anabranch.cost.model import CostModel, UnitCosts
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.query import Derived, Query, Stream
from anabranch.plan.shared_join import shared_join
from anabranch.share.canonical import Running, companies
from anabranch.share.join_load import JoinLoad, join_load, merged
from anabranch.share.slice_cost import SourceLoad
from anabranch.share.source_chain import BYTE_CORES, SourceChain, chain_of

Passing = Mapping[tuple[str, str], float]
"""The share of the rows of a source that pass the filters of a query, by query and source."""


def pipeline_joins(
    running: Iterable[Running], facts: Facts, units: UnitCosts, passing: Passing | None = None
) -> list[JoinLoad]:
    """The joins of streams that queries run, those that several run together once."""
    queries = [each for each in running if is_of_streams(each.query)]
    together = companies(queries)
    sharing = {each.query.name for company in together for each in company}
    alone = [[each] for each in queries if each.query.name not in sharing and each.execution.grouped_input is None]
    return [_load(company, facts, units, passing or {}) for company in (*together, *alone)]


def is_of_streams(query: Query) -> bool:
    """Whether a query joins streams and nothing else."""
    sources = [i.source for i in query.inputs]
    return len(sources) > 1 and all(isinstance(s, Stream) and not isinstance(s, Derived) for s in sources)


def _load(company: Sequence[Running], facts: Facts, units: UnitCosts, passing: Passing) -> JoinLoad:
    lead, orders = company[0], [each.order if len(company) > 1 else each.query.aliases for each in company]
    shared = shared_join([each.query for each in company], orders)
    graph, order = facts.graph(JoinGraph(shared.join)), lead.query.aliases
    rates = {shared.join.input(stream.name).source.name: stream.rate for stream in graph.streams}
    sources = {alias: shared.join.input(alias).source.name for alias in order}
    known = {
        (name, alias): passing[name, source]
        for name in shared.names
        for alias, source in sources.items()
        if (name, source) in passing
    }
    return join_load(shared, order, lead.execution.plan, CostModel(graph, units), rates, known)


def source_loads(
    joins: Sequence[JoinLoad], wanted_per_s: Mapping[str, Mapping[int, float]] | None = None
) -> dict[str, SourceLoad]:
    """How each stream is wanted and looked up, by all joins. `wanted_per_s` is what was measured of that, by source."""
    several: dict[str, list[SourceLoad]] = {}
    for join in joins:
        for place, source in enumerate(join.sources):
            several.setdefault(source, []).append(join.source_load(place))
    return {source: merged(loads, (wanted_per_s or {}).get(source)) for source, loads in several.items()}


def first_chains(joins: Sequence[JoinLoad], units: UnitCosts, byte_cores: float = BYTE_CORES) -> list[SourceChain]:
    """How rows are cut before anything is measured: those of streams that are wanted for different times."""
    loads = [load for load in source_loads(joins).values() if len(load.windows_us) > 1]
    return [chain_of(load, units, byte_cores) for load in loads]
