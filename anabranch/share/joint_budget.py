"""One budget for all queries of a session: a plan for each company, so that all together take the least CPU within it.

Zhu, Raghavan and Rundensteiner (DKE 2009, section 8) leave several queries for future work, and see two ways: to give each a
part of the resources beforehand, or "to simultaneously build the plans for the different queries such that their collective
resource consumptions are within bounds". This is the second.

A *company* is what runs one join: queries with a join in common, or a single query. It has some plans to choose from
(`Option`), of which none is better than another in both CPU and memory. A plan takes something for itself (`own`: lookups,
joined rows, results), and it keeps states that others may keep too (`kept`: the logs of its streams, indexes and views, by
what they hold). What several companies keep is there once, as large as the one with the most needs it:

    total = Σ own + Σ over states, the largest cost of it among the chosen plans

and is charged to the first of them; a later one is charged with what it needs beyond that.

1. *Certain* states, those that some company keeps under each of its plans (logs, mostly), are taken out and paid once.
   Then plans are priced by what they cost beyond those.
2. The fronts are added, company after company: sums that others dominate are dropped (`_sums`). Where no two companies can
   share anything that is not certain, costs add up, and the best of these sums is the best of all combinations. Fronts of
   more than `MOST_POINTS` are thinned out; then that is not sure.
3. Else sums count what is shared several times. So those within the budget, or nearest to it, are priced again as they are,
   and *improved*, the best first: each company in turn takes the plan that is best beside those of the others, until none
   changes (`MOST_ROUNDS` at most). The best that this comes to is taken.

Nothing is better than the best of all combinations, which tests find by trying all (`tests/share/test_joint_budget.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from anabranch.cost.model import Cost

MOST_POINTS = 256
"""A front of sums has at most so many points: from least memory to least CPU, evenly."""

MOST_STARTS = 16
"""So many sums are priced again, where states are shared."""

MOST_TRIED = 500
"""When so many plans were tried, no other sum is improved: each is set beside those of all other companies."""

MOST_ROUNDS = 4
"""How often each company may take another plan."""

ROUNDING = 1.0 + 1e-9
"""Sums of costs in another order may differ by so much."""

NOTHING = Cost(0.0, 0.0)
UNBOUNDED = Cost(float("inf"), float("inf"))

Costs = npt.NDArray[np.float64]
"""CPU and memory, a row for each point."""


@dataclass(frozen=True)
class Option:
    """A plan of a company, by what it takes."""

    own: Cost
    kept: tuple[tuple[str, Cost], ...] = ()
    """States that others may keep too, each once, by what they hold."""

    @cached_property
    def alone(self) -> Cost:
        """What it takes where nobody shares anything with it."""
        return sum((cost for _, cost in self.kept), self.own)


@dataclass(frozen=True)
class Company:
    """Queries that run one join, and the plans that it may have. A pinned plan is the only one."""

    name: str
    options: tuple[Option, ...]
    is_whole: bool = True
    """Whether these are all plans that could be best."""

    def __post_init__(self) -> None:
        if not self.options:
            raise ValueError(f"{self.name} has no plan to choose")


@dataclass(frozen=True)
class Break:
    """A bound that no choice was found for."""

    resource: str
    """`CPU` or `memory`."""
    over: float
    """By how much: cores, or bytes."""
    company: str
    """With it the bound breaks: those before it, in their order, stay within."""
    largest: str
    """The company that is charged with the most."""


@dataclass(frozen=True)
class Joint:
    """A plan for each company."""

    chosen: tuple[int, ...]
    """For each company the place of its option."""
    charged: tuple[Cost, ...]
    """What each is charged with: the total, shared out."""
    total: Cost
    is_exact: bool
    """Whether no combination is better, for sure."""
    considered: int
    """So many combinations of plans were priced, of all companies or of some."""
    breaks: tuple[Break, ...] = ()

    @property
    def fits(self) -> bool:
        return not self.breaks


def choose_jointly(companies: Sequence[Company], budget: Cost = UNBOUNDED) -> Joint:
    """The plans of all companies that take the least CPU within a budget; without any within it, the least bad.

    >>> few, many = Option(Cost(0.1, 1), (("log of s", Cost(0, 50)),)), Option(Cost(0.5, 0), (("log of s", Cost(0, 50)),))
    >>> both = [Company("p", (few, many)), Company("q", (few, many))]
    >>> found = choose_jointly(both, Cost(1.0, 51.0))
    >>> found.chosen, found.total, found.is_exact
    ((1, 0), Cost(cpu=0.6, memory=51.0), True)
    >>> choose_jointly(both, Cost(1.0, 40.0)).breaks
    (Break(resource='memory', over=10.0, company='p', largest='p'),)
    """
    sunk = certain(companies)
    beyond = [[_beyond(option, sunk) for option in company.options] for company in companies]
    contested = {key for key, users in _users(beyond).items() if users > 1}
    beyond = [[_settled(option, contested) for option in options] for options in beyond]
    front, picks, considered, is_whole = _sums([np.array([_alone(o) for o in options]) for options in beyond])
    paid = sum(sunk.values(), NOTHING)
    front = front + np.array([paid.cpu, paid.memory])
    order = sorted(range(len(front)), key=lambda point: rank(Cost(*front[point]), budget))
    chosen = tuple(int(place) for place in picks[order[0]])
    if contested:
        starts = [tuple(int(place) for place in picks[point]) for point in order[:MOST_STARTS]]
        starts.sort(key=lambda start: rank(total_of(companies, start), budget))
        considered, tried, found = considered + len(starts), 0, []
        while starts and tried <= MOST_TRIED:
            improved, more = _improved(beyond, starts.pop(0), paid, budget)
            found.append(improved)
            tried += more
        considered += tried
        chosen = min(found, key=lambda each: rank(total_of(companies, each), budget))
    charged = charges(companies, chosen)
    total = total_of(companies, chosen)
    is_exact = is_whole and not contested and all(company.is_whole for company in companies)
    return Joint(chosen, charged, total, is_exact, considered, _breaks(companies, charged, total, budget))


# -- what is shared --------------------------------------------------------------------------------------------------


def total_of(companies: Sequence[Company], chosen: Sequence[int]) -> Cost:
    """What some plans take together: every state once."""
    return sum(charges(companies, chosen), NOTHING)


def charges(companies: Sequence[Company], chosen: Sequence[int]) -> tuple[Cost, ...]:
    """What each company is charged with: its own, and what it needs of states beyond those before it."""
    paid: dict[str, Cost] = {}
    found = []
    for company, place in zip(companies, chosen, strict=True):
        option = company.options[place]
        charge = option.own
        for key, cost in option.kept:
            before = paid.get(key, NOTHING)
            paid[key] = _larger(before, cost)
            charge += paid[key] - before
        found.append(charge)
    return tuple(found)


def certain(companies: Iterable[Company]) -> dict[str, Cost]:
    """The states that are kept whatever is chosen, as large as is certain."""
    found: dict[str, Cost] = {}
    for company in companies:
        first, *others = [dict(option.kept) for option in company.options]
        for key, cost in first.items():
            for other in others:
                cost = _smaller(cost, other.get(key, NOTHING))
            if cost != NOTHING:
                found[key] = _larger(found.get(key, NOTHING), cost)
    return found


def _beyond(option: Option, sunk: Mapping[str, Cost]) -> Option:
    """A plan by what it costs beyond the states that are there anyway."""
    left = [(key, _larger(cost, sunk[key]) - sunk[key] if key in sunk else cost) for key, cost in option.kept]
    return Option(option.own, tuple((key, cost) for key, cost in left if cost != NOTHING))


def _settled(option: Option, contested: Set[str]) -> Option:
    """A plan with the states that nobody else can keep among its own costs."""
    own = sum((cost for key, cost in option.kept if key not in contested), option.own)
    return Option(own, tuple((key, cost) for key, cost in option.kept if key in contested))


def _users(companies: Iterable[Sequence[Option]]) -> dict[str, int]:
    """How many companies may keep each state."""
    found: dict[str, int] = {}
    for options in companies:
        for key in {key for option in options for key, _ in option.kept}:
            found[key] = found.get(key, 0) + 1
    return found


def _alone(option: Option) -> tuple[float, float]:
    return option.alone.cpu, option.alone.memory


def _larger(one: Cost, other: Cost) -> Cost:
    return Cost(max(one.cpu, other.cpu), max(one.memory, other.memory))


def _smaller(one: Cost, other: Cost) -> Cost:
    return Cost(min(one.cpu, other.cpu), min(one.memory, other.memory))


# -- sums of fronts --------------------------------------------------------------------------------------------------


def _sums(companies: Sequence[Costs]) -> tuple[Costs, npt.NDArray[np.int64], int, bool]:
    """The sums of one point of each company that no other sum dominates, from least memory to least CPU; which points these
    are, how many sums were looked at, and whether none was left out that might be best."""
    front, picks = np.zeros((1, 2)), np.zeros((1, 0), np.int64)
    considered, is_whole = 0, True
    for costs in companies:
        every = (front[:, None, :] + costs[None, :, :]).reshape(-1, 2)
        considered += len(every)
        kept = _undominated(every)
        if len(kept) > MOST_POINTS:
            kept, is_whole = kept[np.linspace(0, len(kept) - 1, MOST_POINTS).round().astype(np.int64)], False
        before, own = np.divmod(kept, len(costs))
        front, picks = every[kept], np.concatenate([picks[before], own[:, None]], axis=1)
    return front, picks, considered, is_whole


def _undominated(costs: Costs) -> npt.NDArray[np.int64]:
    """The points that no other dominates, from least memory to least CPU; of equal ones the first."""
    order = np.lexsort((costs[:, 0], costs[:, 1]))
    cpu = costs[order, 0]
    least = np.minimum.accumulate(cpu)
    is_better = np.concatenate([[True], cpu[1:] < least[:-1]])
    found: npt.NDArray[np.int64] = order[is_better]
    return found


# -- improvement -----------------------------------------------------------------------------------------------------


def _improved(
    companies: Sequence[Sequence[Option]], start: Sequence[int], paid: Cost, budget: Cost
) -> tuple[tuple[int, ...], int]:
    """The plans when each company has taken the best one beside those of the others, in turns; and how many were tried."""
    chosen, tried = list(start), 0
    for _ in range(MOST_ROUNDS):
        before = list(chosen)
        for place, options in enumerate(companies):
            if len(options) < 2:
                continue
            others, largest = paid, dict[str, Cost]()
            for other, each in enumerate(companies):
                if other != place:
                    others += each[chosen[other]].own
                    for key, cost in each[chosen[other]].kept:
                        largest[key] = _larger(largest.get(key, NOTHING), cost)
            others += sum(largest.values(), NOTHING)
            costs = [others + _added(option, largest) for option in options]
            tried += len(options)
            best = min(range(len(options)), key=lambda each: rank(costs[each], budget))
            if rank(costs[best], budget) < rank(costs[chosen[place]], budget):
                chosen[place] = best
        if chosen == before:
            break
    return tuple(chosen), tried


def _added(option: Option, largest: Mapping[str, Cost]) -> Cost:
    """What a plan adds to what others take."""
    added = option.own
    for key, cost in option.kept:
        there = largest.get(key, NOTHING)
        added += _larger(there, cost) - there
    return added


def rank(cost: Cost, budget: Cost) -> tuple[float, float, float]:
    """Within the budget the least CPU is best, then the least memory; else what exceeds it least."""
    over = max(_share(cost.cpu, budget.cpu), _share(cost.memory, budget.memory))
    return (0.0 if over <= ROUNDING else over, cost.cpu, cost.memory)


def _share(used: float, available: float) -> float:
    if available == float("inf"):
        return 0.0
    return used / available if available > 0 else (float("inf") if used > 0 else 0.0)


# -- what breaks -----------------------------------------------------------------------------------------------------


def _breaks(companies: Sequence[Company], charged: Sequence[Cost], total: Cost, budget: Cost) -> tuple[Break, ...]:
    found = []
    for resource, used, bound, each in (
        ("CPU", total.cpu, budget.cpu, [cost.cpu for cost in charged]),
        ("memory", total.memory, budget.memory, [cost.memory for cost in charged]),
    ):
        if used > bound * ROUNDING:
            sums = np.cumsum(each)
            first = int(np.argmax(sums > bound)) if (sums > bound).any() else len(each) - 1
            found.append(Break(resource, used - bound, companies[first].name, companies[int(np.argmax(each))].name))
    return tuple(found)
