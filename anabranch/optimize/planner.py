"""The plan of a query within a budget: the exact front where it can be had, a search with a bound beyond that."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.cost.facts import Facts
from anabranch.cost.model import Cost, CostModel, UnitCosts
from anabranch.errors import NoQualifiedPlanError, PlanError
from anabranch.optimize.dominating import Choice, choose, qualified, strain
from anabranch.optimize.exact import exact_front
from anabranch.optimize.local_search import search
from anabranch.optimize.trees import Pricer, Views
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Plan

EXACT_STREAMS = 10
"""Up to so many streams every plan is considered."""


MOST_STREAMS = 60
"""Sets of streams are words of 64 bits."""


@dataclass(frozen=True)
class Bounds:
    """What a query may use: seconds of CPU per second (cores), and bytes."""

    cpu: float = float("inf")
    memory: float = float("inf")


@dataclass(frozen=True)
class Decision:
    """A plan, and why it was chosen."""

    plan: Plan
    cost: Cost
    bounds: Bounds
    model: CostModel
    front: tuple[tuple[Plan, Cost], ...]
    """The plans that none dominates, from least memory to least CPU, as far as they were found."""
    considered: int
    """So many joins were priced."""
    is_exact: bool
    """Whether every plan was considered."""
    least: Cost
    """No plan needs less, of either."""
    reason: str

    @property
    def is_qualified(self) -> bool:
        return self.cost.within(self.bounds.cpu, self.bounds.memory)


def decide(
    query: JoinGraph,
    facts: Facts,
    units: UnitCosts,
    bounds: Bounds | None = None,
    choice: Choice = Choice.LEAST_CPU,
    strict: bool = False,
) -> Decision:
    """The plan of a query. Without a qualified one, the least bad, or an error if `strict`."""
    bounds = bounds or Bounds()
    graph = facts.graph(query)
    if len(graph) > MOST_STREAMS:
        raise PlanError(f"query {query.query.name} has {len(graph)} inputs; above {MOST_STREAMS} give it a plan")
    model = CostModel(graph, units)
    # Who writes a query that no predicate connects wants the product; other cartesian products are not worth the search.
    pricer = Pricer(model, cartesian=not graph.is_connected(graph.everything))
    is_exact = len(graph) <= EXACT_STREAMS
    front = exact_front(pricer) if is_exact else _searched(pricer, bounds)
    least = Cost(front[-1][1].cpu, front[0][1].memory) if is_exact else lower_bound(model)
    within = qualified(front, bounds.cpu, bounds.memory)
    if within:
        views, cost = choose(within, choice, bounds.cpu, bounds.memory)
        reason = _why(choice, len(within), len(front))
    else:
        views, cost = min(front, key=lambda p: strain(p[1], bounds.cpu, bounds.memory))
        reason = advice(cost, least, bounds, is_exact)
        if strict:
            raise NoQualifiedPlanError(f"query {query.query.name}: {reason}")
    plans = tuple((pricer.plan(v), c) for v, c in front)
    return Decision(pricer.plan(views), cost, bounds, model, plans, pricer.considered, is_exact, least, reason)


def _searched(pricer: Pricer, bounds: Bounds) -> list[tuple[Views, Cost]]:
    """For many streams: a tighter and a tighter budget for CPU, as long as a plan within it is found."""
    found = search(pricer, bounds.cpu, bounds.memory)
    for _ in range(8):
        best = qualified(found, bounds.cpu, bounds.memory)
        if not best:
            break
        tighter = min(c.cpu for _, c in best) * 0.9
        more = search(pricer, tighter, bounds.memory)
        if not qualified(more, tighter, bounds.memory):
            break
        found = more
    return found


def lower_bound(model: CostModel) -> Cost:
    """Less than this no plan needs: every row is kept once and looked up once, and every result is joined once."""
    graph, cpu, memory = model.graph, model.fixed().cpu, 0.0
    cheapest = min((model.lookup(1 << i) for i in range(len(graph))), default=0.0)
    for i in range(len(graph) if len(graph) > 1 else 0):
        alone, others = 1 << i, graph.everything & ~(1 << i)
        keys = model.keys(alone, others)
        cpu += model.maintain(alone, others) / keys + graph.rate(alone) * cheapest
        memory += graph.rows(alone) * graph.streams[i].row_bytes
    if len(graph) > 1:
        cpu += graph.rate(graph.everything) * model.units.join
    return Cost(cpu, memory)


def _why(choice: Choice, within: int, front: int) -> str:
    what = {
        Choice.LEAST_CPU: "needs the least CPU",
        Choice.LEAST_MEMORY: "needs the least memory",
        Choice.BALANCED: "leaves the most of the scarcer resource",
    }[choice]
    return f"of {within} plans within the budget that no other dominates ({front} without it) it {what}"


def advice(cost: Cost, least: Cost, bounds: Bounds, is_exact: bool) -> str:
    """Which bound breaks, by how much, and what would help."""
    broken = []
    if cost.cpu > bounds.cpu:
        broken.append(f"CPU ({cost.cpu:.3g} cores of {bounds.cpu:.3g})")
    if cost.memory > bounds.memory:
        broken.append(f"memory ({show_bytes(cost.memory)} of {show_bytes(bounds.memory)})")
    help_ = []
    if least.cpu > bounds.cpu:
        help_.append(f"no plan needs less than {least.cpu:.3g} cores")
    if least.memory > bounds.memory:
        help_.append(f"no plan needs less than {show_bytes(least.memory)}")
    if not help_:
        help_.append("each bound alone could be kept, but not both" if is_exact else "the search found none")
    return (
        f"no plan within the budget: the least bad exceeds {' and '.join(broken)}; "
        f"{', '.join(help_)}: shorten windows, filter earlier, or allow more"
    )


def show_bytes(size: float) -> str:
    """
    >>> show_bytes(1536 * 1024)
    '1.5 MiB'
    """
    if size == float("inf"):
        return "any"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.3g} {unit}"
        size /= 1024
    raise AssertionError


def parse_bytes(text: int | float | str) -> float:
    """
    >>> parse_bytes("2 GiB") == 2 * 1024**3, parse_bytes(10)
    (True, 10.0)
    """
    if not isinstance(text, str):
        return float(text)
    units = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
    number = text.strip().rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    unit = text.strip()[len(number) :].lower() or "b"
    try:
        return float(number) * units[unit]
    except (ValueError, KeyError):
        raise PlanError(f"{text!r} is not a size: write it like 500 MB or 2 GiB") from None
