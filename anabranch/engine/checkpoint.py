"""Between a box and its files: what a step added is written, and a box is attached to what a commit names.

Files are named after the batch and a token of the attempt, so that no two attempts ever write the same file; nothing is
changed or overwritten. One file holds parts that live about equally long: the logs of sources with windows of a like
length, the runs of one tier, the views. So a file is seldom kept for the sake of a small part of it.
"""

from __future__ import annotations

import contextlib

import msgspec
import numpy as np

from anabranch.control.records import LogSegment, PartialSegment, RunSegment, SlotState, ViewSegment
from anabranch.control.sweep import state_prefix
from anabranch.engine.aggregation import BY_KEYS
from anabranch.engine.box import Box
from anabranch.engine.log import Stored, decode
from anabranch.engine.preparation import Build
from anabranch.engine.run import Run, map_run
from anabranch.engine.view import Combined, View
from anabranch.errors import DamagedStateError, StateError
from anabranch.plan.join_graph import Aliases
from anabranch.plan.migration import Execution
from anabranch.plan.query import BEGINNING_US, Stream
from anabranch.storage.container import ContainerReader, ContainerWriter
from anabranch.storage.filesystem import Filesystem


class Files:
    """The containers of one attempt at one batch, by kind."""

    def __init__(self, folder: str, batch: int, attempt: str) -> None:
        self.prefix = state_prefix(folder, batch, attempt)
        self.writers: dict[str, ContainerWriter] = {}

    def of(self, kind: str) -> ContainerWriter:
        if kind not in self.writers:
            self.writers[kind] = ContainerWriter(f"{self.prefix}.{kind}")
        return self.writers[kind]


