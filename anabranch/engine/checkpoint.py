"""Between a box and its files: what a step added is written, and a box is attached to what a commit names.

Files are named after the batch and a token of the attempt, so that no two attempts ever write the same file; nothing is
changed or overwritten. One file holds parts that live about equally long: the logs of sources with windows of a like
length, the runs of one tier, the views. So a file is seldom kept for the sake of a small part of it.
"""

from __future__ import annotations

import msgspec
import numpy as np

from anabranch.control.records import LogSegment, RunSegment, SlotState, ViewSegment
from anabranch.engine.box import Box
from anabranch.engine.log import Stored, decode
from anabranch.engine.run import Run, map_run
from anabranch.engine.view import Combined, View
from anabranch.errors import StateError
from anabranch.storage.container import ContainerReader, ContainerWriter
from anabranch.storage.filesystem import Filesystem


class Files:
    """The containers of one attempt at one batch, by kind."""

    def __init__(self, folder: str, batch: int, attempt: str) -> None:
        self.prefix = f"{folder}/{batch:010d}-{attempt}"
        self.writers: dict[str, ContainerWriter] = {}

    def of(self, kind: str) -> ContainerWriter:
        if kind not in self.writers:
            self.writers[kind] = ContainerWriter(f"{self.prefix}.{kind}")
        return self.writers[kind]


