"""The paper's cost model for any number of queries: stored rows, and comparisons of a nested-loop join per second.

Sections 3 to 6 give it for two queries, and the terms that differ between chains for N. Here are all terms for N
queries with selections on either stream, by the same units (`anabranch.share.formulas`): a row is compared with each
row of the state that it looks up; a row that purges a state is one comparison; a result is compared with all windows
but one of those it is routed to, and once with each predicate that it is still to be tested for; a union compares once
for each row that punctuates it.

Predicates are taken as independent of each other, of keys and of time. With two queries the costs are equations 1, 2
and 3, but for rows that fail σ: such rows purge and punctuate nothing beyond the first slice, so 4λ and 2λ of equation
3 are (3 + S_σ)λ and (1 + S_σ)λ here, which is what `anabranch.share.reference` counts.

Every query but those of the shortest window has a union, in every chain: section 5.2 says that merging leaves the cost
of unions as it is. (Queries whose slices are all merged into one could do without; the paper does not count that.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

from anabranch.share.chain import Chain
from anabranch.share.window_queries import STREAMS, Ranked, Stream, WindowQuery, predicates_of


@dataclass(frozen=True)
class Cost:
    """What a way of sharing needs in steady state."""

    stored_rows: float
    comparisons_per_s: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.stored_rows + other.stored_rows, self.comparisons_per_s + other.comparisons_per_s)


NOTHING = Cost(0.0, 0.0)


@dataclass(frozen=True)
class Part:
    """Rows of one stream that satisfy the selections of the same queries."""

    share: float
    queries: frozenset[int]
    """By their places in the order of windows."""


@dataclass(frozen=True)
class NestedLoopModel:
    """Queries, λ_A and λ_B, S_⋈, the S_σ of each predicate, and C_sys."""

    queries: tuple[WindowQuery, ...]
    rate_a_per_s: float
    rate_b_per_s: float
    join_selectivity: float
    selectivities: Mapping[str, float] = field(default_factory=dict)
    overhead: float = 0.0
    """C_sys: what one operator costs for each row that comes, in comparisons."""

    @cached_property
    def ranked(self) -> Ranked:
        return Ranked.of(self.queries)

    def rate_per_s(self, stream: Stream) -> float:
        return self.rate_a_per_s if stream == "A" else self.rate_b_per_s

    # -- chains ----------------------------------------------------------------------------------------------------------

    @cached_property
    def _entering(self) -> list[tuple[float, float]]:
        """For each start i, the rows of A and of B per second that survive to the slice which begins at w_i: those that
        satisfy cond'_{i+1}."""
        return [
            tuple(self.rate_per_s(s) * self._surviving(s, i) for s in STREAMS)  # type: ignore[misc]
            for i in range(len(self.ranked.windows_s))
        ]

    def _surviving(self, stream: Stream, start: int) -> float:
        failing = 1.0
        for predicate in {query.predicate(stream) for _, query in self.ranked.beyond(start)}:
            failing *= 0.0 if predicate is None else 1.0 - self.selectivities[predicate]
        return 1.0 - failing

    @cached_property
    def _tested_until(self) -> list[list[float]]:
        """For each start i, the age in seconds up to which results are tested, for each predicate that is tested there."""
        found = []
        for i in range(len(self.ranked.windows_s)):
            readers = self.ranked.beyond(i)
            found.append([
                max(query.window_s for _, query in readers if query.predicate(stream) == predicate)
                for stream, predicate in self.ranked.tests(i)
            ])  # fmt: skip
        return found

    @cached_property
    def _unions(self) -> list[int]:
        """How many unions the queries of the first k windows have, for each k from 0."""
        return [sum(1 for rank in self.ranked.ranks if 1 < rank <= k) for k in range(len(self.ranked.windows_s) + 1)]

    def edge(self, i: int, j: int) -> Cost:
        """The slice from w_i to w_j (section 5.2; with selections section 6.2): the selections between w_i and w_j are
        pulled up, so rows that survive to the first of its windows stay, and are looked up, until the last."""
        bounds = (0.0, *self.ranked.windows_s)
        span_s = bounds[j] - bounds[i]
        rate_a, rate_b = self._entering[i]
        males = rate_a + rate_b
        pairs_per_s = 2 * rate_a * rate_b
        results = pairs_per_s * self.join_selectivity
        routing = results * span_s * (j - i - 1)
        selecting = sum(results * (min(until_s, bounds[j]) - bounds[i]) for until_s in self._tested_until[i])
        merging = males * (self._unions[j] - self._unions[i])
        running = males * (1 + self.overhead)
        return Cost(males * span_s, pairs_per_s * span_s + running + routing + selecting + merging)

    def edge_cost(self, i: int, j: int) -> float:
        """l_ij, for `cpu_opt`."""
        return self.edge(i, j).comparisons_per_s

    def edge_rows(self, i: int, j: int) -> float:
        return self.edge(i, j).stored_rows

    @property
    def filtering_per_s(self) -> float:
        """Evaluations of predicates that find to which slice a row survives (section 6.1): the same in every chain."""
        total = 0.0
        for stream in STREAMS:
            seen: set[str] = set()
            still = 1.0
            for query in reversed(self.ranked.queries):
                predicate = query.predicate(stream)
                if predicate is None:
                    break
                if predicate not in seen:
                    seen.add(predicate)
                    total += self.rate_per_s(stream) * still
                    still *= 1.0 - self.selectivities[predicate]
        return total

    def chain(self, chain: Chain) -> Cost:
        """A chain of slices with its selections."""
        return sum((self.edge(i, j) for i, j in chain.edges), Cost(0.0, self.filtering_per_s))

    # -- the other ways --------------------------------------------------------------------------------------------------

    def pull_up(self) -> Cost:
        """Section 3.1, equation 1: one join, a router over all windows, selections above it."""
        windows = self.ranked.windows_s
        both = self.rate_a_per_s + self.rate_b_per_s
        pairs_per_s = 2 * self.rate_a_per_s * self.rate_b_per_s
        results = pairs_per_s * self.join_selectivity
        routing = results * windows[-1] * (len(windows) - 1)
        reach_s: dict[tuple[Stream, str], float] = {}
        for stream, query in product(STREAMS, self.ranked.queries):
            if (predicate := query.predicate(stream)) is not None:
                reach_s[stream, predicate] = query.window_s
        selecting = results * sum(reach_s.values())
        running = both * (1 + self.overhead)
        return Cost(both * windows[-1], pairs_per_s * windows[-1] + running + routing + selecting)

    def parts(self, stream: Stream) -> list[Part]:
        """The parts into which push-down splits a stream."""
        names = predicates_of(self.queries, stream)
        shares: dict[frozenset[int], float] = {}
        for outcome in product((False, True), repeat=len(names)):
            share = 1.0
            for name, holds in zip(names, outcome, strict=True):
                share *= self.selectivities[name] if holds else 1.0 - self.selectivities[name]
            satisfied = frozenset(name for name, holds in zip(names, outcome, strict=True) if holds)
            wanted = frozenset(n for n, query in enumerate(self.ranked.queries) if query.wants(stream, satisfied))
            shares[wanted] = shares.get(wanted, 0.0) + share
        return [Part(share, wanted) for wanted, share in shares.items()]

    def joins(self) -> Iterator[tuple[Part, Part, frozenset[int]]]:
        """The joins of push-down: a part of A, a part of B, and the queries that want their results."""
        for part_a, part_b in product(self.parts("A"), self.parts("B")):
            if readers := part_a.queries & part_b.queries:
                yield part_a, part_b, readers

    def push_down(self) -> Cost:
        """Section 3.2, equation 2: a join for each part of A and part of B that some query wants together, with the longest
        window among those queries; a query that reads several joins merges their results, comparing each once."""
        joins = list(self.joins())
        feeding = [sum(n in readers for _, _, readers in joins) for n in range(len(self.queries))]
        splitting = sum(self.rate_per_s(stream) * len(predicates_of(self.queries, stream)) for stream in STREAMS)
        total = Cost(0.0, splitting)
        for part_a, part_b, readers in joins:
            rate_a, rate_b = self.rate_a_per_s * part_a.share, self.rate_b_per_s * part_b.share
            windows = {self.ranked.queries[n].window_s for n in readers}
            pairs_per_s = 2 * rate_a * rate_b
            results = pairs_per_s * self.join_selectivity
            routing = results * max(windows) * (len(windows) - 1)
            merging = results * sum(self.ranked.queries[n].window_s for n in readers if feeding[n] > 1)
            running = (rate_a + rate_b) * (1 + self.overhead)
            total += Cost((rate_a + rate_b) * max(windows), pairs_per_s * max(windows) + running + routing + merging)
        return total

    def unshared(self) -> Cost:
        """Fig. 2: a plan for each query, selections below its join."""
        total = NOTHING
        for query in self.queries:
            rates = []
            for stream in STREAMS:
                predicate = query.predicate(stream)
                rate = self.rate_per_s(stream)
                total += Cost(0.0, 0.0 if predicate is None else rate)
                rates.append(rate if predicate is None else rate * self.selectivities[predicate])
            both = sum(rates)
            probing = 2 * rates[0] * rates[1] * query.window_s
            total += Cost(both * query.window_s, probing + both * (1 + self.overhead))
        return total
