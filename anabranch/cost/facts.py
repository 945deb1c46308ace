"""What is known about the streams of a query, from whatever knows it: `Facts` gives a graph to price plans on.

*Fixed* facts are given. *Measured* ones come from the statistics of batches that ran. *Empty* ones are defaults, for a query
that never ran: every stream alike, and keys of which each finds one partner in a window.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.control.records import BlockFigures, Statistics
from anabranch.cost.samples import SampledKeys, gathered, selectivity
from anabranch.cost.streams import Basis, KeyClass, StreamFacts, StreamGraph, worst
from anabranch.errors import FactsError
from anabranch.plan.expression import aliases_of
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Plan
from anabranch.plan.lookups import root_name
from anabranch.plan.query import FOREVER_US, Derived, Input, Stream, Table
from anabranch.plan.routes import routes

DEFAULT_RATE = 1_000.0
DEFAULT_TABLE_ROWS = 10_000.0
DEFAULT_VALUE_BYTES = 16.0
"""A value of a type without a fixed width."""
HORIZON_S = 3_600.0
"""For how long rows are counted that never end."""


class Facts(Protocol):
    """Whoever knows how fast streams are and how selective their keys."""

    def graph(self, query: JoinGraph) -> StreamGraph:
        """The streams of a query, by alias, in its order."""


def row_bytes(query: JoinGraph, i: Input) -> float:
    """What the log keeps of a row: the columns that the query needs, and the event time."""
    return columns_bytes(i.source, query.query.needed_columns(i.alias))


def columns_bytes(source: Stream | Table, columns: Iterable[str]) -> float:
    """What some columns of a row take, and its event time."""
    needed = {*columns, source.time} if isinstance(source, Stream) else set(columns)
    return sum(_width(f.type) for f in source.fields if f.name in needed)


def _width(type: pa.DataType) -> float:
    try:
        return float(type.bit_width) / 8
    except ValueError:
        return DEFAULT_VALUE_BYTES


def window_s(i: Input) -> float:
    return HORIZON_S if i.window.length_us == FOREVER_US else i.window.length_us / 1e6


@dataclass(frozen=True)
class Given:
    """Fixed facts: rows per second of each source, rows of tables, and distinct values of keys by source and column."""

    rates: Mapping[str, float] = field(default_factory=dict)
    table_rows: Mapping[str, float] = field(default_factory=dict)
    distinct: Mapping[str, float] = field(default_factory=dict)
    """By key term as the query writes it (`a.k`), or by class (the text of its first term)."""
    passing: Mapping[str, float] = field(default_factory=dict)
    """By block (`q`, `q.x`): the share of its combinations that pass its predicates over several inputs, beside keys."""
    groups: Mapping[str, float] = field(default_factory=dict)
    """By block: how many groups it has at an instant, as batches have measured it."""
    estimated: frozenset[str] = frozenset()
    """The sources and terms among these that nobody gave: their figures were worked out from assumed ones."""

    def __post_init__(self) -> None:
        for what, values in (("rate", self.rates), ("number of rows", self.table_rows)):
            for name, value in values.items():
                if not value >= 0 or math.isinf(value):
                    raise FactsError(f"the {what} of {name} is {value}: give a number that is not negative")
        for name, value in self.passing.items():
            if not 0 < value <= 1:
                raise FactsError(f"{value} of the combinations of {name} pass: give a share above 0, and 1 at most")
        for name, value in self.distinct.items():
            if not value >= 1:
                raise FactsError(f"{name} has {value} distinct values: give a number of at least 1")

    def with_figures(self, figures: Mapping[str, BlockFigures]) -> Given:
        """These, and what batches have measured of blocks in their place. What lookups found has passed all predicates."""
        distinct = {name: values for each in figures.values() for name, values in each.distinct.items()}
        groups = {block: each.groups for block, each in figures.items() if each.groups is not None}
        passing = {block: 1.0 for block, each in figures.items() if each.distinct}
        return replace(
            self, distinct={**self.distinct, **distinct}, passing={**self.passing, **passing},
            groups={**self.groups, **groups}, estimated=self.estimated - distinct.keys(),
        )  # fmt: skip

    def graph(self, query: JoinGraph) -> StreamGraph:
        streams = [self._stream(query, i) for i in query.query.inputs]
        classes = []
        for terms in query.classes:
            members: dict[int, float] = {}
            known = worst(self._distinct_basis(str(term), str(terms[0])) for term in terms)
            for term in terms:
                for alias in aliases_of(term):
                    place = query.query.aliases.index(alias)
                    members.setdefault(place, self._distinct(str(term), str(terms[0]), streams))
            if len(members) > 1:
                classes.append(KeyClass(tuple(sorted(members.items())), known))
        return StreamGraph(streams, self._passed(query.query.name, classes))

    def _passed(self, block: str, classes: list[KeyClass]) -> list[KeyClass]:
        """Predicates beside keys are taken as if the first key had more values: as few combinations are found."""
        share = self.passing.get(block, 1.0)
        if share == 1.0 or not classes:
            return classes
        distinct = tuple((place, values / share) for place, values in classes[0].distinct)
        return [replace(classes[0], distinct=distinct), *classes[1:]]

    def _stream(self, query: JoinGraph, i: Input) -> StreamFacts:
        if isinstance(i.source, Stream):
            rate = self.rates.get(root_name(i.source.name), DEFAULT_RATE)
            known = self._basis(root_name(i.source.name), self.rates)
            return StreamFacts(i.alias, rate, rate * window_s(i), row_bytes(query, i), known)
        rows = self.table_rows.get(i.source.name, DEFAULT_TABLE_ROWS)
        return StreamFacts(i.alias, 0.0, rows, row_bytes(query, i), self._basis(i.source.name, self.table_rows))

    def _basis(self, name: str, figures: Mapping[str, float]) -> Basis:
        return Basis.GIVEN if name in figures and name not in self.estimated else Basis.ASSUMED

    def _distinct_basis(self, term: str, first: str) -> Basis:
        return self._basis(term if term in self.distinct else first, self.distinct)

    def _distinct(self, term: str, first: str, streams: Sequence[StreamFacts]) -> float:
        """Where nothing is known, so many values that a row finds one partner among the most rows there are."""
        given = self.distinct.get(term, self.distinct.get(first))
        return given if given is not None else max(1.0, *(s.rows for s in streams))


EMPTY = Given()
"""Facts about a query that never ran."""


@dataclass(frozen=True)
class _Equation:
    """The logarithms of the distinct values of some classes have a sum."""

    classes: npt.NDArray[np.float64]
    value: float
    weight: float


@dataclass(frozen=True)
class Measured:
    """Facts from batches that ran under a plan: their statistics, and how much event time they span."""

    plan: Plan
    batches: Sequence[Statistics]
    span_s: float
    """Event time from the first batch to the last."""
    otherwise: Given = EMPTY
    """For what the batches do not tell."""

    def graph(self, query: JoinGraph) -> StreamGraph:
        if not self.batches or self.span_s <= 0:
            return self.otherwise.graph(query)
        streams = []
        for i in query.query.inputs:
            counted = [b.sources[i.source.name] for b in self.batches if i.source.name in b.sources]
            width = self._row_bytes(query, i)
            if isinstance(i.source, Stream):
                rate = sum(c.stored_rows for c in counted) / self.span_s
                streams.append(StreamFacts(i.alias, rate, rate * window_s(i), width, Basis.MEASURED))
            else:
                rows = float(counted[-1].state_rows if counted else 0)
                streams.append(StreamFacts(i.alias, 0.0, rows, width, Basis.MEASURED))
        return StreamGraph(streams, self._classes(query, streams))

    def _row_bytes(self, query: JoinGraph, i: Input) -> float:
        last = self.batches[-1].sources.get(i.source.name)
        return last.state_bytes / last.state_rows if last is not None and last.state_rows else row_bytes(query, i)

    def _classes(self, query: JoinGraph, streams: Sequence[StreamFacts]) -> list[KeyClass]:
        """Distinct values of each key class, from how many partners rows found: every kind of probe gives an equation
        in their logarithms, weighted by the rows that made it, and so do samples of keys, by far fewer rows: they decide
        what probes leave open. Least squares solve them. A class of three or more has the distinct values that samples give
        each member, if they do; one that no probe used, or never a match, has what is otherwise known."""
        fallback = self.otherwise.graph(query)
        members = [
            sorted({query.query.aliases.index(a) for t in terms for a in aliases_of(t)}) for terms in query.classes
        ]
        usable = [place for place, m in enumerate(members) if len(m) > 1]
        sampled = {c: self._sampled(query, c) for c in usable} if query.sampled_terms else {}
        equations = self._probed(query, streams, members, usable)
        for c, pairs in sampled.items():
            line = np.array([float(other == c) for other in usable])
            equations += [_Equation(line, -math.log(share), 1.0) for share in pairs.values()]
        found = np.full(len(usable), np.nan)
        if equations:
            matrix, scale = np.array([e.classes for e in equations]), np.array([e.weight for e in equations])
            known = matrix.any(axis=0)
            values = np.array([e.value for e in equations])
            solved, *_ = np.linalg.lstsq(matrix[:, known] * scale[:, None], values * scale, rcond=None)
            found[known] = np.exp(np.maximum(solved, 0.0))
        classes = []
        for place, c in enumerate(usable):
            pairs = sampled.get(c, {})
            if len(members[c]) > 2 and len(pairs) == len(members[c]) * (len(members[c]) - 1) // 2:
                each = ((m, min(1 / share for pair, share in pairs.items() if m in pair)) for m in members[c])
                classes.append(KeyClass(tuple(each), Basis.MEASURED))
            elif np.isnan(found[place]):
                classes.append(fallback.classes[place])
            else:
                classes.append(KeyClass(tuple((m, float(found[place])) for m in members[c]), Basis.MEASURED))
        return classes

    @cached_property
    def _samples(self) -> dict[str, SampledKeys]:
        return gathered(sample for batch in self.batches for sample in batch.samples)

    def _sampled(self, query: JoinGraph, place: int) -> dict[tuple[int, int], float]:
        """The selectivities of a class between pairs of inputs, by their places, as far as samples tell."""
        terms = {
            query.query.aliases.index(next(iter(aliases_of(t)))): self._samples[str(t)]
            for t in reversed(query.classes[place])
            if len(aliases_of(t)) == 1 and str(t) in self._samples
        }
        found = {(i, j): selectivity(terms[i], terms[j]) for i, j in combinations(sorted(terms), 2)}
        return {pair: share for pair, share in found.items() if share is not None}

    def _probed(
        self, query: JoinGraph, streams: Sequence[StreamFacts], members: Sequence[Sequence[int]], usable: Sequence[int]
    ) -> list[_Equation]:
        """What the probes tell of the distinct values of classes."""
        probes: dict[tuple[str, str], list[float]] = {}
        for batch in self.batches:
            for step in batch.steps:
                counts = probes.setdefault((step.route, step.target), [0.0, 0.0])
                counts[0] += step.probes
                counts[1] += step.matches
        equations = []
        base = StreamGraph(streams, [])
        for route in routes(self.plan, query):
            for stage in route.stages:
                bound = {a for a in stage.joined if a not in {t for p in stage.probes for t in p.target}}
                for probe in stage.probes:
                    if self._comes_late(query, probe.target) and not self._comes_late(query, (route.alias,)):
                        bound |= set(probe.target)
                        continue
                    made, matched = probes.get((route.alias, " ".join(probe.target)), (0.0, 0.0))
                    used = [c for c in usable if self._connects(query, c, bound, set(probe.target))]
                    target_rows = base.rows(base.mask(probe.target))
                    bound |= set(probe.target)
                    inner = [c for c in usable for _ in range(self._inside(members[c], query, probe.target) - 1)]
                    if made and target_rows and used:
                        share = max(matched, 0.5) / made / target_rows
                        line = np.zeros(len(usable))
                        for c in (*used, *inner):
                            line[usable.index(c)] += 1.0
                        equations.append(_Equation(line, -math.log(share), math.sqrt(made)))
        return equations

    @staticmethod
    def _comes_late(query: JoinGraph, aliases: Iterable[str]) -> bool:
        """Whether there are groups of a subquery among some inputs: they are known when the watermark has passed, so that
        new rows of streams find none, and are found by them instead."""
        return any(isinstance(query.query.input(alias).source, Derived) for alias in aliases)

    @staticmethod
    def _connects(query: JoinGraph, place: int, left: set[str], right: set[str]) -> bool:
        terms = query.classes[place]
        return any(aliases_of(t) <= left for t in terms) and any(aliases_of(t) <= right for t in terms)

    @staticmethod
    def _inside(members: Sequence[int], query: JoinGraph, aliases: Iterable[str]) -> int:
        return max(1, sum(1 for a in aliases if query.query.aliases.index(a) in members))
