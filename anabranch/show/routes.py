"""What rows of each input do under a plan, for people (`routes_text`) and for programs (`routes_json`)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from anabranch.plan.distribution import Distribution, grid_of
from anabranch.plan.expression import Expr
from anabranch.plan.grid import Grid
from anabranch.plan.join_graph import Aliases, JoinGraph
from anabranch.plan.jtree import Plan, left_deep, show
from anabranch.plan.lengths import length_text, window_text
from anabranch.plan.query import Grouping, Query, Stream
from anabranch.plan.routes import Probe, indexes, routes, views

Grids = Mapping[str, Grid]
IN_ONE_SLOT: Grids = MappingProxyType({})


def routes_json(plan: Plan, graph: JoinGraph) -> dict[str, Any]:
    """The plan as plain values: inputs, states with their keys, and the route of each input."""
    ways = () if graph.query.statement is not None else routes(plan, graph)
    states: dict[Aliases, list[list[str]]] = {(alias,): [] for alias in graph.query.aliases}
    states |= {view: [] for view in views(ways)}
    for index in indexes(ways):
        keys = list(map(str, index.terms))
        states[index.state].append([*keys[:-1], f"order of {keys[-1]}"] if index.is_ordered else keys)
    return {
        "query": graph.query.name,
        "plan": show(plan, graph),
        "inputs": [
            {
                "alias": i.alias,
                "source": i.source.name,
                "window": window_text(i),
                "filters": [str(f) for f in i.filters],
            }
            for i in graph.query.inputs
        ],
        "states": [{"inputs": list(state), "indexed_by": keys} for state, keys in states.items()],
        "routes": [
            {
                "alias": route.alias,
                "stages": [
                    {
                        "joined": list(stage.joined),
                        "result": "results" if stage.is_root else "view",
                        "probes": [_probe_json(p) for p in stage.probes],
                    }
                    for stage in route.stages
                ],
            }
            for route in ways
        ],
        "select": [{"name": name, "expression": text} for name, text in _selected(graph.query)],
        **_blocks_json(graph.query),
    }


def _blocks_json(query: Query) -> dict[str, Any]:
    """Groups and subqueries, if there are any."""
    found: dict[str, Any] = {}
    if query.statement is not None:
        found["database"] = {"name": query.statement.database, "sql": query.statement.sql}
    if (grouping := query.grouping) is not None:
        found["groups"] = {
            "slide_us": grouping.slide_us,
            "keys": [str(expr) for _, expr in query.select[: grouping.keys]],
            "aggregates": [
                {"function": a.function, "of": "*" if a.argument is None else str(query.select[a.argument][1])}
                for a in grouping.aggregates
            ],
            "having": None if grouping.having is None else _of_groups(grouping.having),
        }
    if query.subqueries:
        graphs = [JoinGraph(inner) for inner in query.subqueries]
        found["subqueries"] = [routes_json(left_deep(graph), graph) for graph in graphs]
    return found


def _probe_json(probe: Probe) -> dict[str, Any]:
    return {
        "state": list(probe.target),
        "keys": [f"{k.bound} = {k.target}" for k in probe.keys],
        "range": None if probe.between is None else str(probe.between),
        "residuals": [str(r) for r in probe.residuals],
    }


def block_grids(query: Query, spread: Distribution) -> Grids:
    """How the rows of each block of a query are spread, by the names of the blocks."""
    return {block.name: grid_of(query, spread.grid, place) for place, block in enumerate(query.blocks)}


def routes_text(plan: Plan, graph: JoinGraph, grids: Grids = IN_ONE_SLOT) -> str:
    """The route of each input, what groups are made, and what is selected; for subqueries, too. `grids` say how the rows of
    blocks are spread."""
    lines = ["routes"]
    if (asked := graph.query.statement) is not None:
        lines = [f"database {asked.database}, over the rows that are valid", *(f"  {x}" for x in asked.sql.splitlines())]
    for route in () if asked is not None else routes(plan, graph):
        lines.append(f"  new rows of {route.alias}")
        for stage in route.stages:
            for probe in stage.probes:
                name = " ".join(probe.target)
                target = name if len(probe.target) == 1 else f"view ({name})"
                lines.append(f"    look up {target} {_lookup(probe)}{_where(probe.residuals)}")
            lines.append("    results" if stage.is_root else f"    keep in view ({' '.join(stage.joined)})")
        if not route.reaches_root:
            lines.append("    stay, for the rows of the stream")
        elif not route.stages:
            lines.append("    results")
    if graph.query.grouping is not None:
        lines += ["", *_groups(graph.query, graph.query.grouping, grids.get(graph.query.name, Grid()))]
    lines += ["", "select"]
    lines += [f"  {name} = {expr}" for name, expr in _selected(graph.query)]
    for inner in graph.query.subqueries:
        below = JoinGraph(inner)
        own = f"subquery {inner.name}\n{routes_text(left_deep(below), below, grids)}"
        lines += ["", *(f"  {line}".rstrip() for line in own.splitlines())]
    return "\n".join(lines)


def _groups(query: Query, grouping: Grouping, grid: Grid) -> list[str]:
    if grouping.statement is not None:
        wide = (dimension for dimension, share in zip(grid.dimensions, grid.shares, strict=True) if share > 1)
        spread = [f"  spread by {dimension}" for dimension in wide] or ["  in one slot"]
        return [f"asked every {length_text(grouping.slide_us)}", *spread]
    lines = [f"groups every {length_text(grouping.slide_us)}"]
    lines += [f"  {name} = {expr}" for name, expr in query.select[: grouping.keys]]
    for place, aggregate in enumerate(grouping.aggregates):
        operand = "*" if aggregate.argument is None else str(query.select[aggregate.argument][1])
        lines.append(f"  agg{place} = {aggregate.function}({operand})")
    return [*lines, *([f"  having {_of_groups(grouping.having)}"] if grouping.having is not None else [])]


def _selected(query: Query) -> list[tuple[str, str]]:
    if query.grouping is None:
        return [(name, str(expr)) for name, expr in query.select]
    return [(name, _of_groups(expr)) for name, expr in query.grouping.select]


def _of_groups(expr: Expr) -> str:
    """An expression over groups, whose columns have no alias."""
    return str(expr).replace(".key", "key").replace(".agg", "agg")


def _lookup(probe: Probe) -> str:
    ways = ["by " + " and ".join(f"{k.bound} = {k.target}" for k in probe.keys)] if probe.keys else []
    ways += [f"in the range {probe.between}"] if probe.between is not None else []
    return " ".join(ways) or "(every row)"


def _where(predicates: tuple[Expr, ...]) -> str:
    return f" where {' and '.join(map(str, predicates))}" if predicates else ""


def times_text(query: Query) -> str:
    """When rows of each stream are late or early, and whether the watermark waits for it."""
    lines = ["times"]
    for s in query.base_sources:
        if isinstance(s, Stream):
            late = f"up to {length_text(s.lateness_us)} late" if s.lateness_us else "in order"
            early = f"at most {length_text(s.ahead_us)}" if s.ahead_us is not None else "any time"
            idle = f"idle after {length_text(s.idle_us)}" if s.idle_us is not None else "holds the watermark back if silent"
            lines.append(f"  {s.name}: rows come {late}, {early} ahead of the clock; {idle}")
    return "\n".join(lines)


def times_json(query: Query) -> list[dict[str, Any]]:
    """The same as plain values."""
    return [
        {"stream": s.name, "lateness_us": s.lateness_us, "ahead_us": s.ahead_us, "idle_us": s.idle_us}
        for s in query.base_sources
        if isinstance(s, Stream)
    ]
