"""The queries of a pipeline as loads, and how the rows of their streams are cut into slices to begin with.

A stream is cut in one way for all who read it, whatever they join it with: its log is there once, and so are indexes that
several joins look up. So each join that queries run, together or alone, says how it wants and looks up its streams
(`anabranch.share.join_load`), and a chain is decided on for each stream (`anabranch.share.source_chain`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from anabranch.cost.facts import Facts
from anabranch.cost.model import CostModel, UnitCosts
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.query import Derived, Query, Stream
from anabranch.plan.shared_join import shared_join
from anabranch.share.canonical import Company, Running, companies
from anabranch.share.join_load import JoinLoad, join_load, merged
from anabranch.share.slice_cost import SourceLoad
from anabranch.share.source_chain import BYTE_CORES, SourceChain, chain_of

Passing = Mapping[tuple[str, str], float]
"""The share of the rows of a source that pass the filters of a query, by query and source."""


@dataclass(frozen=True)
class Known:
    """What is known of the rows of a pipeline, beyond facts: measured, if its queries have run."""

    passing: Passing = field(default_factory=dict)
    rates_per_s: Mapping[str, float] = field(default_factory=dict)
    """Rows of sources before any filter; else as facts have them."""
    wanted_per_s: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """Rows of sources by how long somebody wants them."""
    kept_rows: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    """Rows of sources in slices of each length."""
    batches: int = 0
    """So many were measured."""


ASSUMED = Known()


def pipeline_joins(
    running: Iterable[Running], facts_of: Callable[[str], Facts], units: UnitCosts, known: Known = ASSUMED
) -> list[JoinLoad]:
    """The joins of streams that queries run, those that several have in common once, whether they run it in one company or
    not: who wants which rows is the same. `facts_of` has what is known of the join of a query, or of one that it leads. A
    query over a part of the streams of a join that it runs with others is taken for a join of its own: what it wants of its
    streams is counted, and its lookups are counted twice."""
    queries = [_in_common(each) for each in running if is_of_streams(each.query)]
    together = [_whole(company) for company in companies(queries)]
    sharing = {each.query.name for company in together for each in company}
    alone = [[each] for each in queries if each.query.name not in sharing and each.execution.grouped_input is None]
    return [_load(company, facts_of(company[0].query.name), units, known) for company in (*together, *alone)]


def _in_common(each: Running) -> Running:
    """A query as if it ran its join with everybody who has it."""
    return each if not each.execution.company else replace(each, execution=replace(each.execution, company=""))


def _whole(company: Company) -> list[Running]:
    """The members of a company that join just what its lead does."""
    assert company.lead.shape is not None
    text = company.lead.shape.text
    return [each for each in company.members if each.shape is not None and each.shape.text == text]


def is_of_streams(query: Query) -> bool:
    """Whether a query joins streams and nothing else."""
    sources = [i.source for i in query.inputs]
    return len(sources) > 1 and all(isinstance(s, Stream) and not isinstance(s, Derived) for s in sources)


def _load(company: Sequence[Running], facts: Facts, units: UnitCosts, given: Known) -> JoinLoad:
    lead, orders = company[0], [each.order if len(company) > 1 else each.query.aliases for each in company]
    shared = shared_join([each.query for each in company], orders)
    graph, order = facts.graph(JoinGraph(shared.join)), lead.query.aliases
    rates = {shared.join.input(stream.name).source.name: stream.rate for stream in graph.streams}
    rates |= dict(given.rates_per_s)
    sources = {alias: shared.join.input(alias).source.name for alias in order}
    known = {
        (name, alias): given.passing[name, source]
        for name in shared.names
        for alias, source in sources.items()
        if (name, source) in given.passing
    }
    for alias, source in sources.items() if len(company) > 1 else ():
        if rates_by_us := given.wanted_per_s.get(source):
            # A lead counts what all members want; its own are those that are wanted for its window, mostly the longest.
            own = sum(rate for us, rate in rates_by_us.items() if us >= lead.query.input(alias).window.length_us)
            known[lead.query.name, alias] = min(1.0, own / rates[source]) if rates[source] else 1.0
    return join_load(shared, order, lead.execution.plan, CostModel(graph, units), rates, known)


def source_loads(joins: Sequence[JoinLoad], known: Known = ASSUMED) -> dict[str, SourceLoad]:
    """How each stream is wanted and looked up, by all joins."""
    several: dict[str, list[SourceLoad]] = {}
    for join in joins:
        for place, source in enumerate(join.sources):
            several.setdefault(source, []).append(join.source_load(place))
    return {source: merged(loads, known.wanted_per_s.get(source)) for source, loads in several.items()}


def first_chains(joins: Sequence[JoinLoad], units: UnitCosts, byte_cores: float = BYTE_CORES) -> list[SourceChain]:
    """How rows are cut before anything is measured: those of streams that are wanted for different times."""
    loads = [load for load in source_loads(joins).values() if len(load.windows_us) > 1]
    return [chain_of(load, units, byte_cores) for load in loads]