class Checkpoint:
    """The files of one box."""

    def __init__(self, box: Box, folder: str, filesystem: Filesystem, reader: ContainerReader) -> None:
        self.box, self.folder, self.filesystem, self.reader = box, folder, filesystem, reader
        self._logs: dict[str, dict[int, LogSegment]] = {name: {} for name in box.state.logs}
        self._views: dict[str, dict[int, ViewSegment]] = {view.name: {} for view in box.state.views.values()}
        self._fresh_logs: list[LogSegment] = []
        self._fresh_views: list[ViewSegment] = []
        self._fresh_runs: set[str] = set()

    def attach(self, state: SlotState, watermark_us: int, emitted_us: int = BEGINNING_US) -> None:
        """Gives a new box the state that a commit names. `emitted_us` is the watermark of that commit's batch: aggregates at
        instants before it have been handed out.

        Runs that are not named, missing or damaged are derived from the log, one by one. A view of which that is true, or
        which the plan of the commit did not keep, is recomputed from its parts in the next batch. A damaged log is an error:
        it is the only truth there is.
        """
        if self.box.aggregator is not None:
            stored = ((segment, self.reader.segment(segment.data)) for segment in state.partials)
            self.box.aggregator.restore(stored, emitted_us)
        for segment in state.logs:
            log = self.box.state.logs.get(segment.source)
            if log is not None:
                log.add(segment.batch, self._map_log(segment))
                self._logs[segment.source][segment.batch] = segment
        self._attach_views(state)
        for run in state.runs:
            index = self.box.state.indexes.get(run.index)
            if index is not None and index.aliases not in self.box.preparation.waiting:
                with contextlib.suppress(StateError):
                    index.spine.runs.append(_map_run(run, self.reader))
        self.box.preparation.complete_indexes(watermark_us, prepared=state.prepared)

    def redirect(self, execution: Execution, horizon_us: int) -> None:
        """Goes on with another execution: what it shares with the one before stays, in memory and on disk."""
        self.box.redirect(execution, horizon_us)
        waiting = {" ".join(v) for v in self.box.preparation.waiting}
        self._views = {
            v.name: self._views.get(v.name, {}) if v.name not in waiting and v.segments else {}
            for v in self.box.state.views.values()
        }

    def catch_up(self, state: SlotState, watermark_us: int, emitted_us: int = BEGINNING_US) -> bool:
        """Brings a box that stopped some batches ago to what a commit names: those batches are added from their files, and
        their indexes derived. Whether that could be done; if not, the box is of no more use.

        What the box has must be what the commit names, file by file: a box that saw a batch of an attempt which lost, or
        batches that are not committed, is refused.
        """
        self.box.state.purge(watermark_us)
        if not self._agrees(state):
            return False
        last = max((batch for known in self._logs.values() for batch in known), default=-1)
        try:
            for segment in state.logs:
                if segment.batch not in self._logs[segment.source]:
                    self.box.state.logs[segment.source].add(segment.batch, self._map_log(segment))
                    self._logs[segment.source][segment.batch] = segment
            views = self._named_views()
            for part in state.views:
                if part.view in views and part.batch not in self._views[part.view]:
                    views[part.view].add(part.batch, self._map_view(part, views[part.view]))
                    self._views[part.view][part.batch] = part
            if not self._catch_up_aggregates(state, emitted_us):
                return False
        except StateError:
            return False
        self._forget_files(state)
        lacking, builds = self._lacking(state)
        self.box.preparation.lacks(lacking, builds)
        # The commit may name what has ended since: it was purged above, and goes again.
        self.box.state.purge(watermark_us)
        self.box.preparation.complete_indexes(watermark_us, last, state.prepared)
        return True

    def _forget_files(self, state: SlotState) -> None:
        """Runs of this box whose files the commit does not name are no longer on disk: they are written again."""
        named = {(run.index, run.entries) for run in state.runs}
        for name, index in self.box.state.indexes.items():
            for run in index.spine.runs:
                if run.record is not None and (name, run.record.entries) not in named:
                    run.record = None

    def _catch_up_aggregates(self, state: SlotState, emitted_us: int) -> bool:
        aggregator = self.box.aggregator
        if aggregator is None:
            return True
        named = {(s.table, s.batch): s for s in state.partials}
        known = {(t.name, b): p.record for t in aggregator.tables.values() for b, p in t.batches.items()}
        if any(named.get(key, record) != record for key, record in known.items()):
            return False
        for key in sorted(named.keys() - known.keys(), key=lambda k: (k[0] != BY_KEYS, k[1])):
            aggregator.add_stored(named[key], self.reader.segment(named[key].data))
        aggregator.pass_over(emitted_us)
        return True

    def _agrees(self, state: SlotState) -> bool:
        """Whether all that the box still has is what a commit names. (What has ended need not be named any more.)"""
        for name, log in self.box.state.logs.items():
            for batch in self._logs[name].keys() - log.segments.keys():
                del self._logs[name][batch]
        for name, view in self._named_views().items():
            for batch in self._views[name].keys() - view.segments.keys():
                del self._views[name][batch]
        logs = {(s.source, s.batch): s for s in state.logs}
        views = {(s.view, s.batch): s for s in state.views}
        return all(logs.get((s.source, s.batch)) == s for known in self._logs.values() for s in known.values()) and all(
            views.get((s.view, s.batch)) == s for parts in self._views.values() for s in parts.values()
        )

    def _attach_views(self, state: SlotState) -> None:
        views = self._named_views()
        lacking, builds = self._lacking(state)
        for segment in state.views:
            view = views.get(segment.view)
            if view is None or view.aliases in lacking:
                continue
            try:
                view.add(segment.batch, self._map_view(segment, view))
                self._views[view.name][segment.batch] = segment
            except StateError:
                lacking.add(view.aliases)
        self.box.preparation.lacks(lacking, builds)
        for aliases in self.box.preparation.waiting:
            self._views[" ".join(aliases)].clear()

    def _lacking(self, state: SlotState) -> tuple[set[Aliases], dict[Aliases, Build]]:
        """The views that a commit does not have, and those that it has in part. Those of a parallel track that begins are
        empty and lack nothing."""
        execution, records = self.box.execution, {b.view: b for b in state.builds}
        since = execution.migration.since if execution.is_parallel and execution.migration is not None else -1
        streams = {name for name, log in self.box.state.logs.items() if isinstance(log.source, Stream)}
        lacking, builds = set[Aliases](), dict[Aliases, Build]()
        for aliases in self.box.state.views:
            name = " ".join(aliases)
            is_parallel = aliases in self.box.preparation.parallel_views()
            record = records.get(name)
            if record is not None and record.seed and not is_parallel and name in state.kept_views:
                builds[aliases] = Build(record.since, tuple(record.seed.split(" ")), record.batch, record.row)
            elif record is not None and not record.seed:
                # When no old row is left, combinations of new rows are all there are.
                is_over = all(s.batch >= record.since for s in state.logs if s.source in streams)
                if record.since != since and not is_over:
                    lacking.add(aliases)
            elif name not in state.kept_views and not is_parallel:
                lacking.add(aliases)
        return lacking, builds

    def save(self, batch: int, attempt: str) -> SlotState:
        """Writes what is not yet on disk, and returns what names all of the box's state."""
        files = Files(self.folder, batch, attempt)
        self._save_logs(files)
        runs = self._save_runs(files, batch)
        self._save_views(files)
        partials = self._save_partials(files)
        for writer in files.writers.values():
            writer.write(self.filesystem)
        statistics = self.box.statistics
        statistics.files_written = len(files.writers)
        statistics.bytes_written = sum(w.size_bytes for w in files.writers.values())
        logs = tuple(s for segments in self._logs.values() for s in segments.values())
        views = tuple(s for segments in self._views.values() for s in segments.values())
        preparation = self.box.preparation
        kept = tuple(" ".join(aliases) for aliases in preparation.kept_views())
        prepared = preparation.prepared_indexes(batch)
        return SlotState(logs, runs, views, kept, partials, builds=preparation.records(), prepared=prepared)

    def _save_partials(self, files: Files) -> tuple[PartialSegment, ...]:
        segments = []
        for table in self.box.aggregator.tables.values() if self.box.aggregator is not None else ():
            for batch, partials in table.batches.items():
                if partials.record is None:
                    assert partials.data is not None
                    data = files.of("partial").add(partials.data)
                    partials.record = PartialSegment(table.name, batch, len(partials.firsts), partials.last, data)
                segments.append(partials.record)
        return tuple(segments)

    def _save_logs(self, files: Files) -> None:
        self._fresh_logs = []
        for name, log in self.box.state.logs.items():
            kind, known = f"log{self.box.state.retention_us[name].bit_length()}", self._logs[name]
            for batch in known.keys() - log.segments.keys():
                del known[batch]
            for batch in sorted(log.segments.keys() - known.keys()):
                stored = log.segments[batch]
                data = files.of(kind).add(stored.data)
                known[batch] = LogSegment(name, batch, stored.rows.num_rows, stored.start_max_us, data)
                self._fresh_logs.append(known[batch])

    def _save_runs(self, files: Files, batch: int) -> tuple[RunSegment, ...]:
        segments = []
        self._fresh_runs = set()
        for name, index in self.box.state.indexes.items():
            for run in index.spine.lasting_runs(batch):
                if run.record is None:
                    run.record = _record(name, run, files.of(f"run{run.tier}"))
                    self._fresh_runs.add(name)
                elif (run.record.index, run.record.lo, run.record.hi) != (name, run.lo, run.hi):
                    run.record = msgspec.structs.replace(run.record, index=name, lo=run.lo, hi=run.hi)
                segments.append(run.record)
        return tuple(segments)

    def _save_views(self, files: Files) -> None:
        self._fresh_views = []
        for view in self.box.state.views.values():
            known = self._views[view.name]
            for batch in known.keys() - view.segments.keys():
                del known[batch]
            for batch in sorted(view.segments.keys() - known.keys()):
                combined = view.segments[batch]
                parts = np.ascontiguousarray(combined.parts)
                data = files.of("view").add(parts)
                known[batch] = ViewSegment(view.name, batch, parts.shape[1], combined.end_max_us, data)
                self._fresh_views.append(known[batch])

    def relocate(self) -> None:
        """Moves what was just written from memory to its mapped file: the same bytes, in memory the system can take back."""
        for log in self._fresh_logs:
            self.box.state.logs[log.source].relocate(log.batch, self.reader.segment(log.data), log)
        for name in self._fresh_runs:
            spine = self.box.state.indexes[name].spine
            spine.runs = [
                _map_run(run.record, self.reader) if run.record and not run.keeps_alive else run for run in spine.runs
            ]
            spine.moved()
        views = self._named_views()
        for view in self._fresh_views:
            views[view.view].add(view.batch, self._map_view(view, views[view.view]))

    def _map_log(self, record: LogSegment) -> Stored:
        data = self.reader.segment(record.data)
        rows = decode(data)
        if rows.num_rows != record.rows:
            raise DamagedStateError(
                f"{record.data.file} holds {rows.num_rows} rows of {record.source} in batch {record.batch}, and its record "
                f"says {record.rows}: restore the checkpoint from a backup"
            )
        return Stored(data, rows, record.start_max_us, record)

    def _map_view(self, record: ViewSegment, view: View) -> Combined:
        data = self.reader.segment(record.parts)
        if data.size != 8 * len(view.aliases) * record.rows:
            raise DamagedStateError(
                f"{record.parts.file}: {data.size} bytes of the view of {view.name} in batch {record.batch} do not fit the "
                f"{record.rows} rows of its record"
            )
        return Combined(np.frombuffer(data, np.int64).reshape(len(view.aliases), -1), record.end_max_us, data)

    def _named_views(self) -> dict[str, View]:
        return {view.name: view for view in self.box.state.views.values()}


def _record(name: str, run: Run, writer: ContainerWriter) -> RunSegment:
    return RunSegment(
        index=name, tier=run.tier, first_batch=run.first_batch, last_batch=run.last_batch, lo=run.lo, hi=run.hi,
        prefix_bits=run.prefix_bits, rows=run.rows, narrow=run.narrow, has_end=run.has_end, offset_bits=run.offset_bits,
        base_start_us=run.base_start_us, start_max_us=run.start_max_us, end_max_us=run.end_max_us,
        entries=writer.add(run.entries), directory=writer.add(run.directory),
    )  # fmt: skip


def _map_run(record: RunSegment, reader: ContainerReader) -> Run:
    return map_run(record, reader.segment(record.entries), reader.segment(record.directory))
