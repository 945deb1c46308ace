"""A box: the routes of one block of a query, over the store of its slot. It owns no state but the groups it folds.

For each input in turn, its new rows follow their route: they look up the states that the plan names (`Lookup`), combined
rows are kept in views, and those that pass the root are results. Then they become visible to the inputs after it. So every
combination is found exactly once: by the last of its rows to become visible. If the block groups, what passed the root goes
to its aggregator instead, which gives the results of the instants that the watermark has passed.

Only row ids travel along a route. Columns are fetched when a key, a residual predicate or the select list asks for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from time import thread_time_ns

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.control.records import Statistics
from anabranch.engine import bounds
from anabranch.engine.aggregation import Aggregator
from anabranch.engine.arrival import Arrival, order_keys
from anabranch.engine.combination import Combination, Delta
from anabranch.engine.expressions import evaluate, predicate_mask
from anabranch.engine.freshness import Oldest, fresh, oldest_times
from anabranch.engine.keys import hash_keys
from anabranch.engine.limits import Direction
from anabranch.engine.log import Log
from anabranch.engine.lookup import Lookup
from anabranch.engine.pieces import pieces
from anabranch.engine.reader import BoundIndex, Reader
from anabranch.engine.rebuild import Rebuild
from anabranch.engine.results import Found, advance, results_of, selected
from anabranch.engine.sample import sample
from anabranch.engine.shed_fates import ShedFates
from anabranch.engine.store import Store
from anabranch.engine.view import View
from anabranch.plan.expression import Column, Expr, aliases_of
from anabranch.plan.identity import named
from anabranch.plan.join_graph import Aliases
from anabranch.plan.query import BEGINNING_US, Stream
from anabranch.plan.routes import Route, Stage
from anabranch.plan.shared_join import renamed as in_aliases


@dataclass(frozen=True)
class Fetch:
    """Combined rows whose columns are fetched when they are asked for, each once."""

    box: Box
    rows: Combination

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        return self.rows.starts

    @property
    def ends(self) -> npt.NDArray[np.int64]:
        return self.rows.ends

    def slice(self, first: int, last: int) -> Fetch:
        return Fetch(self.box, self.rows.slice(first, last))

    def __call__(self, column: Column) -> pa.Array:
        found = self.rows.fetched.get(column)
        if found is None and self.rows.whole is not None and self.rows.whole[0] == column.alias:
            segment = self.rows.whole[1]
            place = segment.schema.get_field_index(column.name)
            found = segment.column(place) if place >= 0 else None
        if found is None:
            log = self.box.log_of(column.alias)
            found = self.rows.fetched[column] = log.column(column.name, self.rows.ids[column.alias])
        return found


class Box:
    """One block of a query in one slot."""

    def __init__(self, reader: Reader, store: Store, gives_parts: bool = False) -> None:
        self.reader, self.store = reader, store
        self.lookup = Lookup(self)
        self.rebuild = Rebuild(self)
        self.gives_parts = gives_parts
        """Whether groups have rows elsewhere too: then results are partial values (`Aggregator.combine`)."""
        self.aggregator: Aggregator | None = None
        self.statistics = Statistics()
        self.arrival = Arrival(-1)
        self.visible: set[str] = set()
        """The inputs whose new rows can be found already."""
        self.fates = ShedFates(self)
        self._oldest: tuple[Oldest, ...] = ()
        """How old rows may be in results of this batch, where some may be too old."""
        self._found: dict[Aliases, list[Combination]] = {}
        self._readers: tuple[Reader, ...] = ()
        self._known_indexes: dict[Aliases, list[BoundIndex]] = {}
        """The indexes over each view, by these readers."""

    @property
    def name(self) -> str:
        return self.reader.name

    def log_of(self, alias: str) -> Log:
        """The log of the source that an input reads."""
        if alias == self.reader.passing:
            assert self.reader.passing_log is not None
            return self.reader.passing_log
        return self.store.logs[self.reader.input(alias).source.name]

    def varying_columns(self, alias: str) -> tuple[str, ...]:
        """The columns of an input that may be fetched of combined rows and whose values differ in length."""
        return self.reader.varying_columns(alias)

    def view_of(self, aliases: Aliases) -> View:
        return self.store.views[self.reader.views[aliases]]

    def fetch(self, rows: Combination) -> Fetch:
        """Gives columns of combined rows."""
        return Fetch(self, rows)

    def keys(self, terms: tuple[Expr, ...], rows: Combination) -> list[pa.Array]:
        """The values of some terms for combined rows."""
        return [evaluate(term, self.fetch(rows), len(rows)) for term in terms]

    # -- a batch -----------------------------------------------------------------------------------------------------

    def begin(self, arrival: Arrival) -> None:
        """Before a batch."""
        self.statistics, self.arrival, self.visible, self._found = Statistics(), arrival, set(), {}
        self._oldest = ()
        self.fates.begin()

    def step(self, watermark_us: int) -> Iterator[Found]:
        """Takes the rows of a batch along their routes, and gives its results as they are found, in pieces. It is done, and
        statistics and state are those behind it, when the last piece was taken."""
        clock_us = self.arrival.clocks_us.get(self.reader.query, BEGINNING_US)
        self._oldest = oldest_times(self.reader.graph.query, clock_us, watermark_us)
        yield from self.go_on()
        if self.aggregator is not None:
            for piece in advance(self.aggregator, self.statistics, self.arrival.batch, watermark_us, self.gives_parts):
                yield self.reader.query, piece

    def go_on(self) -> Iterator[Found]:
        """Takes the rows that have come so far along their routes; others of the batch may come yet."""
        for query, piece in self._run(emit=True):
            self.statistics.results += piece.num_rows
            yield query, piece
        for i in self.reader.inputs:
            self.arrival.deltas.pop((self.name, i.alias), None)

    def fold(self, batch: int, delta: Delta) -> None:
        """Takes stored rows of a batch that is over into groups; nothing is emitted."""
        assert self.aggregator is not None
        self.begin(Arrival(batch, deltas={(self.name, delta.alias): delta}))
        for _ in self.go_on():
            raise AssertionError("groups give results before the watermark has passed them")
        self.aggregator.settle(batch)

    def _spent(self, what: str, began_ns: int) -> None:
        self.statistics.spent(what, thread_time_ns() - began_ns)

    def delta(self, alias: str) -> Delta | None:
        """The new rows of an input in this batch."""
        return self.arrival.deltas.get((self.name, alias))

    def _run(self, emit: bool) -> Iterator[Found]:
        batch, reader = self.arrival.batch, self.reader
        for alias, term in reader.graph.sampled_terms:
            self._sample(alias, term)
        # Stored tables first: no row of a stream is there before them.
        ways = zip(reader.inputs, reader.routes, strict=True)
        for i, route in sorted(ways, key=lambda way: isinstance(way[0].source, Stream)):
            delta = self.delta(i.alias)
            if delta is not None and len(delta.starts):
                rows = delta.combination(batch)
                yield from self._follow(route, 0, rows, emit)
                yield from self._follow_target(i.alias, rows, emit)
            self.visible.add(i.alias)
        if reader.passing_log is not None:
            reader.passing_log.clear()
        if self.statistics.limited:
            # Results have rows of several inputs; with which of them it is told does not matter.
            told = next(iter(self.statistics.limited.values()))
            variance, told.covariance = self.fates.end()
            told.variance += variance

    def _sample(self, alias: str, term: Expr) -> None:
        """Notes some keys of the new rows of an input."""
        delta, own = self.delta(alias), self.reader.own_index(alias, (term,))
        if delta is None:
            return
        if own is not None and own in self.arrival.sorted_rows:
            found = sample(str(term), self.arrival.sorted_rows[own][:, 0], is_sorted=True)
        else:
            keys = self.keys((term,), delta.combination(self.arrival.batch))[0].drop_null()
            found = sample(str(term), hash_keys([keys], len(keys)), is_sorted=False)
        self.statistics.samples.append(found)

    # -- rows go their way -------------------------------------------------------------------------------------------

    def _follow(self, route: Route, place: int, rows: Combination, emit: bool) -> Iterator[Found]:
        """Takes rows through the stages of a route from `place` on: a piece goes all the way before the next is made."""
        if place == len(route.stages):
            if not route.reaches_root:
                return
            yield from self.emit(self.rebuild.old_at_root(rows), emit)
            return
        stage = route.stages[place]
        if stage.is_root and not emit:
            return
        if stage.is_root and self._oldest:  # what is too old has no result to find
            rows = fresh(self, rows, self._oldest)
        if stage.is_root and self.counts(route):
            yield from self.directed(route, stage, rows)
            return
        for combined in self.stage(route, stage, rows, emit=emit):
            if not stage.is_root:
                began = thread_time_ns()
                self.keep(self.arrival.batch, stage, combined)
                self._spent("views", began)
                if self.reader.target_routes:
                    self._found.setdefault(stage.joined, []).append(combined)
            yield from self._follow(route, place + 1, combined, emit)
            # Rows of a view that the plan that a migration goes to has too are kept until they go its way: by their ids.
            combined.fetched.clear()

    def _follow_target(self, alias: str, rows: Combination, emit: bool) -> Iterator[Found]:
        """Takes new rows along their route in the plan that a migration goes to. What that costs is told apart."""
        for route in self.reader.target_routes:
            if route.alias == alias:
                began, steps, self.statistics.steps = thread_time_ns(), self.statistics.steps, []
                for piece in self.rebuild.follow(route, rows, self._found, emit):
                    self.rebuild.done.cpu_ns += thread_time_ns() - began
                    yield piece
                    began = thread_time_ns()
                self.statistics.steps, self._found = steps, {}
                self.rebuild.done.cpu_ns += thread_time_ns() - began

    def counts(self, route: Route) -> bool:
        """Whether it is counted what the rows of an input find that are results."""
        limits = self.arrival.limits
        if not limits.may_lose and self.reader.query not in limits.queries:
            return False
        return isinstance(self.reader.input(route.alias).source, Stream)

    def directed(self, route: Route, stage: Stage, rows: Combination, since: int | None = None) -> Iterator[Found]:
        """Takes rows through the last stage of their route, as far as they may look up, and counts what they find. On a
        parallel track the new plan has combinations with rows that came `since` only."""
        began, spent_ns, delta = thread_time_ns(), 0, self.delta(route.alias)
        arrived = 0 if delta is None else len(delta.starts)
        share = self.arrival.limits.share(self.reader.query, route.alias, arrived)
        assert share == 1 or not self.reader.execution.is_parallel, "limits begin when a parallel track has ended"
        direction = Direction(self, route.alias, share, rows, arrived)
        for combined in self.stage(route, stage, direction.rows, since, emit=True, probing=direction.probing):
            found = self.rebuild.old_at_root(combined) if since is None else combined
            for piece in self.emit(found, True, direction):
                spent_ns += thread_time_ns() - began
                yield piece
                began = thread_time_ns()
            combined.fetched.clear()
        direction.end(spent_ns + thread_time_ns() - began)

    def stage(
        self,
        route: Route,
        stage: Stage,
        rows: Combination,
        since: int | None = None,
        step: int = 0,
        emit: bool = False,
        probing: npt.NDArray[np.bool_] | None = None,
    ) -> Iterator[Combination]:
        """The combinations that the probes of a stage make of some rows, in pieces; with rows that came `since` only. With
        `emit` what is found on the way may be some query's result already. `probing` are the rows that may look up, if
        only some may."""
        if not len(rows):
            return
        if step == len(stage.probes):
            yield self._selected(stage, rows) if stage.selects else rows
            return
        for found in self.lookup.probe(route, stage, step, rows, probing):
            found = self.on_way(self.rebuild.new_only(found, since), emit)
            if self.is_full:
                # Nothing of a piece without rows goes on; what waits is handed out meanwhile.
                yield found.slice(0, 0)
            yield from self.stage(route, stage, found, since, step + 1, emit)

    def on_way(self, rows: Combination, emit: bool) -> Combination:
        """What goes on of rows that one more lookup has combined: all of them, if nobody takes them here."""
        return rows

    @property
    def is_full(self) -> bool:
        """Whether so much waits to be handed out that it must go before more is found."""
        return False

    def _selected(self, stage: Stage, rows: Combination) -> Combination:
        """What the selects leave that stand above a join."""
        began = thread_time_ns()
        passing = self.passing(stage.selects, rows)
        self._spent("select", began)
        return rows if passing is None else rows.where(passing)

    def passing(self, predicates: Iterable[Expr], rows: Combination) -> npt.NDArray[np.bool_] | None:
        """Which combined rows pass predicates of single inputs; None if all do. Rows of a segment whose rows had passed one
        when they were stored need not be asked again, and may have no columns for it."""
        found: npt.NDArray[np.bool_] | None = None
        for predicate in predicates if len(rows) else ():
            (alias,) = aliases_of(predicate)
            log = self.log_of(alias)
            passed = log.passed(named(predicate, log.source.name))
            if len(passed) == len(log.segments):
                continue
            mask = predicate_mask((predicate,), self.fetch(rows), len(rows))
            assert mask is not None
            if passed:
                mask = mask | np.isin(rows.ids[alias] >> 32, list(passed))
            found = mask if found is None else found & mask
        return None if found is None or found.all() else found

    def keep(self, batch: int, stage: Stage, rows: Combination) -> None:
        """Adds combinations of new rows to a view, unless another reader of the view does."""
        if not len(rows):
            return
        key = self.reader.views[stage.joined]
        kept_in, by = self.store.kept.get(key, (-1, ""))
        if kept_in == batch and by != self.name:
            return
        self.store.kept[key] = (batch, self.name)
        self.add(batch, stage, rows)

    def add(self, batch: int, stage: Stage, rows: Combination) -> None:
        """Adds combined rows to a view and to its indexes, also those that only other readers of the view have."""
        if not len(rows):
            return
        key, order = self.reader.views[stage.joined], self.reader.orders[stage.joined]
        view, ends = self.store.views[key], self.kept_ends(rows)
        first = view.append(batch, [rows.ids[alias] for alias in order], int(ends.max()))
        positions = np.arange(first, first + len(rows), dtype=np.int64)
        for index in self._view_indexes(stage.joined):
            ordered = order_keys(index.is_ordered, self.keys(index.terms, rows), positions, rows.starts, ends)
            self.store.indexes[index.key].arrive(batch, ordered)
            if index.is_ordered or len(ordered) != len(rows):
                continue
            if first or ends is not rows.ends:
                ordered = ordered.copy()
                ordered[:, 1] -= np.uint64(first)
                ordered[:, 3] = rows.ends[ordered[:, 1].view(np.int64)].view(np.uint64)
            rows.ordered[index.terms] = ordered

    def kept_ends(self, rows: Combination) -> npt.NDArray[np.int64]:
        """Until when combined rows are of use in a view."""
        return rows.ends

    def _view_indexes(self, aliases: Aliases) -> list[BoundIndex]:
        """The indexes over a view, whoever has them, with their terms in the aliases of this box."""
        if self._readers is not self.store.readers:
            self._readers, self._known_indexes = self.store.readers, {}
        if aliases not in self._known_indexes:
            key, order = self.reader.views[aliases], self.reader.orders[aliases]
            found = {index.key: index for index in self.reader.view_indexes[aliases]}
            for other in self.store.readers:
                for its in (a for a, view in other.views.items() if view == key and other is not self.reader):
                    names = dict(zip(other.orders[its], order, strict=True))
                    for index in other.view_indexes[its]:
                        terms = tuple(in_aliases(term, names) for term in index.terms)
                        found.setdefault(index.key, BoundIndex(index.key, aliases, terms))
            self._known_indexes[aliases] = list(found.values())
        return self._known_indexes[aliases]

    def emit(self, rows: Combination, emit: bool, direction: Direction | None = None) -> Iterator[Found]:
        """What is selected of combined rows, in pieces; or nothing, if the query groups: then its aggregator takes them.
        Those with a row that is too old are left out. What is left counts for its `direction`."""
        if not emit or not len(rows):
            return
        if self._oldest:
            found, rows = len(rows), fresh(self, rows, self._oldest)
            self.statistics.stale_results += found - len(rows)
            if not len(rows):
                return
        if direction is not None:
            direction.take(rows)
        query = self.reader.graph.query
        # Of several inputs all residuals were decided by lookups.
        left = query.residuals if len(query.inputs) == 1 else ()
        if self.aggregator is not None:
            for piece in pieces(self, rows, bounds.FOLD_ROWS, bounds.FOLD_BYTES):
                began = thread_time_ns()
                self.aggregator.take(*selected(query, self.fetch(piece), left))
                self._spent("emit", began)
            return
        for piece in pieces(self, rows, bounds.RESULT_ROWS, bounds.RESULT_BYTES):
            for results in results_of(query, self.fetch(piece), self.statistics, left):
                yield self.reader.query, results


def horizon_us(box: Box, watermark_us: int, emitted_us: int) -> int:
    """What is valid at or after this may still be needed. Groups of a subquery are known when the watermark has passed them,
    so a box over them keeps what it has for a batch longer: that is the watermark of the batch before. So does a box whose
    database looks at the rows of the instants in between."""
    return emitted_us if box.reader.reads_groups or box.reader.is_placed else watermark_us
