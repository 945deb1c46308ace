"""Between a box and its files: what a step added is written, and a box is attached to what a commit names.

Files are named after the batch and a token of the attempt, so that no two attempts ever write the same file; nothing is
changed or overwritten. One file holds parts that live about equally long: the logs of sources with windows of a like
length, the runs of one tier, the views. So a file is seldom kept for the sake of a small part of it.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from anabranch.control.records import LogSegment, Manifest, RunSegment, SlotState, ViewSegment
from anabranch.engine.box import Box
from anabranch.engine.log import Stored, decode
from anabranch.engine.run import Run, map_run
from anabranch.engine.view import Combined
from anabranch.errors import DamagedStateError
from anabranch.storage.container import ContainerReader, ContainerWriter
from anabranch.storage.filesystem import Filesystem


class Saved(NamedTuple):
    """What a save left: the manifest, and the files it wrote."""

    manifest: Manifest
    files: tuple[str, ...]


class Files:
    """The containers of one attempt at one batch, by kind."""

    def __init__(self, folder: str, batch: int, attempt: str) -> None:
        self.prefix = f"{folder}/{batch:010d}-{attempt}"
        self.writers: dict[str, ContainerWriter] = {}

    def of(self, kind: str) -> ContainerWriter:
        if kind not in self.writers:
            self.writers[kind] = ContainerWriter(f"{self.prefix}.{kind}")
        return self.writers[kind]


def save(box: Box, folder: str, batch: int, attempt: str, filesystem: Filesystem) -> Saved:
    """Writes what is not yet on disk, and returns the manifest that names all of the box's state."""
    files = Files(folder, batch, attempt)
    state = SlotState(_save_logs(box, files), _save_runs(box, files), _save_views(box, files))
    for writer in files.writers.values():
        writer.write(filesystem)
    box.statistics.files_written = len(files.writers)
    box.statistics.bytes_written = sum(w.size_bytes for w in files.writers.values())
    return Saved(Manifest(state, box.statistics), tuple(w.path for w in files.writers.values()))


def _save_logs(box: Box, files: Files) -> tuple[LogSegment, ...]:
    segments = []
    for name, log in box.state.logs.items():
        kind = f"log{box.state.retention_us[name].bit_length()}"
        for batch, stored in log:
            if stored.record is None:
                stored.record = LogSegment(
                    name, batch, stored.rows.num_rows, stored.start_max_us, files.of(kind).add(stored.data)
                )
            segments.append(stored.record)
    return tuple(segments)


def _save_runs(box: Box, files: Files) -> tuple[RunSegment, ...]:
    segments = []
    for name, index in box.state.indexes.items():
        for run in index.spine.runs:
            if run.record is None:
                run.record = _record(name, run, files.of(f"run{run.tier}"))
            elif (run.record.lo, run.record.hi) != (run.lo, run.hi):
                run.record = msgspec.structs.replace(run.record, lo=run.lo, hi=run.hi)
            segments.append(run.record)
    return tuple(segments)


def _record(name: str, run: Run, writer: ContainerWriter) -> RunSegment:
    return RunSegment(
        index=name, tier=run.tier, first_batch=run.first_batch, last_batch=run.last_batch, lo=run.lo, hi=run.hi,
        prefix_bits=run.prefix_bits, rows=run.rows, narrow=run.narrow, has_end=run.has_end, offset_bits=run.offset_bits,
        base_start_us=run.base_start_us, end_max_us=run.end_max_us, entries=writer.add(run.entries),
        directory=writer.add(run.directory),
    )  # fmt: skip


def _save_views(box: Box, files: Files) -> tuple[ViewSegment, ...]:
    segments = []
    for view in box.state.views.values():
        for batch, segment in sorted(view.segments.items()):
            if segment.record is None:
                parts = np.ascontiguousarray(segment.parts)
                segment.record = ViewSegment(
                    view.name, batch, parts.shape[1], segment.end_max_us, files.of("view").add(parts)
                )
            segments.append(segment.record)
    return tuple(segments)


def relocate(box: Box, files: tuple[str, ...], reader: ContainerReader) -> None:
    """Moves what was just written from memory to its mapped file: the same bytes, in memory the system can take back."""
    written = set(files)
    for log in box.state.logs.values():
        for batch, stored in list(log.segments.items()):
            if stored.record is not None and stored.record.data.file in written:
                log.relocate(batch, reader.segment(stored.record.data), stored.record)
    for index in box.state.indexes.values():
        runs = index.spine.runs
        for place, run in enumerate(runs):
            if run.record is not None and run.record.entries.file in written:
                runs[place] = _map(run.record, reader)
        index.spine.moved()
    for view in box.state.views.values():
        for batch, segment in list(view.segments.items()):
            if segment.record is not None and segment.record.parts.file in written:
                view.add(batch, _map_view(segment.record, len(view.aliases), reader))


def attach(box: Box, state: SlotState, reader: ContainerReader, watermark_us: int) -> bool:
    """Gives a new box the state that a commit names. Returns whether all of it could be used as it is.

    Indexes and views that are missing, damaged or of another plan are derived again from the log. A damaged log is an
    error: it is the only truth there is.
    """
    for log_segment in state.logs:
        log = box.state.logs.get(log_segment.source)
        if log is not None:
            data = reader.segment(log_segment.data)
            log.add(log_segment.batch, Stored(data, decode(data), log_segment.start_max_us, log_segment))
    if {r.index for r in state.runs} <= box.state.indexes.keys() and _attach_derived(box, state, reader):
        return True
    rebuild(box, watermark_us)
    return False


def _attach_derived(box: Box, state: SlotState, reader: ContainerReader) -> bool:
    views = {view.name: view for view in box.state.views.values()}
    if {s.view for s in state.views} - views.keys():
        return False
    try:
        for run_segment in state.runs:
            box.state.indexes[run_segment.index].spine.runs.append(_map(run_segment, reader))
        for view_segment in state.views:
            view = views[view_segment.view]
            view.add(view_segment.batch, _map_view(view_segment, len(view.aliases), reader))
    except DamagedStateError:
        return False
    return True


def rebuild(box: Box, watermark_us: int) -> None:
    """Derives all indexes and views from the log, batch by batch."""
    for index in box.state.indexes.values():
        index.spine.clear()
    for view in box.state.views.values():
        view.clear()
    for batch in sorted({b for log in box.state.logs.values() for b in log.segments}):
        box.replay(batch, watermark_us)


def _map(record: RunSegment, reader: ContainerReader) -> Run:
    return map_run(record, reader.segment(record.entries), reader.segment(record.directory))


def _map_view(record: ViewSegment, parts: int, reader: ContainerReader) -> Combined:
    data = reader.segment(record.parts)
    return Combined(np.frombuffer(data, np.int64).reshape(parts, -1), record.end_max_us, record, data)
