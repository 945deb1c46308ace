"""What a plan of a company costs, apart: what is its own, and what states it keeps that others may keep too.

The sums are those of `anabranch.cost.model`, cut in another way. Of an input of a join

    log of a source     rows that are taken in (`accept`), and the bytes of their columns
    view                the bytes of combined rows, without indexes
    index               keeping it up to date, and its bytes

are states with a key (`anabranch.plan.identity`, as `anabranch.engine.reader` asks for them). Lookups, joined rows and
results are the company's own, also where a view that it fills is another's too: each looks up the partners, and one stores
them. A log keeps every column that anybody in the pipeline reads, for as long as the longest window; a company is charged
with what it adds to the log of those before it (`log_bytes`).

A *shared* join is priced as the join that it is: the largest window of each stream, rows that any member wants. Then each
member takes its results from it: `HANDED_S` for each of them, and `MEMBER_S` for each batch, however few it has. Rows of the
join are stored once for all members, and its results are fetched once. Its views hold what its members want, so that they
are counted as its own. Whose a pair is must be told, which costs `SET_S` for each pair that is found. A member over some of
the streams, or with further predicates, takes combinations of its streams, and looks at each for what it asks more.

Keys are those of rows that are spread over slots in one way. Where two companies spread a stream in different ways, each has
indexes of its own in truth, and they are counted once here: how queries are spread is not known when they are planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from anabranch.cost.facts import columns_bytes, window_s
from anabranch.cost.model import Cost, CostModel, UnitCosts
from anabranch.cost.streams import StreamGraph
from anabranch.engine.reader import BoundIndex, Reader
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Plan, joins_of
from anabranch.plan.migration import Execution
from anabranch.plan.query import Stream
from anabranch.plan.shared_join import SharedJoin
from anabranch.share.joint_budget import NOTHING, Option
from anabranch.share.slice_cost import SET_S

HANDED_S = 2.7e-9
"""A result handed to a member of a shared join: roughly, by `python -m bench.handing_out`, and not calibrated."""

MEMBER_S = 9e-6
"""A batch handed to a member of a shared join, however few results it has for it: by the same."""

RESIDUAL_S = 2e-9
"""A predicate over several inputs that a member has for itself, evaluated for a combination: roughly, by the same."""

Logs = Mapping[str, float]
"""The bytes of the log of each source."""


@dataclass(frozen=True)
class Priced:
    """A join that a company runs: of a single query in one of its forms, or shared."""

    name: str
    graph: JoinGraph
    model: CostModel
    extra: Cost = NOTHING
    """What it takes under each of its plans beyond what the model says: results handed to members, rows folded to groups."""
    has_own_views: bool = False


def log_bytes(companies: Iterable[Iterable[Priced]]) -> list[Logs]:
    """For each company, by the joins that it may run, the logs that it and those before it need: with all columns that
    they read, as long as the longest window. A single input is not kept."""
    rows: dict[str, float] = {}
    columns: dict[str, set[str]] = {}
    found: list[Logs] = []
    for joins in companies:
        logs = dict[str, float]()
        for priced in joins:
            query, model = priced.graph.query, priced.model
            for place, i in enumerate(query.inputs):
                name = i.source.name
                if len(query.inputs) > 1:
                    rows[name] = max(rows.get(name, 0.0), model.stored_rows(1 << place))
                    columns.setdefault(name, set()).update(query.needed_columns(i.alias))
                logs[name] = rows.get(name, 0.0) * columns_bytes(i.source, columns.get(name, ()))
        found.append(logs)
    return found


def option_of(priced: Priced, plan: Plan, logs: Logs, pipeline: str = "") -> Option:
    """A plan by what it takes. States are shared by companies of one pipeline."""
    model, graph, kept = priced.model, priced.graph, dict[str, Cost]()
    streams, u, own = model.graph.streams, model.units, priced.extra

    def keep(key: str, cost: Cost) -> None:
        """A state that stands in a plan twice is there once."""
        text = f"{pipeline}: {key}"
        before = kept.get(text, NOTHING)
        kept[text] = Cost(max(before.cpu, cost.cpu), max(before.memory, cost.memory))

    own += model.fixed()
    for facts in streams:
        own -= Cost(facts.rate * u.accept, 0.0)
        keep(_log(graph, facts.name), Cost(facts.rate * u.accept, 0.0))
    joins = list(joins_of(plan))
    if not joins:
        return Option(own, tuple(kept.items()))
    accepted_by = (i.source.name for i in graph.query.inputs if isinstance(i.source, Stream))
    reader = Reader(priced.name, priced.name, graph, Execution(plan), accepted_by)
    whose = f" of {priced.name}" if priced.has_own_views else ""
    for node in joins:
        inputs = [model.graph.mask(child.aliases) for child in node.inputs]
        everything = model.graph.mask(node.aliases)
        own += Cost(everything.bit_count() * (len(inputs) - 1) * u.step / u.batch_s, 0.0)
        for child, mask, order in zip(node.inputs, inputs, node.orders, strict=True):
            others = everything & ~mask
            own += Cost(model.probe(mask, [inputs[other] for other in order]), 0.0)
            rows, keys, aliases = model.stored_rows(mask), model.keys(mask, others), graph.ordered(child.aliases)
            if len(aliases) == 1:
                name = graph.query.input(aliases[0]).source.name
                accept = streams[mask.bit_length() - 1].rate * u.accept
                keep(_log(graph, aliases[0]), Cost(accept, logs[name]))
                index_bytes = rows * keys * u.index_bytes
            else:
                index_bytes = rows * keys * u.view_index_bytes
                rest = model.state_bytes(mask, others) - index_bytes
                keep(f"{reader.views[aliases]}{whose}", Cost(0.0, rest))
            indexes = [bound for index, bound in reader.indexes.items() if index.state == aliases]
            each = Cost(model.maintain(mask, others), index_bytes)
            own += NOTHING if indexes else each
            for bound in indexes:
                keep(_index(bound, whose), Cost(each.cpu / len(indexes), each.memory / len(indexes)))
    return Option(own, tuple(kept.items()))


def _log(graph: JoinGraph, alias: str) -> str:
    return f"log of {graph.query.input(alias).source.name}"


def _index(bound: BoundIndex, whose: str) -> str:
    return f"{bound.key}{whose if len(bound.aliases) > 1 else ''}"


def shared_units(units: UnitCosts) -> UnitCosts:
    """What operations cost in a join that several queries run."""
    return replace(units, join=units.join + SET_S)


def handing_out(shared: SharedJoin, model: CostModel) -> Cost:
    """What it costs to give the members of a shared join their results."""
    rates = [member_rate(shared, place, model.graph) for place in range(len(shared.members))]
    looked_at = sum(rate * len(own) for rate, own in zip(rates, shared.own_residuals, strict=True))
    members_s = len(shared.members) * MEMBER_S / model.units.batch_s
    return Cost(sum(rates) * HANDED_S + looked_at * RESIDUAL_S + members_s + _fetched(shared, model, rates), 0.0)


def _fetched(shared: SharedJoin, model: CostModel, rates: Sequence[float]) -> float:
    """CPU to make what members select, beyond what the model says: it has all that is found for the largest windows. Members
    over all streams get no more than these together, and members over some have results of their own, made once for all over
    the same streams."""
    parts, whole = dict[frozenset[str], float](), 0.0
    for member, rate in zip(shared.members, rates, strict=True):
        if len(member.inputs) == len(shared.join.inputs):
            whole += rate
        else:
            aliases = frozenset(member.aliases)
            parts[aliases] = max(rate, parts.get(aliases, 0.0))
    nobodys = max(0.0, model.graph.rate(model.graph.everything) - whole)
    return (sum(parts.values()) - nobodys) * model.units.result


def member_rate(shared: SharedJoin, place: int, graph: StreamGraph) -> float:
    """The combinations per second that are handed to a member: of its streams, with its windows, joined by what the join is
    joined by. Of filters nobody knows how many rows pass."""
    member, streams = shared.members[place], list(graph.streams)
    for at, facts in enumerate(streams):
        if facts.name in member.aliases:
            streams[at] = replace(facts, rows=facts.rate * window_s(member.input(facts.name)))
    own = StreamGraph(streams, graph.classes)
    return own.rate(own.mask(member.aliases))
