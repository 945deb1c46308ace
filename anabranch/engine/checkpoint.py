"""Between a store and its files: what a step added is written, and a store is attached to what a commit names.

Files are named after the batch and a token of the attempt, so that no two attempts ever write the same file; nothing is
changed or overwritten. An attempt writes two files at most: one with the truth, which is new rows, partial rows of groups
and the manifest (`anabranch.control.manifest`); another with what derives from it, runs and rows of views. What is damaged
or missing of the latter is derived again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace

import msgspec
import numpy as np

from anabranch.control.manifest import WHOLE_EVERY, Whole, read_manifest
from anabranch.control.records import (
    LogSegment,
    Manifest,
    PartialSegment,
    RunSegment,
    SlotState,
    ViewBuild,
    ViewSegment,
)
from anabranch.control.sweep import state_prefix
from anabranch.engine.aggregation import BY_KEYS, Aggregator
from anabranch.engine.log import Stored, decode
from anabranch.engine.run import SortedRun, map_run
from anabranch.engine.slices import Keeping, Slice
from anabranch.engine.spine import Spine
from anabranch.engine.store import Build, Store
from anabranch.engine.view import Combined
from anabranch.errors import DamagedStateError, StateError
from anabranch.plan.identity import IndexKey, ViewKey
from anabranch.plan.migration import Strategy
from anabranch.storage.container import ContainerReader, ContainerWriter
from anabranch.storage.filesystem import Filesystem


class Files:
    """The containers of one attempt at one batch."""

    def __init__(self, folder: str, batch: int, attempt: str) -> None:
        prefix = state_prefix(folder, batch, attempt)
        self.log, self.index = ContainerWriter(f"{prefix}.log"), ContainerWriter(f"{prefix}.index")

    def write(self, filesystem: Filesystem) -> tuple[int, int]:
        """Writes them; how many there are, and their bytes."""
        written = [writer for writer in (self.index, self.log) if writer.size_bytes]
        for writer in written:
            writer.write(filesystem)
        return len(written), sum(writer.size_bytes for writer in written)


class Checkpoint:
    """The files of a slot."""

    def __init__(self, store: Store, folder: str, filesystem: Filesystem, reader: ContainerReader) -> None:
        self.store, self.folder, self.filesystem, self.reader = store, folder, filesystem, reader
        self.files_written = self.bytes_written = 0
        """By the last batch."""
        self.files: frozenset[str] = frozenset()
        """All that the state consists of."""
        self._whole: Whole | None = None
        self._predicates: dict[frozenset[str], int] = {}
        """The sets of predicates that segments have passed, numbered."""
        self._most_predicates = 8
        """When there are more, they are numbered anew."""
        self._logs: dict[str, dict[int, LogSegment]] = {}
        self._views: dict[ViewKey, dict[int, ViewSegment]] = {}
        self._fresh_logs: list[LogSegment] = []
        self._fresh_views: list[tuple[ViewKey, ViewSegment]] = []
        self._fresh_runs: set[IndexKey] = set()

    # -- from files --------------------------------------------------------------------------------------------------

    def read(self, manifest: Manifest | None) -> SlotState:
        """What a commit names; nothing, before the first batch."""
        if manifest is None:
            return SlotState()
        state, self._whole = read_manifest(manifest, self.reader)
        self.files = state.files() | {manifest.own.file, self._whole.segment.file}
        self._predicates = {frozenset(passed): number for number, passed in enumerate(state.predicates)}
        return state

    def attach(self, state: SlotState, groups: Mapping[str, tuple[Aggregator, int]]) -> None:
        """Gives an empty store, and the groups of each block, the state that a commit names. With the groups stands the
        watermark of that commit's batch: aggregates at instants before it have been handed out.

        Runs that are not named, missing or damaged are derived from the log, one by one. A view of which that is true, or
        which the plan of the commit did not keep, is recomputed from its parts in the next batch. A damaged log is an error:
        it is the only truth there is.
        """
        for name, (aggregator, emitted_us) in groups.items():
            own = [segment for segment in state.partials if segment.block == name]
            aggregator.restore(((segment, self.reader.segment(segment.data)) for segment in own), emitted_us)
        for segment in state.logs:
            if segment.source in self.store.logs and self.store.is_kept(segment.source):
                self._add_log(segment, state)
        states = self._said(state)
        self._attach_views(state, states)
        indexes = self._indexes(states)
        for run in state.runs:
            key = indexes.get(run.index)
            if key is not None and key.rows not in self.store.waiting:
                spine = self.store.indexes[key].spine(Keeping(run.retention_us, run.unwanted_by))
                with contextlib.suppress(StateError):
                    spine.runs.append(_map_run(run, self.reader))

    def catch_up(self, state: SlotState, groups: Mapping[str, tuple[Aggregator, int]]) -> int | None:
        """Brings a store that stopped some batches ago to what a commit names: those batches are added from their files, and
        their indexes derived. The last batch that the store had; None if it cannot be done, and the store is of no more use.

        What the store has must be what the commit names, file by file: a store that saw a batch of an attempt which lost, or
        batches that are not committed, is refused.
        """
        if not self._agrees(state):
            return None
        last = max((batch for known in self._logs.values() for batch in known), default=-1)
        try:
            for segment in state.logs:
                if segment.source not in self.store.logs:
                    return None
                if self.store.is_kept(segment.source) and segment.batch not in self._logs.get(segment.source, {}):
                    self._add_log(segment, state)
            views = {key.digest: key for key in self.store.views}
            for part in state.views:
                key = views.get(part.view)
                if key is not None and part.batch not in self._views.setdefault(key, {}):
                    self.store.views[key].add(part.batch, self._map_view(part, key))
                    self._views[key][part.batch] = part
            for name, (aggregator, emitted_us) in groups.items():
                if not self._catch_up_groups(name, aggregator, state, emitted_us):
                    return None
        except StateError:
            return None
        self._forget_files(state)
        self._said(state)
        for key in self.store.waiting:
            self._views.get(key, {}).clear()
        return last

    def prepared(self, state: SlotState) -> dict[IndexKey, int]:
        """How far the target of a gradual migration has come in each index."""
        return {key: state.prepared[key.digest] for key in self.store.indexes if key.digest in state.prepared}

    def inherited(self, views: Mapping[ViewKey, ViewKey]) -> None:
        """Goes on with another execution: some views have other keys than before."""
        for new, old in views.items():
            known = self._views.get(old, {})
            self._views[new] = {b: msgspec.structs.replace(s, view=new.digest) for b, s in known.items()}
        self._views = {key: known for key, known in self._views.items() if key in self.store.views}
        self._logs = {name: known for name, known in self._logs.items() if name in self.store.logs}

    def _add_log(self, segment: LogSegment, state: SlotState) -> None:
        stored = self._map_log(
            segment, frozenset(state.predicates[segment.passed]) if state.predicates else frozenset()
        )
        self.store.logs[segment.source].add(segment.batch, stored)
        for reader in self.store.readers:
            reader.watch(segment.source, segment.batch, stored)
        self._logs.setdefault(segment.source, {})[segment.batch] = segment

    def _said(self, state: SlotState) -> dict[ViewKey, ViewKey]:
        """Notes which views a commit does not have, and which it has in part. The keys under which it has the others: a view
        of a parallel track is whole when no old row is left."""
        records, kept = {b.view: b for b in state.builds}, set(state.kept_views)
        tracks = {b.since for b in state.builds if not b.seed}
        self.store.waiting, self.store.builds = set(), {}
        newest = max((segment.batch for segment in state.logs), default=-1)
        found: dict[ViewKey, ViewKey] = {}
        for key in self.store.views:
            if key.digest in kept:
                found[key] = key
                record = records.get(key.digest)
                if record is not None and record.seed:
                    self.store.builds[key] = Build(record.since, record.seed, record.batch, record.row)
                continue
            over = [replace(key, since=since) for since in tracks]
            whole = [k for k in over if k.digest in kept and self.store.is_over(k, self.store.horizon_us(key))]
            if whole and not key.since:
                found[key] = whole[0]
            elif key.since <= newest:
                self.store.waiting.add(key)
        return found

    def _attach_views(self, state: SlotState, known: Mapping[ViewKey, ViewKey]) -> None:
        views = {as_named.digest: key for key, as_named in known.items()}
        for segment in state.views:
            key = views.get(segment.view)
            if key is None or key in self.store.waiting:
                continue
            try:
                self.store.views[key].add(segment.batch, self._map_view(segment, key))
                if segment.view != key.digest:
                    segment = msgspec.structs.replace(segment, view=key.digest)
                self._views.setdefault(key, {})[segment.batch] = segment
            except StateError:
                self.store.waiting.add(key)
                self.store.forget_view(key)
                self._views.pop(key, None)

    def _indexes(self, known: Mapping[ViewKey, ViewKey]) -> dict[str, IndexKey]:
        """The indexes of the store under the names that a commit has for them."""
        found = {}
        for key in self.store.indexes:
            rows = key.rows
            named = replace(key, rows=known.get(rows, rows)) if isinstance(rows, ViewKey) else key
            found[named.digest] = key
        return found

    def _forget_files(self, state: SlotState) -> None:
        """Runs of this store whose files the commit does not name are no longer on disk: they are written again. The others
        have the records that the commit has, by which differences know them."""
        named = {(run.index, run.entries): run for run in state.runs}
        for key, index in self.store.indexes.items():
            for run in index.runs:
                if run.record is not None:
                    run.record = named.get((key.digest, run.record.entries))

    def _catch_up_groups(self, name: str, aggregator: Aggregator, state: SlotState, emitted_us: int) -> bool:
        named = {(s.table, s.batch): s for s in state.partials if s.block == name}
        known = {(t.name, b): p.record for t in aggregator.tables.values() for b, p in t.batches.items()}
        if any(named.get(key, record) != record for key, record in known.items()):
            return False
        for table in aggregator.tables.values():
            for batch, partials in table.batches.items():
                partials.record = named.get((table.name, batch), partials.record)
        for key in sorted(named.keys() - known.keys(), key=lambda k: (k[0] != BY_KEYS, k[1])):
            aggregator.add_stored(named[key], self.reader.segment(named[key].data))
        aggregator.pass_over(emitted_us)
        return True

    def _agrees(self, state: SlotState) -> bool:
        """Whether all that the store still has is what a commit names. (What has ended need not be named any more.)"""
        for name, log in self.store.logs.items():
            known = self._logs.get(name, {})
            for batch in known.keys() - log.segments.keys():
                del known[batch]
        for key, view in self.store.views.items():
            parts = self._views.get(key, {})
            for batch in parts.keys() - view.segments.keys():
                del parts[batch]
        logs = {(s.source, s.batch): s for s in state.logs}
        views = {(s.view, s.batch): s for s in state.views}
        for name, known in self._logs.items():
            for batch, mine in known.items():
                named = logs.get((name, batch))
                # Both have cut a segment where a slice of it has ended: what is left is the same rows.
                is_cut = named is not None and _is_whole(named, self.store.logs[name].segments[batch])
                if not _same_log(named, mine) and (not is_cut or _is_whole(mine, self.store.logs[name].segments[batch])):
                    return False
        if not all(views.get((k.digest, b)) == s for k, parts in self._views.items() for b, s in parts.items()):
            return False
        # From here on the records are those of the commit: differences know them by identity.
        self._logs = {name: {b: logs[name, b] for b in known} for name, known in self._logs.items()}
        self._views = {key: {b: views[key.digest, b] for b in parts} for key, parts in self._views.items()}
        return True

    # -- to files ----------------------------------------------------------------------------------------------------

    def save(
        self,
        batch: int,
        attempt: str,
        groups: Mapping[str, Aggregator],
        versions: Mapping[str, Mapping[str, int]],
        folded: Mapping[str, int],
    ) -> tuple[Manifest, frozenset[str]]:
        """Writes what is not yet on disk. Where all of the slot's state is told, and which files it no longer needs. Of
        blocks on their way home it is told from which batch on rows are `folded`."""
        files = Files(self.folder, batch, attempt)
        self._save_logs(files)
        runs = self._save_runs(files, batch)
        self._save_views(files)
        partials = self._save_partials(files, groups)
        logs = tuple(s for name in sorted(self._logs) for s in self._logs[name].values())
        views = tuple(s for segments in self._views.values() for s in segments.values())
        kept = tuple(key.digest for key in self.store.views if key not in self.store.waiting)
        state = SlotState(
            logs, runs, views, kept, partials, builds=self._build_records(), prepared=self._prepared_records(batch),
            predicates=tuple(tuple(sorted(passed)) for passed in self._predicates),
            versions={name: dict(known) for name, known in versions.items()}, folded=dict(folded),
        )  # fmt: skip
        manifest = self._save_manifest(files, batch, state)
        self.files_written, self.bytes_written = files.write(self.filesystem)
        before, self.files = self.files, state.files() | {manifest.own.file, (manifest.base or manifest.own).file}
        return manifest, before - self.files

    def _save_manifest(self, files: Files, batch: int, state: SlotState) -> Manifest:
        """The manifest: whole, or what is not in the last whole one."""
        whole = self._whole
        if whole is None or not 0 <= batch - whole.batch < WHOLE_EVERY:
            own = files.log.add(msgspec.msgpack.encode(state))
            self._whole = Whole(own, state, batch)
            return Manifest(own, whole_batch=batch)
        own = files.log.add(msgspec.msgpack.encode(whole.difference(state)))
        return Manifest(own, whole.segment, whole.batch)

    def _build_records(self) -> tuple[ViewBuild, ...]:
        found = [ViewBuild(k.digest, b.since, b.seed, b.batch, b.row) for k, b in self.store.builds.items()]
        return tuple(found + [ViewBuild(key.digest, key.since) for key in self.store.views if key.since])

    def _prepared_records(self, batch: int) -> dict[str, int]:
        """The indexes that only the target of a gradual migration needs, and the batch up to which each has been derived."""
        found: dict[str, int] = {}
        for reader in self.store.readers:
            migration = reader.execution.migration
            if migration is not None and migration.strategy is Strategy.GRADUAL:
                for key in reader.by_key.keys() - reader.served_indexes:
                    if (known := self.store.thin.get(key, batch)) >= 0:
                        found[key.digest] = known
        return found

    def _save_partials(self, files: Files, groups: Mapping[str, Aggregator]) -> tuple[PartialSegment, ...]:
        segments = []
        for name, aggregator in groups.items():
            for table in aggregator.tables.values():
                for batch, partials in table.batches.items():
                    if partials.record is None:
                        assert partials.data is not None
                        data = files.log.add(partials.data)
                        rows = len(partials.firsts)
                        partials.record = PartialSegment(name, table.name, batch, rows, partials.last, data)
                    segments.append(partials.record)
        return tuple(segments)

    def _save_logs(self, files: Files) -> None:
        self._fresh_logs = []
        if len(self._predicates) > self._most_predicates:
            self._number_predicates()
        for name, log in self.store.logs.items():
            known = self._logs.setdefault(name, {})
            for batch in [b for b in known if not _is_whole(known[b], log.segments.get(b))]:
                del known[batch]
            for batch in sorted(log.segments.keys() - known.keys()):
                stored = log.segments[batch]
                passed = self._predicates.setdefault(stored.passed, len(self._predicates))
                data, late = files.log.add(stored.data), dict(stored.watermarks)
                rows, start_us = stored.rows.num_rows, stored.start_max_us
                slices = tuple((each.retention_us, each.end, each.start_max_us, each.unwanted_by) for each in stored.slices)
                known[batch] = LogSegment(name, batch, rows, start_us, data, passed, late, 0, slices, stored.kept)
                self._fresh_logs.append(known[batch])

    def _number_predicates(self) -> None:
        """Numbers the sets of predicates anew: some have no segments any more."""
        self._predicates = {}
        for name, known in self._logs.items():
            for batch, segment in known.items():
                if batch in self.store.logs[name].segments:
                    stored = self.store.logs[name].segments[batch]
                    passed = self._predicates.setdefault(stored.passed, len(self._predicates))
                    known[batch] = msgspec.structs.replace(segment, passed=passed)
        self._most_predicates = 2 * len(self._predicates) + 8

    def _save_runs(self, files: Files, batch: int) -> tuple[RunSegment, ...]:
        segments = []
        self._fresh_runs = set()
        for key, keeping, spine in self._spines():
            for run in spine.lasting_runs(batch):
                if run.record is None:
                    run.record = _record(key.digest, run, keeping, files.index)
                    self._fresh_runs.add(key)
                elif (run.record.index, run.record.lo, run.record.hi) != (key.digest, run.lo, run.hi):
                    run.record = msgspec.structs.replace(run.record, index=key.digest, lo=run.lo, hi=run.hi)
                segments.append(run.record)
        return tuple(segments)

    def _spines(self) -> Iterator[tuple[IndexKey, Keeping, Spine]]:
        """The spines of all indexes, with how long their rows are kept."""
        for key, index in self.store.indexes.items():
            for keeping, spine in index.spines.items():
                yield key, keeping, spine

    def _save_views(self, files: Files) -> None:
        self._fresh_views = []
        self._views = {key: self._views.get(key, {}) for key in self.store.views}
        for key, view in self.store.views.items():
            known = self._views[key]
            for batch in known.keys() - view.segments.keys():
                del known[batch]
            for batch in sorted(view.segments.keys() - known.keys()):
                combined = view.segments[batch]
                parts = np.ascontiguousarray(combined.parts)
                data = files.index.add(parts)
                known[batch] = ViewSegment(key.digest, batch, parts.shape[1], combined.end_max_us, data)
                self._fresh_views.append((key, known[batch]))

    def relocate(self) -> None:
        """Moves what was just written from memory to its mapped file: the same bytes, in memory the system can take back."""
        for log in self._fresh_logs:
            self.store.logs[log.source].relocate(log.batch, self.reader.segment(log.data), log)
        for key, _, spine in self._spines():
            if key in self._fresh_runs:
                spine.runs = [
                    _map_run(run.record, self.reader) if run.record and not run.keeps_alive else run for run in spine.runs
                ]
                spine.moved()
        for view, segment in self._fresh_views:
            self.store.views[view].add(segment.batch, self._map_view(segment, view))

    def _map_log(self, record: LogSegment, passed: frozenset[str]) -> Stored:
        if record.first:
            raise StateError(
                f"{record.data.file}: rows of {record.source} in batch {record.batch} begin at position {record.first} of "
                "what the slot has, and this version reads segments that begin at 0: use the one that wrote the checkpoint"
            )
        data = self.reader.segment(record.data)
        rows = decode(data)
        if rows.num_rows != record.rows:
            raise DamagedStateError(
                f"{record.data.file} holds {rows.num_rows} rows of {record.source} in batch {record.batch}, and its record "
                f"says {record.rows}: restore the checkpoint from a backup"
            )
        slices = tuple(Slice(*each) for each in record.slices)
        return Stored(data, rows, record.start_max_us, record, passed, record.watermarks, slices, record.kept)

    def _map_view(self, record: ViewSegment, key: ViewKey) -> Combined:
        data = self.reader.segment(record.parts)
        if data.size != 8 * len(key.inputs) * record.rows:
            raise DamagedStateError(
                f"{record.parts.file}: {data.size} bytes of the view of {key} in batch {record.batch} do not fit the "
                f"{record.rows} rows of its record"
            )
        return Combined(np.frombuffer(data, np.int64).reshape(len(key.inputs), -1), record.end_max_us, data)


def _is_whole(record: LogSegment, stored: Stored | None) -> bool:
    """Whether a record tells all that there is of a segment, and no more."""
    return stored is not None and record.rows == stored.rows.num_rows


def _same_log(one: LogSegment | None, other: LogSegment) -> bool:
    """Whether two records are of the same segment: sets of predicates may be numbered anew."""
    return one is not None and msgspec.structs.replace(one, passed=other.passed) == other


def _record(index: str, run: SortedRun, keeping: Keeping, writer: ContainerWriter) -> RunSegment:
    return RunSegment(
        index=index, tier=run.tier, first_batch=run.first_batch, last_batch=run.last_batch, lo=run.lo, hi=run.hi,
        prefix_bits=run.prefix_bits, rows=run.rows, narrow=run.narrow, has_end=run.has_end, offset_bits=run.offset_bits,
        base_start_us=run.base_start_us, start_max_us=run.start_max_us, end_max_us=run.end_max_us,
        entries=writer.add(run.entries), directory=writer.add(run.directory), retention_us=keeping.retention_us,
        unwanted_by=keeping.unwanted_by,
    )  # fmt: skip


def _map_run(record: RunSegment, reader: ContainerReader) -> SortedRun:
    return map_run(record, reader.segment(record.entries), reader.segment(record.directory))
