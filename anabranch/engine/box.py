"""A box: the compiled plan of a query in one slot, with the state it works on.

One batch, in `step`:

1. what has ended by the watermark is purged;
2. the rows of each source are accepted, filtered and appended to its log; each index over a source gets a run of them;
3. for each input in turn, its new rows follow their route: they look up the states that the plan names (`Lookup`), combined
   rows are kept in views, and those that pass the root are results. Then they become visible to the inputs after it. So
   every combination is found exactly once: by the last of its rows to become visible;
4. runs are settled: what arrived becomes a run of tier 0, and the merges that are due are made;
5. if the query groups, what passed the root goes to its aggregator instead, which gives the results of the instants that the
   watermark has passed.

Only row ids travel along a route. Columns are fetched when a key, a residual predicate or the select list asks for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from time import thread_time_ns

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.control.records import SourceStatistics, StateStatistics, Statistics
from anabranch.engine import bounds
from anabranch.engine.accept import Rows, accept
from anabranch.engine.aggregation import Aggregator
from anabranch.engine.allocator import keep_freed_memory
from anabranch.engine.cells import member_mask
from anabranch.engine.combination import Combination, Delta, result_times
from anabranch.engine.expressions import evaluate, predicate_mask
from anabranch.engine.kernels.runs import sort_by_hash
from anabranch.engine.keys import hash_keys
from anabranch.engine.log import Log, Stored, decode, encode, starts_of
from anabranch.engine.lookup import Lookup
from anabranch.engine.ordering import keyed_words, ordered_words, sort_by_word
from anabranch.engine.pieces import pieces
from anabranch.engine.preparation import Allowance, Preparation
from anabranch.engine.run import Words, run_of_batch
from anabranch.engine.sample import sample
from anabranch.engine.spine import Spine
from anabranch.engine.states import ONE_CELL, BoxState, IndexState, InputState
from anabranch.engine.view import View
from anabranch.errors import ValueTooLargeError
from anabranch.plan.expression import Column, Expr, aliases_of, columns_of
from anabranch.plan.grid import Grid
from anabranch.plan.join_graph import Aliases, JoinGraph
from anabranch.plan.migration import Execution
from anabranch.plan.query import BEGINNING_US, FOREVER_US, Derived, Stream
from anabranch.plan.routes import Route, Stage


class Box:
    """The engine of one query in one slot."""

    def __init__(
        self,
        graph: JoinGraph,
        execution: Execution,
        grid: Grid = ONE_CELL,
        cell: int = 0,
        parted: frozenset[str] = frozenset(),
        gives_parts: bool = False,
    ) -> None:
        keep_freed_memory()
        self.graph, self.execution = graph, execution
        self.state = BoxState(graph, execution, grid, cell, parted)
        self.preparation = Preparation(self)
        self.lookup = Lookup(self)
        self.gives_parts = gives_parts
        """Whether groups have rows elsewhere too: then results are partial values (`Aggregator.combine`)."""
        self.aggregator: Aggregator | None = None
        if graph.query.grouping is not None:
            self.aggregator = Aggregator(graph.query.grouping, graph.query.row_schema)
        self.statistics = Statistics()
        self.deltas: dict[str, Delta] = {}
        """The new rows of each input in this batch."""
        self.sorted_rows: dict[str, Words] = {}
        """The same as indexes have them, in the order of their keys."""
        self.visible: set[str] = set()
        """The inputs whose new rows can be found already."""
        self._found: dict[Aliases, list[Combination]] = {}

    def redirect(self, execution: Execution, horizon_us: int) -> None:
        """Goes on with another execution. What both keep is shared, what only the old one had is dropped (that is safe, for
        all of it follows from the logs: 002, section 12.1.4), and what is lacking is recomputed in the batches to come: in
        the next one, as far as results need it."""
        before, known = self.state, self.preparation
        complete = set(known.kept_views()) - (known.parallel_views() if known.left() else set())
        goes_on = execution.migration is not None and execution.migration == self.execution.migration
        builds, self.execution = known.builds, execution
        self.state = BoxState(self.graph, execution, before.grid, before.cell, before.parted, before, horizon_us)
        self.preparation = Preparation(self)
        fresh = self.preparation.parallel_views()
        for aliases in fresh if not goes_on else ():
            self.state.forget_view(aliases)
        lacking = {v for v in self.state.views if v not in complete and v not in fresh}
        self.preparation.lacks(lacking, {v: b for v, b in builds.items() if v in self.state.views and v not in fresh})
        self.preparation.complete_indexes(horizon_us)

    def step(
        self,
        batch: int,
        rows: Mapping[str, Rows],
        watermark_us: int,
        horizon_us: int,
        planned_us: int = FOREVER_US,
    ) -> Iterator[pa.RecordBatch]:
        """Processes one batch, and gives its results as they are found, in pieces. The batch is done, and statistics and
        state are those behind it, when the last piece was taken. What is not valid at or after the horizon is purged: that
        is the watermark, or the one of the batch before if groups of a subquery come in, which are known as late as that."""
        self._begin(horizon_us)
        self.preparation.advance(batch, horizon_us)
        began = thread_time_ns()
        stored = {}
        for name, log in self.state.logs.items():
            if name in rows:
                stored[name] = self._accept(log, rows[name], watermark_us, planned_us)
        self._spent("accept", began)
        for piece in self._run(batch, stored, horizon_us, emit=True, fresh=True):
            self.statistics.results += piece.num_rows
            yield piece
        if self.aggregator is not None:
            began = thread_time_ns()
            self.aggregator.settle(batch)
            advance = self.aggregator.advance_parts if self.gives_parts else self.aggregator.advance
            for piece in advance(watermark_us):
                self._spent("aggregate", began)
                self.statistics.results += piece.num_rows
                yield piece
                began = thread_time_ns()
            self._spent("aggregate", began)
        self.statistics.preparing = self.preparation.done
        self.statistics.preparing.left = self.preparation.left()
        self._measure()

    def replay(self, batch: int, horizon_us: int) -> None:
        """Derives indexes and views from the log of one batch; nothing is emitted."""
        self._begin(horizon_us)
        stored = {name: log.segments[batch].rows for name, log in self.state.logs.items() if batch in log.segments}
        for _ in self._run(batch, stored, horizon_us, emit=False):
            raise AssertionError("a replay gives results")

    def fold(self, batch: int, name: str, rows: pa.RecordBatch, horizon_us: int) -> None:
        """Takes stored rows of a batch that is over into groups; nothing is emitted."""
        assert self.aggregator is not None
        self._begin(horizon_us)
        for _ in self._run(batch, {name: rows}, horizon_us, emit=True):
            raise AssertionError("groups give results before the watermark has passed them")
        self.aggregator.settle(batch)

    def replace_table(self, name: str, batch: int, rows: Rows, horizon_us: int) -> None:
        """Takes other rows for a stored table. What is kept of it is derived anew, and nothing emitted: rows that have met
        the old ones do not meet the new ones again."""
        log = self.state.logs[name]
        log.clear()
        self._begin(horizon_us)
        stored = self._accept(log, rows, horizon_us)
        if stored.num_rows:
            data = encode(stored)
            log.add(batch, Stored(data, decode(data), BEGINNING_US))
        self.derive(horizon_us)

    def _begin(self, horizon_us: int) -> None:
        self.statistics = Statistics(sources={name: SourceStatistics() for name in self.state.logs})
        self.sorted_rows, self.deltas, self.visible = {}, {}, set()
        began = thread_time_ns()
        self.state.purge(horizon_us)
        self._spent("purge", began)

    def _spent(self, what: str, began_ns: int) -> None:
        self.statistics.cpu_ns[what] = self.statistics.cpu_ns.get(what, 0) + thread_time_ns() - began_ns

    # -- rows come in ------------------------------------------------------------------------------------------------

    def _accept(self, log: Log, rows: Rows, watermark_us: int, planned_us: int = FOREVER_US) -> pa.RecordBatch:
        """The rows of a source that some input of the query can use."""
        # Groups of a subquery are never late, nor early: they are results.
        limits = BEGINNING_US, FOREVER_US
        if isinstance(log.source, Stream) and not isinstance(log.source, Derived):
            limits = watermark_us, log.source.early_after_us(planned_us)
        accepted = accept(log.source, rows, self.state.read_columns[log.source.name], *limits)
        counts = self.statistics.sources[log.source.name]
        counts.rows, counts.late_rows, counts.untimed_rows = accepted.seen, accepted.late, accepted.untimed
        counts.early_rows = accepted.early
        if not isinstance(log.source, Derived):
            counts.largest_time_us = accepted.largest_time_us
        batch, wanted = accepted.rows, None
        for group in self.state.filters[log.source.name]:
            mask = self._mask(group, batch)
            if mask is None:
                wanted = None
                break
            wanted = mask if wanted is None else wanted | mask
        if wanted is not None and not wanted.all():
            batch = batch.filter(pa.array(wanted))
        counts.stored_rows = batch.num_rows
        return batch.select(log.schema.names)

    def _mask(self, filters: tuple[Expr, ...], rows: pa.RecordBatch) -> npt.NDArray[np.bool_] | None:
        return predicate_mask(filters, lambda c: rows.column(rows.schema.get_field_index(c.name)), rows.num_rows)

    def _members(self, input_state: InputState, rows: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Which rows are in this cell for the sake of an input: others came for another input over the same source."""

        def fetch(column: Column) -> pa.Array:
            return rows.column(rows.schema.get_field_index(column.name))

        times = pa.array(starts_of(input_state.source, rows))
        return member_mask(self.state.grid, self.state.cell, input_state.alias, fetch, times, rows.num_rows)

    def _run(
        self, batch: int, stored: Mapping[str, pa.RecordBatch], horizon_us: int, emit: bool, fresh: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Takes rows along their routes, and gives results as they are found. `fresh` rows have just passed the filters of
        some input over their source."""
        began = thread_time_ns()
        for name, segment in stored.items():
            if segment.num_rows:
                self._append(batch, self.state.logs[name], segment, fresh)
        self._spent("index", began)
        # Stored tables first: no row of a stream is there before them.
        ways = zip(self.state.inputs, self.state.routes, strict=True)
        for input_state, route in sorted(ways, key=lambda way: isinstance(way[0].source, Stream)):
            delta = self.deltas.get(input_state.alias)
            if delta is not None and len(delta.starts):
                rows = delta.combination(batch)
                yield from self._follow(batch, route, 0, rows, emit)
                yield from self._follow_target(batch, input_state.alias, rows, emit)
            self.visible.add(input_state.alias)
        began = thread_time_ns()
        for index in self.state.indexes.values():
            index.spine.settle(batch, horizon_us)
        self._spent("settle", began)
        if self.state.passing_log is not None:
            self.state.passing_log.clear()

    def _append(self, batch: int, log: Log, rows: pa.RecordBatch, fresh: bool) -> None:
        """Adds rows to a log, and to every index over it."""
        if batch not in log.segments and self.state.keeps_rows:
            data = encode(rows)
            rows = decode(data)
            log.add(batch, Stored(data, rows, int(starts_of(log.source, rows).max())))
        elif not self.state.keeps_rows:
            # They are not in a log to be fetched from: only those that count go on.
            mask = self._of_input(log, self.state.inputs[0], rows, fresh)
            rows = rows if mask is None else rows.filter(pa.array(mask))
        starts = starts_of(log.source, rows)
        for input_state in self.state.inputs:
            if input_state.source is log.source:
                self.deltas[input_state.alias] = self._delta(log, input_state, rows, starts, fresh)
        for index in self.state.indexes.values():
            if index.source is not log.source:
                continue
            delta = self.deltas[index.aliases[0]]
            if len(delta.starts):
                ordered = self._order(index, delta.combination(batch), delta.positions)
                if len(ordered):
                    index.spine.arrive(run_of_batch(batch, ordered, False, index.spine.retention_us))
                self.sorted_rows[index.name] = ordered
        for alias, term in self.graph.sampled_terms:
            if self.state.input(alias).source is log.source:
                self._sample(batch, alias, term)

    def _sample(self, batch: int, alias: str, term: Expr) -> None:
        """Notes some keys of the new rows of an input."""
        own = self.state.own_index(alias, (term,))
        if own is not None and own.name in self.sorted_rows:
            found = sample(str(term), self.sorted_rows[own.name][:, 0], is_sorted=True)
        else:
            rows = self.deltas[alias].combination(batch)
            found = sample(str(term), hash_keys(self.state.keys((term,), rows), len(rows)), is_sorted=False)
        self.statistics.samples.append(found)

    def _order(self, index: IndexState, rows: Combination, positions: npt.NDArray[np.int64]) -> Words:
        """Rows in the order of the hash of their key in an index; or of the key itself, and without those that have none."""
        if index.is_ordered:
            *keys, term = self.state.keys(index.terms, rows)
            words, starts, ends = ordered_words(term), rows.starts, rows.ends
            if keys:
                words = keyed_words(hash_keys(keys, len(rows)), words, term.type)
            if term.null_count:
                valid = term.is_valid().to_numpy(zero_copy_only=False)
                words, positions, starts, ends = words[valid], positions[valid], starts[valid], ends[valid]
            return sort_by_word(words, positions, starts, ends)
        hashes = hash_keys(self.state.keys(index.terms, rows), len(rows))
        ordered: Words = sort_by_hash(hashes, positions, rows.starts, rows.ends)
        return ordered

    # -- what is derived again ---------------------------------------------------------------------------------------

    def derive(self, horizon_us: int) -> None:
        """Derives all indexes and views from the log, batch by batch."""
        self.preparation.all_derived()
        for index in self.state.indexes.values():
            index.spine.clear()
        for view in self.state.views.values():
            view.clear()
        for batch in sorted({b for log in self.state.logs.values() for b in log.segments}):
            self.replay(batch, horizon_us)

    def derive_index(
        self,
        index: IndexState,
        horizon_us: int,
        allowance: Allowance | None = None,
        after: int = -1,
        known: int = -1,
        until: int | None = None,
    ) -> int | None:
        """Completes an index: what no run shows of batches later than `after`, and up to `until`, is derived from the log or
        the view, batch by batch, for as long as is allowed. The batch that it came to, None if it is done. Batches up to
        `known` were derived before."""
        missing = [b for b in self.missing(index) if b > known]
        left, spine = [b for b in missing if b > after and (until is None or b <= until)], index.spine
        spine.gap = (missing[0], missing[-1]) if missing else None
        batches = sorted(b for b in self._batches(index) if left and b >= left[0] and (until is None or b <= until))
        for batch in batches:
            if left and batch == left[0]:
                rows, positions = self.rows_in(index.aliases, batch)
                if len(rows) and len(ordered := self._order(index, rows, positions)):
                    spine.restore(run_of_batch(batch, ordered, spine.has_end, spine.retention_us))
                missing.remove(left.pop(0))
                spine.gap = (missing[0], missing[-1]) if missing else None
            spine.settle(batch, horizon_us)
            if allowance is not None and allowance.is_spent and batch != batches[-1]:
                return batch
        return None

    def missing(self, index: IndexState) -> list[int]:
        """The batches that an index should show and does not. (One without rows of it has no run, and is among them.)"""
        return sorted(b for b in self._batches(index) if index.spine.lacking(b))

    def rows_in(self, inputs: Aliases, batch: int) -> tuple[Combination, npt.NDArray[np.int64]]:
        """The rows of an input, or of a view, in the segment of a batch, and their positions there."""
        if len(inputs) > 1:
            return self._combined_rows(self.state.views[inputs], batch)
        i = self.state.input(inputs[0])
        log = self.state.logs[i.source.name]
        rows = log.segments[batch].rows
        delta = self._delta(log, i, rows, starts_of(log.source, rows), fresh=False)
        return delta.combination(batch), delta.positions

    def _batches(self, index: IndexState) -> Iterable[int]:
        return self.state.views[index.aliases].segments if index.source is None else self._log_of(index).segments

    def _log_of(self, index: IndexState) -> Log:
        return self.state.logs[self.state.input(index.aliases[0]).source.name]

    def _combined_rows(self, view: View, batch: int) -> tuple[Combination, npt.NDArray[np.int64]]:
        """What a batch added to a view, as far as all parts are still in their logs: the rest has ended."""
        ids = dict(zip(view.aliases, view.segments[batch].parts, strict=True))
        kept = np.ones(view.segments[batch].parts.shape[1], np.bool_)
        for alias, values in ids.items():
            kept &= np.isin(values >> 32, list(self.state.logs[self.state.input(alias).source.name].segments))
        starts, ends = np.full(int(kept.sum()), BEGINNING_US, np.int64), np.full(int(kept.sum()), FOREVER_US, np.int64)
        rows = Combination({alias: values[kept] for alias, values in ids.items()}, starts, ends)
        for alias in view.aliases if len(rows) else ():
            i = self.state.input(alias)
            self.state.log_of(alias).check(rows.ids[alias])
            if isinstance(i.source, Stream):
                part = self.state.logs[i.source.name].times(rows.ids[alias])
                np.maximum(starts, part, out=starts)
                if i.window_us != FOREVER_US:
                    np.minimum(ends, part + i.window_us, out=ends)
        places, passing = np.flatnonzero(kept), self._passing(self.state.passed(view.aliases), rows)
        return (rows, places) if passing is None else (rows.where(passing), places[passing])

    def _delta(
        self, log: Log, input_state: InputState, rows: pa.RecordBatch, starts: npt.NDArray[np.int64], fresh: bool
    ) -> Delta:
        positions = np.arange(rows.num_rows, dtype=np.int64)
        mask = self._of_input(log, input_state, rows, fresh)
        if mask is not None and not mask.all():
            positions = np.flatnonzero(mask)
            starts = starts[positions]
        window_us = input_state.window_us
        ends = np.full(len(starts), FOREVER_US, np.int64) if window_us == FOREVER_US else starts + window_us
        return Delta(input_state.alias, rows, positions, starts, ends)

    def _of_input(
        self, log: Log, input_state: InputState, rows: pa.RecordBatch, fresh: bool
    ) -> npt.NDArray[np.bool_] | None:
        """Which rows of a source are those of an input; None if all are."""
        filters: tuple[Expr, ...] = ()
        if len(self.state.filters[log.source.name]) > 1:
            filters = input_state.filters
        elif not fresh:
            # They may be stored because a select stood above a join (*state filtering*: 002, section 13.1).
            names = set(rows.schema.names)
            filters = tuple(f for f in input_state.selects if all(c.name in names for c in columns_of(f)))
        mask = self._mask(filters, rows)
        if self.state.shares_slot(log.source):
            members = self._members(input_state, rows)
            mask = members if mask is None else mask & members
        return mask

    # -- rows go their way -------------------------------------------------------------------------------------------

    def _follow(
        self, batch: int, route: Route, place: int, rows: Combination, emit: bool
    ) -> Iterator[pa.RecordBatch]:
        """Takes rows through the stages of a route from `place` on: a piece goes all the way before the next is made."""
        if place == len(route.stages):
            if not route.reaches_root:
                return
            yield from self.emit(self.preparation.old_at_root(rows), emit)
            return
        stage = route.stages[place]
        if stage.is_root and not emit:
            return
        for combined in self.stage(route, stage, rows):
            if not stage.is_root:
                began = thread_time_ns()
                self.keep(batch, stage, combined)
                self._spent("views", began)
                if self.state.target_routes:
                    self._found.setdefault(stage.joined, []).append(combined)
            yield from self._follow(batch, route, place + 1, combined, emit)
            # Rows of a view that the plan that a migration goes to has too are kept until they go its way: by their ids.
            combined.fetched.clear()

    def _follow_target(self, batch: int, alias: str, rows: Combination, emit: bool) -> Iterator[pa.RecordBatch]:
        """Takes new rows along their route in the plan that a migration goes to. What that costs is told apart."""
        for route in self.state.target_routes:
            if route.alias == alias:
                began, steps, self.statistics.steps = thread_time_ns(), self.statistics.steps, []
                for piece in self.preparation.follow(batch, route, rows, self._found, emit):
                    self.preparation.done.cpu_ns += thread_time_ns() - began
                    yield piece
                    began = thread_time_ns()
                self.statistics.steps, self._found = steps, {}
                self.preparation.done.cpu_ns += thread_time_ns() - began

    def stage(
        self, route: Route, stage: Stage, rows: Combination, since: int | None = None, step: int = 0
    ) -> Iterator[Combination]:
        """The combinations that the probes of a stage make of some rows, in pieces; with rows that came `since` only."""
        if not len(rows):
            return
        if step == len(stage.probes):
            yield self._selected(stage, rows) if stage.selects else rows
            return
        for found in self.lookup.probe(route, stage, step, rows):
            yield from self.stage(route, stage, self.preparation.new_only(found, since), since, step + 1)

    def _selected(self, stage: Stage, rows: Combination) -> Combination:
        """What the selects leave that stand above a join."""
        began = thread_time_ns()
        passing = self._passing(stage.selects, rows)
        self._spent("select", began)
        return rows if passing is None else rows.where(passing)

    def _passing(self, predicates: Iterable[Expr], rows: Combination) -> npt.NDArray[np.bool_] | None:
        """Which combined rows pass predicates of single inputs; None if all do. A row that was stored without a column of
        one had passed it before."""
        found: npt.NDArray[np.bool_] | None = None
        for predicate in predicates if len(rows) else ():
            (alias,) = aliases_of(predicate)
            log = self.state.logs[self.state.input(alias).source.name]
            passed = frozenset[int]().union(*(log.lacking(c.name) for c in columns_of(predicate)))
            if len(passed) == len(log.segments):
                continue
            mask = predicate_mask((predicate,), self.state.fetch(rows), len(rows))
            assert mask is not None
            if passed:
                mask = mask | np.isin(rows.ids[alias] >> 32, list(passed))
            found = mask if found is None else found & mask
        return None if found is None or found.all() else found

    def keep(self, batch: int, stage: Stage, rows: Combination) -> None:
        """Adds combined rows to a view and to its indexes."""
        if not len(rows):
            return
        view = self.state.views[stage.joined]
        first = view.append(batch, rows.ids, int(rows.ends.max()))
        positions = np.arange(first, first + len(rows), dtype=np.int64)
        for index in self.state.view_indexes[stage.joined]:
            ordered = self._order(index, rows, positions)
            if len(ordered):
                index.spine.arrive(run_of_batch(batch, ordered, True))
            if index.is_ordered:
                continue
            if first:
                ordered = ordered.copy()
                ordered[:, 1] -= np.uint64(first)
            rows.ordered[index.terms] = ordered

    def emit(self, rows: Combination, emit: bool) -> Iterator[pa.RecordBatch]:
        """What is selected of combined rows, in pieces; or nothing, if the query groups: then its aggregator takes them."""
        if not emit or not len(rows):
            return
        if self.aggregator is not None:
            for piece in pieces(self.state, rows, bounds.FOLD_ROWS, bounds.FOLD_BYTES):
                began = thread_time_ns()
                self.aggregator.take(*self._selected_columns(piece))
                self._spent("emit", began)
            return
        for piece in pieces(self.state, rows, bounds.RESULT_ROWS, bounds.RESULT_BYTES):
            yield from self._results(piece)

    def _results(self, rows: Combination) -> Iterator[pa.RecordBatch]:
        began = thread_time_ns()
        try:
            columns, starts, _ = self._selected_columns(rows)
        except pa.ArrowCapacityError as error:
            # An expression makes values much longer than those it is made of.
            if len(rows) == 1:
                raise ValueTooLargeError(f"query {self.graph.query.name}: a value of a single result: {error}") from None
            for first, last in ((0, len(rows) // 2), (len(rows) // 2, len(rows))):
                yield from self._results(rows.slice(first, last))
            return
        self._spent("emit", began)
        if len(starts):
            yield pa.RecordBatch.from_arrays(columns, schema=self.graph.query.output_schema)

    def _selected_columns(
        self, rows: Combination
    ) -> tuple[list[pa.Array], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """What is selected of rows, and their validity."""
        query, starts, ends = self.graph.query, rows.starts, rows.ends
        columns = [evaluate(expr, self.state.fetch(rows), len(rows), lambda: result_times(rows)) for _, expr in query.select]
        if len(self.state.inputs) == 1 and query.residuals:
            mask = predicate_mask(query.residuals, self.state.fetch(rows), len(rows), lambda: result_times(rows))
            if mask is not None and not mask.all():
                kept = pa.array(mask)
                columns, starts, ends = [c.filter(kept) for c in columns], starts[mask], ends[mask]
        return columns, starts, ends

    # -- what it cost ------------------------------------------------------------------------------------------------

    def _measure(self) -> None:
        for name, log in self.state.logs.items():
            self.statistics.sources[name].state_rows = log.rows
            self.statistics.sources[name].state_bytes = log.bytes
        spines: list[Spine] = [i.spine for i in self.state.indexes.values()]
        self.statistics.states = [StateStatistics(s.name, s.rows, s.bytes, len(s.runs)) for s in spines]
        self.statistics.states += [StateStatistics(v.name, v.rows, v.bytes) for v in self.state.views.values()]
        if self.aggregator is not None:
            kept = self.aggregator
            self.statistics.states.append(StateStatistics("groups", kept.partial_rows, kept.bytes))