class Checkpoint:
    """The files of one box."""

    def __init__(self, box: Box, folder: str, filesystem: Filesystem, reader: ContainerReader) -> None:
        self.box, self.folder, self.filesystem, self.reader = box, folder, filesystem, reader
        self._logs: dict[tuple[str, int], LogSegment] = {}
        self._views: dict[tuple[str, int], ViewSegment] = {}
        self._fresh_logs: list[tuple[str, int]] = []
        self._fresh_views: list[tuple[str, int]] = []
        self._fresh_runs: set[str] = set()

    def attach(self, state: SlotState, watermark_us: int) -> bool:
        """Gives a new box the state that a commit names. Returns whether all of it could be used as it is.

        Indexes and views that are missing, damaged or of another plan are derived again from the log. A damaged log is
        an error: it is the only truth there is.
        """
        for segment in state.logs:
            log = self.box.state.logs.get(segment.source)
            if log is not None:
                data = self.reader.segment(segment.data)
                log.add(segment.batch, Stored(data, decode(data), segment.start_max_us, segment))
                self._logs[segment.source, segment.batch] = segment
        if self._attach_derived(state):
            return True
        rebuild(self.box, watermark_us)
        return False

    def _attach_derived(self, state: SlotState) -> bool:
        views = self._named_views()
        if {r.index for r in state.runs} - self.box.state.indexes.keys() or {
            s.view for s in state.views
        } - views.keys():
            return False
        if state.logs and not self._covers(state):
            return False
        try:
            for run in state.runs:
                self.box.state.indexes[run.index].spine.runs.append(_map_run(run, self.reader))
            for segment in state.views:
                views[segment.view].add(segment.batch, self._map_view(segment, views[segment.view]))
                self._views[segment.view, segment.batch] = segment
        except StateError:
            self._views.clear()
            return False
        return True

    def _covers(self, state: SlotState) -> bool:
        """Whether the runs are those of this plan: every index over a source that has rows is there, and every view."""
        indexed = {r.index for r in state.runs}
        logged = {s.source for s in state.logs}
        return all(
            index.name in indexed or (index.source is not None and index.source.name not in logged)
            for index in self.box.state.indexes.values()
        )

    def save(self, batch: int, attempt: str) -> SlotState:
        """Writes what is not yet on disk, and returns what names all of the box's state."""
        files = Files(self.folder, batch, attempt)
        self._save_logs(files)
        runs = self._save_runs(files)
        self._save_views(files)
        for writer in files.writers.values():
            writer.write(self.filesystem)
        statistics = self.box.statistics
        statistics.files_written = len(files.writers)
        statistics.bytes_written = sum(w.size_bytes for w in files.writers.values())
        return SlotState(tuple(self._logs.values()), runs, tuple(self._views.values()))

    def _save_logs(self, files: Files) -> None:
        self._fresh_logs = []
        for name, log in self.box.state.logs.items():
            kind = f"log{self.box.state.retention_us[name].bit_length()}"
            known = {batch for source, batch in self._logs if source == name}
            for batch in known - log.segments.keys():
                del self._logs[name, batch]
            for batch in sorted(log.segments.keys() - known):
                stored = log.segments[batch]
                segment = files.of(kind).add(stored.data)
                self._logs[name, batch] = LogSegment(
                    name, batch, stored.rows.num_rows, stored.start_max_us, (self.box.state.cell,), segment
                )
                self._fresh_logs.append((name, batch))

    def _save_runs(self, files: Files) -> tuple[RunSegment, ...]:
        segments = []
        self._fresh_runs = set()
        for name, index in self.box.state.indexes.items():
            for run in index.spine.runs:
                if run.record is None:
                    run.record = _record(name, run, files.of(f"run{run.tier}"))
                    self._fresh_runs.add(name)
                elif run.record.lo != run.lo or run.record.hi != run.hi:
                    run.record = msgspec.structs.replace(run.record, lo=run.lo, hi=run.hi)
                segments.append(run.record)
        return tuple(segments)

    def _save_views(self, files: Files) -> None:
        self._fresh_views = []
        for view in self.box.state.views.values():
            known = {batch for name, batch in self._views if name == view.name}
            for batch in known - view.segments.keys():
                del self._views[view.name, batch]
            for batch in sorted(view.segments.keys() - known):
                parts = np.ascontiguousarray(view.segments[batch].parts)
                segment = files.of("view").add(parts)
                end_max_us = view.segments[batch].end_max_us
                self._views[view.name, batch] = ViewSegment(view.name, batch, parts.shape[1], end_max_us, segment)
                self._fresh_views.append((view.name, batch))

    def relocate(self) -> None:
        """Moves what was just written from memory to its mapped file: the same bytes, in memory the system can take back."""
        for name, batch in self._fresh_logs:
            segment = self._logs[name, batch]
            self.box.state.logs[name].relocate(batch, self.reader.segment(segment.data), segment)
        for name in self._fresh_runs:
            spine = self.box.state.indexes[name].spine
            spine.runs = [run if run.keeps_alive else self._mapped(run) for run in spine.runs]
            spine.moved()
        views = self._named_views()
        for name, batch in self._fresh_views:
            views[name].add(batch, self._map_view(self._views[name, batch], views[name]))

    def _mapped(self, run: Run) -> Run:
        assert run.record is not None
        return _map_run(run.record, self.reader)

    def _map_view(self, record: ViewSegment, view: View) -> Combined:
        data = self.reader.segment(record.parts)
        return Combined(np.frombuffer(data, np.int64).reshape(len(view.aliases), -1), record.end_max_us, data)

    def _named_views(self) -> dict[str, View]:
        return {view.name: view for view in self.box.state.views.values()}


def rebuild(box: Box, watermark_us: int) -> None:
    """Derives all indexes and views from the log, batch by batch."""
    for index in box.state.indexes.values():
        index.spine.clear()
    for view in box.state.views.values():
        view.clear()
    for batch in sorted({b for log in box.state.logs.values() for b in log.segments}):
        box.replay(batch, watermark_us)


def _record(name: str, run: Run, writer: ContainerWriter) -> RunSegment:
    return RunSegment(
        index=name, tier=run.tier, first_batch=run.first_batch, last_batch=run.last_batch, lo=run.lo, hi=run.hi,
        prefix_bits=run.prefix_bits, rows=run.rows, narrow=run.narrow, has_end=run.has_end, offset_bits=run.offset_bits,
        base_start_us=run.base_start_us, start_max_us=run.start_max_us, end_max_us=run.end_max_us,
        entries=writer.add(run.entries), directory=writer.add(run.directory),
    )  # fmt: skip


def _map_run(record: RunSegment, reader: ContainerReader) -> Run:
    return map_run(record, reader.segment(record.entries), reader.segment(record.directory))
