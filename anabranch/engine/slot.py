"""A query in one slot, in the form that it has at the time (`anabranch.plan.eager.Forms`).

While its groups go below a join, or above it again, there may be two forms (002, chapter 14):

- by *moving state*, the new form takes over the logs that both have, and folds the stored rows of the grouped input into its
  groups. Upwards that cannot be: groups below a join keep no rows;
- on a *parallel track*, the old form keeps the rows that the grouped input has brought so far, and the new one gets those to
  come. Both get the rows of all other inputs. What both give of a group at an instant is put together: the *SGB operator*.
  When no old row of the grouped input is valid any more, the old form has nothing more to give, and is dropped.

Each combination has one row of the grouped input, an old or a new one, so each is counted once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec
import pyarrow as pa

from anabranch.control.records import SlotState, Statistics
from anabranch.engine.accept import Rows
from anabranch.engine.aggregation import Aggregator
from anabranch.engine.pipeline import ONE_SLOT, Pipeline
from anabranch.errors import StateError
from anabranch.plan.distribution import Distribution, in_form
from anabranch.plan.eager import Forms
from anabranch.plan.migration import Execution
from anabranch.plan.query import FOREVER_US, Query
from anabranch.storage.container import ContainerReader
from anabranch.storage.filesystem import Filesystem


class Slot:
    """The boxes of a query in one slot."""

    def __init__(
        self,
        forms: Forms,
        execution: Execution,
        folder: str,
        filesystem: Filesystem,
        reader: ContainerReader,
        distribution: Distribution = ONE_SLOT,
        cell: int = 0,
    ) -> None:
        self.forms, self.execution, self.reader = forms, execution, reader
        self._folder, self._filesystem, self._distribution, self._cell = folder, filesystem, distribution, cell
        self.pipeline = self._boxes(execution.grouped_input, execution.own)
        self.leaving: Pipeline | None = None
        if execution.leaving is not None:
            self.leaving = self._boxes(execution.leaving.grouped_input, Execution(execution.leaving.plan))
            self._give_parts()

    def _boxes(self, grouped_input: str | None, execution: Execution) -> Pipeline:
        query = self.forms.query(grouped_input)
        distribution = in_form(self._distribution, self.forms.written, query)
        return Pipeline(query, execution, self._folder, self._filesystem, self.reader, distribution, self._cell)

    @property
    def _pipelines(self) -> list[Pipeline]:
        return [self.pipeline] if self.leaving is None else [self.pipeline, self.leaving]

    def _give_parts(self) -> None:
        """While there are two forms, each gives partial values of groups."""
        for pipeline in self._pipelines:
            pipeline.box.gives_parts = self._distribution.groups_span_slots or self.leaving is not None

    # -- from one form to another ------------------------------------------------------------------------------------

    def redirect(self, execution: Execution, state: SlotState, watermark_us: int, emitted_us: int) -> None:
        """Goes on with another execution, before the next batch. `state` is what the last commit names."""
        before, self.execution = self.execution, execution
        if execution.grouped_input == before.grouped_input:
            if execution.leaving is None:
                self.leaving = None
            elif execution.leaving != before.leaving:
                raise StateError(f"slot {self._cell} cannot take up the form it has left")
        else:
            old, self.pipeline = self.pipeline, self._boxes(execution.grouped_input, execution.own)
            grouped = self.forms.grouped(before.grouped_input, execution.grouped_input)
            taken = adopted(state, old.query, self.pipeline.query, grouped.alias)
            self.pipeline.attach(taken, watermark_us, emitted_us)
            self.leaving = old if execution.leaving is not None else None
            if self.leaving is None:
                self._fold(old, grouped.source.name, watermark_us)
        self._give_parts()
        if self.pipeline.execution != execution.own:
            self.pipeline.redirect(execution.own, watermark_us, emitted_us)

    def _fold(self, old: Pipeline, source: str, horizon_us: int) -> None:
        """Moving state downwards: the stored rows of an input become groups."""
        (lower,) = [box for box in self.pipeline.boxes[:-1] if source in box.state.logs]
        for batch, stored in old.box.state.logs[source]:
            lower.fold(batch, source, stored.rows, horizon_us)

    # -- as a pipeline -----------------------------------------------------------------------------------------------

    def attach(self, state: SlotState, watermark_us: int, emitted_us: int) -> None:
        """Takes up what a commit names that was made in the same form."""
        self.pipeline.attach(state, watermark_us, emitted_us)
        if self.leaving is not None:
            if state.leaving is None:
                raise StateError(f"slot {self._cell} has nothing of the form that the query leaves")
            self.leaving.attach(state.leaving, watermark_us, emitted_us)

    def catch_up(self, state: SlotState, watermark_us: int, emitted_us: int) -> bool:
        """Brings boxes that stopped some batches ago to what a commit names; if False, they are of no more use."""
        return self.leaving is None and self.pipeline.catch_up(state, watermark_us, emitted_us)

    def replace_table(self, name: str, batch: int, rows: Rows, watermark_us: int, emitted_us: int) -> None:
        """Takes other rows for a stored table, before the batch is processed."""
        for pipeline in self._pipelines:
            pipeline.replace_table(name, batch, rows, watermark_us, emitted_us)

    def step(
        self,
        batch: int,
        rows: Mapping[str, Rows],
        watermark_us: int,
        emitted_us: int,
        planned_us: int = FOREVER_US,
    ) -> Iterator[pa.RecordBatch]:
        """Processes one batch and gives its results as they are found: partial values of groups, if slots share them. The
        batch is done when the last piece was taken; a slot whose batch was not is of no more use. What two forms have of
        the same groups is put together whole."""
        results = self.pipeline.step(batch, rows, watermark_us, emitted_us, planned_us)
        if self.leaving is None:
            if self._distribution.groups_span_slots:
                results = self._as_written(results, self.execution.grouped_input)
            yield from results
            return
        assert self.execution.leaving is not None
        grouped = self.forms.grouped(self.execution.grouped_input, self.execution.leaving.grouped_input).source.name
        others = {name: given for name, given in rows.items() if name != grouped}
        old = self.leaving.step(batch, others, watermark_us, emitted_us, planned_us)
        parts = [
            *self._as_written(results, self.execution.grouped_input),
            *self._as_written(old, self.execution.leaving.grouped_input),
        ]
        together = parts if self._distribution.groups_span_slots else self.sgb(parts)
        self.pipeline.box.statistics.results = sum(batch.num_rows for batch in together)
        yield from together

    def sgb(self, parts: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Puts together what two forms give of the same groups at the same instants (002, section 14.1.2)."""
        grouping = self.forms.written.grouping
        assert grouping is not None
        return Aggregator(grouping, self.forms.written.row_schema).combine(parts) if parts else []

    @cached_property
    def _parts_schema(self) -> pa.Schema:
        grouping = self.forms.written.grouping
        assert grouping is not None
        return Aggregator(grouping, self.forms.written.row_schema).parts_schema

    def _as_written(self, parts: Iterable[pa.RecordBatch], grouped_input: str | None) -> Iterator[pa.RecordBatch]:
        """Partial values as the query has them as written: what it counts, a form with groups below sums up."""
        if grouped_input is None:
            yield from parts
            return
        grouping = self.forms.written.grouping
        assert grouping is not None
        counted = {f"{i} n": f"{i} low" for i, a in enumerate(grouping.aggregates) if a.function == "count"}
        schema = self._parts_schema
        for batch in parts:
            yield pa.RecordBatch.from_arrays([batch.column(counted.get(n, n)) for n in schema.names], schema=schema)

    def save(self, batch: int, attempt: str) -> SlotState:
        """Writes what is not yet on disk, and returns what names all of the state."""
        state = self.pipeline.save(batch, attempt)
        if self.leaving is not None:
            state = msgspec.structs.replace(state, leaving=self.leaving.save(batch, f"{attempt}-left"))
        return state

    def relocate(self) -> None:
        for pipeline in self._pipelines:
            pipeline.relocate()

    def verify(self) -> None:
        """Checks the invariants of the state in memory; for tests."""
        for pipeline in self._pipelines:
            pipeline.verify()

    @property
    def statistics(self) -> Statistics:
        """What the last batch measured: steps and sources of the form that stays, states and CPU of both."""
        whole = self.pipeline.statistics
        if self.leaving is not None:
            old = self.leaving.statistics
            for name, counts in old.sources.items():
                if name in whole.sources:
                    whole.sources[name].state_rows += counts.state_rows
                    whole.sources[name].state_bytes += counts.state_bytes
            whole.absorb(old)
        return whole


def adopted(state: SlotState, old: Query, new: Query, alias: str) -> SlotState:
    """What another form of a query can go on with (*state matching*): all but the rows of the grouped input, what is joined
    of them, and the groups themselves."""
    kept = {s.name for s in old.sources} & {s.name for s in new.sources}
    blocks = dict(zip((block.name for block in old.blocks), state.blocks, strict=False))
    return SlotState(
        logs=tuple(s for s in state.logs if s.source in kept),
        runs=tuple(r for r in state.runs if alias not in _view_of(r.index)),
        views=tuple(v for v in state.views if alias not in v.view.split(" ")),
        kept_views=tuple(v for v in state.kept_views if alias not in v.split(" ")),
        blocks=tuple(blocks.get(block.name, SlotState()) for block in new.blocks[:-1]),
    )


def _view_of(index: str) -> list[str]:
    """The inputs of the view that an index is over; none if it is over a source.

    >>> _view_of("(a b) by (a.k)"), _view_of("s by (s.k)")
    (['a', 'b'], [])
    """
    return index[1:].partition(")")[0].split(" ") if index.startswith("(") else []
