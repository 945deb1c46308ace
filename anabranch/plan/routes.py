"""What a row of each input does under a plan: its route from its leaf to the root.

A route is a list of *stages*, one per join on the way up; a stage is the list of probes that the join's probe order
asks for. After a stage below the root the combined rows are kept in the view of that join and go on as its delta; after
the last one they are results. States and the keys they are indexed by follow from the routes of all inputs.

Rows of stored tables are there before any other. So where a single stream meets tables, its rows find all there is to find
and nothing ever looks for them: its route is one stage, and those of tables end where they would meet it.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from anabranch.plan.expression import Expr
from anabranch.plan.join_graph import Aliases, JoinGraph, Key
from anabranch.plan.jtree import Leaf, Plan
from anabranch.plan.query import Derived
from anabranch.plan.ranges import Range
from anabranch.plan.selects import Selects


@dataclass(frozen=True)
class Probe:
    """Look up the state of `target` by `keys`, in the range `between`, or by both (else every row of it), then keep what
    `residuals` allow."""

    target: Aliases
    keys: tuple[Key, ...]
    residuals: tuple[Expr, ...]
    between: Range | None = None

    @property
    def index(self) -> Index:
        terms = tuple(k.target for k in self.keys)
        if self.between is not None:
            return Index(self.target, (*terms, self.between.term), is_ordered=True)
        return Index(self.target, terms)


@dataclass(frozen=True)
class Stage:
    """The work of one join for rows that come from one of its inputs."""

    joined: Aliases
    probes: tuple[Probe, ...]
    is_root: bool
    selects: tuple[Expr, ...] = ()
    """Predicates of single inputs that combined rows must pass here."""


@dataclass(frozen=True)
class Route:
    """The way of new rows of one input. Those of a table that only serves the rows of a stream do not reach the root."""

    alias: str
    stages: tuple[Stage, ...]
    reaches_root: bool = True


@dataclass(frozen=True)
class Index:
    """A state and the terms by which it is looked up: by their hash; or in the order of the last one, among rows with the
    same hash of those before it."""

    state: Aliases
    terms: tuple[Expr, ...]
    is_ordered: bool = False


def routes(plan: Plan, graph: JoinGraph, selects: Selects = ()) -> tuple[Route, ...]:
    """The route of each input, in the order of the query."""
    found = (Route(alias, tuple(_stages(plan, alias, graph, selects, is_root=True))) for alias in graph.query.aliases)
    stream = graph.query.passing_stream
    return tuple(found) if stream is None else tuple(_past_tables(route, stream) for route in found)


def _past_tables(route: Route, stream: str) -> Route:
    if route.alias == stream:
        probes = tuple(probe for stage in route.stages for probe in stage.probes)
        selects = tuple(predicate for stage in route.stages for predicate in stage.selects)
        return Route(stream, (Stage(route.stages[-1].joined, probes, is_root=True, selects=selects),))
    return Route(route.alias, tuple(stage for stage in route.stages if stream not in stage.joined), reaches_root=False)


def _stages(plan: Plan, alias: str, graph: JoinGraph, selects: Selects, is_root: bool) -> list[Stage]:
    if isinstance(plan, Leaf):
        return []
    place = next(i for i, child in enumerate(plan.inputs) if alias in child.aliases)
    stages = _stages(plan.inputs[place], alias, graph, selects, is_root=False)
    bound: Set[str] = plan.inputs[place].aliases
    probes = []
    for other in plan.orders[place]:
        target = plan.inputs[other].aliases
        keys = graph.keys_between(bound, target)
        between = graph.range_between(bound, target)
        if keys and between is not None and not _narrows(between, bound, target, graph):
            between = None
        probes.append(Probe(graph.ordered(target), keys, graph.residuals_at(bound, target), between))
        bound = bound | target
    parts = [child.aliases for child in plan.inputs]
    here = tuple(s.predicate for s in selects if s.stands_at(plan.aliases, parts))
    return [*stages, Stage(graph.ordered(bound), tuple(probes), is_root, here)]


def _narrows(between: Range, bound: Set[str], target: Set[str], graph: JoinGraph) -> bool:
    """Whether it pays to look up a range among rows of one key. For groups of a subquery it does: at every instant they meet
    all rows of their key in a window. Elsewhere a key has few partners, and its own index serves other lookups too."""
    sources = graph.query.input
    if not all(isinstance(sources(a).source, Derived) for a in bound) or any(limit.shifts for limit in between.limits):
        return False
    return not any(isinstance(sources(a).source, Derived) for a in target)


def indexes(all_routes: tuple[Route, ...]) -> tuple[Index, ...]:
    """Every index that some probe of the plan needs, each once."""
    found = {probe.index: None for route in all_routes for stage in route.stages for probe in stage.probes}
    return tuple(found)


def views(all_routes: tuple[Route, ...]) -> tuple[Aliases, ...]:
    """The inputs of each view the plan keeps, smaller ones first."""
    found = {stage.joined: None for route in all_routes for stage in route.stages if not stage.is_root}
    return tuple(sorted(found, key=lambda aliases: (len(aliases), aliases)))
