"""Which logs, indexes and views a plan needs in a slot, under names that do not depend on the plan.

An index over a source is named by what is in it: the source, the filters and the terms, with the source's name in place
of aliases. Two inputs over the same stream share it where these agree, whatever their windows; it then keeps rows as long
as the longest of them needs. A view is named by its inputs, its indexes by the view and the terms. An index is
by the hash of its terms, or ordered by the values of one.

A select that stands above a join (`anabranch.plan.selects`) is no filter of its input, and so not in the name of an index
over the source; an index over a view that is below the select is named with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from anabranch.engine.columns import varies
from anabranch.engine.combination import Combination
from anabranch.engine.expressions import evaluate
from anabranch.engine.keys import is_exact
from anabranch.engine.log import Log
from anabranch.engine.spine import FAN_IN, Spine
from anabranch.engine.view import View
from anabranch.plan.expression import Column, Expr, columns_of, replace
from anabranch.plan.grid import Grid
from anabranch.plan.join_graph import Aliases, JoinGraph
from anabranch.plan.migration import Execution
from anabranch.plan.query import BEGINNING_US, Input, Stream, Table
from anabranch.plan.routes import Index, Probe, indexes, routes, views

ONE_CELL = Grid()
"""The grid of one cell."""


@dataclass(frozen=True)
class InputState:
    """An input of the query, with all predicates a row of it must pass to be of use."""

    alias: str
    source: Stream | Table
    window_us: int
    filters: tuple[Expr, ...]
    selects: tuple[Expr, ...] = ()
    """Those of them that may stand elsewhere."""
    raised: tuple[Expr, ...] = ()
    """Predicates of it that stand above a join."""
    lowered: tuple[Expr, ...] = ()
    """Predicates that stand above a join only for the sake of rows that are stored: new ones must pass them, too."""


@dataclass
class IndexState:
    """An index: `terms` are written in `aliases[0]` for a source (other inputs may share it), in all of them for a view."""

    name: str
    source: Stream | Table | None
    aliases: Aliases
    terms: tuple[Expr, ...]
    spine: Spine
    is_ordered: bool = False

    @property
    def is_exact(self) -> bool:
        return is_exact([t.type for t in self.terms])


class BoxState:
    """All state of a box."""

    def __init__(
        self,
        graph: JoinGraph,
        execution: Execution,
        grid: Grid = ONE_CELL,
        cell: int = 0,
        parted: frozenset[str] = frozenset(),
        previous: BoxState | None = None,
        horizon_us: int = BEGINNING_US,
    ) -> None:
        """State for an execution; what the execution before it kept too is taken over (002, section 12.1.2: *state moving*).
        All that is stored and has not ended at the horizon has passed the selects that are down by then."""
        self.graph, self.grid, self.cell, self.parted = graph, grid, cell, parted
        self.selects = execution.selects
        self.routes = routes(execution.plan, graph, execution.selects)
        self.target_routes = routes(execution.target, graph, execution.selects) if execution.target is not None else ()
        self.inputs = tuple(self._input(i) for i in graph.query.inputs)
        self._inputs = {i.alias: i for i in self.inputs}
        self.keeps_rows = len(self.inputs) > 1
        """Rows of a single input meet no others: they need not be stored."""
        self.retention_us = {
            source.name: max(i.window_us for i in self.inputs if i.source is source) for source in graph.query.sources
        }
        self.filters = {source.name: self._distinct_filters(source) for source in graph.query.sources}
        self.read_columns: dict[str, tuple[str, ...]] = {}
        self.logs: dict[str, Log] = {}
        for source in graph.query.sources:
            stored = self._stored_columns(source)
            asked = (f for i in self.inputs if i.source is source for f in (*i.filters, *i.raised, *i.lowered))
            read = stored | self._columns_read(asked)
            self.read_columns[source.name] = tuple(f.name for f in source.fields if f.name in read)
            self.logs[source.name] = Log(
                source, pa.schema([pa.field(f.name, f.type) for f in source.fields if f.name in stored])
            )
        if previous is not None:
            for name, log in previous.logs.items():
                log.schema = self.logs[name].schema
            self.logs = previous.logs
        passing = graph.query.passing_stream
        self.passing_log = None if passing is None else self.logs[self._inputs[passing].source.name]
        """The log of a stream whose rows are of no use after their batch."""
        self._varying = {i.alias: self._varying_of(i) for i in self.inputs}
        self._is_down = frozenset(
            s.predicate
            for s in (previous.selects if previous is not None else ())
            if s.until_us is not None and s.until_us <= horizon_us
        )
        known: dict[Aliases, View] = previous.views if previous is not None else {}
        self.views: dict[Aliases, View] = {}
        for aliases in views(self.routes + self.target_routes):
            self.views[aliases] = known.get(aliases) or View(aliases)
        self.served_views = frozenset(views(self.routes))
        """The views of the plan that gives the results."""
        self.indexes: dict[str, IndexState] = {}
        self._index_names: dict[Index, str] = {}
        for index in indexes(self.routes + self.target_routes):
            self._index_names[index] = self._name(index)
        for index, name in self._index_names.items():
            if name not in self.indexes:
                self.indexes[name] = self._index(name, index, previous)
        self.served_indexes = frozenset(self._index_names[index] for index in indexes(self.routes))
        self.view_indexes = {
            aliases: [i for i in self.indexes.values() if i.source is None and i.aliases == aliases]
            for aliases in self.views
        }

    def _input(self, i: Input) -> InputState:
        above = [s for s in self.selects if s.alias == i.alias]
        raised = tuple(s.predicate for s in above if s.until_us is None)
        lowered = tuple(s.predicate for s in above if s.until_us is not None)
        kept = tuple(f for f in i.filters if f not in raised and f not in lowered)
        filters = kept + self.graph.implied_filters(i.alias)
        return InputState(i.alias, i.source, i.window.length_us, filters, kept, raised, lowered)

    def input(self, alias: str) -> InputState:
        return self._inputs[alias]

    def log_of(self, alias: str) -> Log:
        """The log of the source that an input reads."""
        return self.logs[self._inputs[alias].source.name]

    def varying_columns(self, alias: str) -> tuple[str, ...]:
        """The columns of an input that may be fetched of combined rows and whose values differ in length."""
        return self._varying[alias]

    def _varying_of(self, i: InputState) -> tuple[str, ...]:
        above = self._columns_read((*i.raised, *i.lowered)) | set(self.logs[i.source.name].schema.names)
        return tuple(f.name for f in i.source.fields if f.name in above and varies(f.type))

    def passed(self, aliases: Aliases) -> tuple[Expr, ...]:
        """The selects that combined rows of some inputs have passed."""
        below = [s for alias in aliases for s in self.input(alias).selects]
        return (*below, *(s.predicate for s in self.selects if s.above <= set(aliases)))

    def open_selects(self, aliases: Aliases) -> frozenset[Expr]:
        """The selects that they have still before them."""
        return frozenset(s.predicate for s in self.selects if s.is_open(set(aliases)))

    def index_of(self, probe: Probe) -> IndexState:
        return self.indexes[self._index_names[probe.index]]

    def own_index(self, alias: str, terms: tuple[Expr, ...]) -> IndexState | None:
        """The index over an input by these terms, if the plan has it."""
        return self.indexes.get(self._name(Index((alias,), terms)))

    def fetch(self, rows: Combination) -> Fetch:
        """Gives columns of combined rows."""
        return Fetch(self, rows)

    def keys(self, terms: tuple[Expr, ...], rows: Combination) -> list[pa.Array]:
        """The values of some terms for combined rows."""
        return [evaluate(term, self.fetch(rows), len(rows)) for term in terms]

    def purge(self, watermark_us: int) -> None:
        for log in self.logs.values():
            log.purge(watermark_us, self.retention_us[log.source.name])
        for index in self.indexes.values():
            index.spine.purge(watermark_us)
        for view in self.views.values():
            view.purge(watermark_us)

    def forget_view(self, aliases: Aliases) -> None:
        """Empties a view and its indexes."""
        self.views[aliases].clear()
        for index in self.view_indexes[aliases]:
            index.spine.clear()

    def verify(self) -> None:
        for index in self.indexes.values():
            index.spine.verify()

    def _index(self, name: str, index: Index, previous: BoxState | None) -> IndexState:
        is_view = len(index.state) > 1
        source = None if is_view else self.input(index.state[0]).source
        matching = None if previous is None else self._matching(name, index, previous)
        if matching is not None:
            spine = matching.spine
            spine.name = name
        else:
            spine = Spine(name, 0 if source is None else self.retention_us[source.name], is_view, self._phase())
        return IndexState(name, source, index.state, index.terms, spine, index.is_ordered)

    def _matching(self, name: str, index: Index, previous: BoxState) -> IndexState | None:
        """The index of another execution that can be taken over: the same one; or one whose rows have passed more selects,
        for those that are missing would not pass them later (002, section 13.3.2). It must have served this input alone."""
        if name in previous.indexes:
            return previous.indexes[name]
        known = previous._index_names.get(index)
        if known is None or known in self._index_names.values():
            return None
        if not previous.open_selects(index.state) - self._is_down <= self.open_selects(index.state):
            return None
        shared = len(index.state) == 1 and sum(i.source is self.input(index.state[0]).source for i in self.inputs) > 1
        return None if shared else previous.indexes[known]

    def _phase(self) -> int:
        """Spines take turns with their merges: modulo 4, 16, 64 and 256 the phases of four spines are evenly apart."""
        return len(self.indexes) % FAN_IN * (1 + FAN_IN + FAN_IN**2 + FAN_IN**3)

    def _name(self, index: Index) -> str:
        by = "ordered by" if index.is_ordered else "by"
        if len(index.state) > 1:
            whole = f"({' '.join(index.state)}) {by} ({', '.join(map(str, index.terms))})"
            left = " and ".join(sorted(map(str, self.open_selects(index.state))))
            return whole + (f" before {left}" if left else "")
        i = self.input(index.state[0])
        terms = ", ".join(str(_unaliased(t, i)) for t in index.terms)
        filters = " and ".join(sorted(str(_unaliased(f, i)) for f in i.filters))
        rows = f"{i.source.name} {by} ({terms})" + (f" where {filters}" if filters else "")
        return rows + (f" at ({', '.join(self._membership(i))})" if self.shares_slot(i.source) else "")

    def shares_slot(self, source: Stream | Table) -> bool:
        """Whether a row of a source may be in this cell for the sake of one input and not of another."""
        if source.name in self.parted:
            return True
        return len({tuple(self._membership(i)) for i in self.inputs if i.source is source}) > 1

    def _membership(self, i: InputState) -> list[str]:
        """What decides whether a row belongs to a cell as a row of an input."""
        terms = [(place, self.grid.dimensions[place].term_of(i.alias)) for place in self.grid.own(i.alias)]
        return [f"{place}: {_unaliased(term, i) if term else 'rows'}" for place, term in terms]

    def _distinct_filters(self, source: Stream | Table) -> list[tuple[Expr, ...]]:
        """The sets of predicates of the inputs over a source, each once."""
        found: dict[frozenset[Expr], tuple[Expr, ...]] = {}
        for i in self.inputs:
            if i.source is source:
                asked = (*i.filters, *i.lowered)
                found.setdefault(frozenset(_unaliased(f, i) for f in asked), asked)
        return list(found.values())

    def _stored_columns(self, source: Stream | Table) -> set[str]:
        """The columns the log keeps; those of filters only where inputs over one source differ in them, for a replay must
        tell which rows are whose; and those of selects that stand above a join."""
        stored = {c for i in self.inputs if i.source is source for c in self.graph.query.needed_columns(i.alias)}
        stored |= self._columns_read(f for i in self.inputs if i.source is source for f in i.raised)
        if len(self.filters[source.name]) > 1:
            stored |= self._columns_read(f for group in self.filters[source.name] for f in group)
        if isinstance(source, Stream):
            stored.add(source.time)
        elif not stored:
            stored.add(source.fields[0].name)
        return stored

    @staticmethod
    def _columns_read(exprs: Iterable[Expr]) -> set[str]:
        return {c.name for e in exprs for c in columns_of(e)}


def _unaliased(expr: Expr, i: InputState) -> Expr:
    """The expression with the source's name in place of the alias."""
    return replace(expr, lambda e: Column(e.type, i.source.name, e.name) if isinstance(e, Column) else e)


@dataclass(frozen=True)
class Fetch:
    """Fetches columns of combined rows, each once."""

    state: BoxState
    rows: Combination

    def __call__(self, column: Column) -> pa.Array:
        found = self.rows.fetched.get(column)
        if found is None and self.rows.whole is not None and self.rows.whole[0] == column.alias:
            segment = self.rows.whole[1]
            place = segment.schema.get_field_index(column.name)
            found = segment.column(place) if place >= 0 else None
        if found is None:
            log = self.state.logs[self.state.input(column.alias).source.name]
            found = self.rows.fetched[column] = log.column(column.name, self.rows.ids[column.alias])
        return found
