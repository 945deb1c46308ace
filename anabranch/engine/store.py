"""The store of a slot: logs by stream, indexes and views by key. The slot owns them; readers only read.

A state is there as long as some reader wants it (`Store.serve`), and its rows as long as some reader needs them, slice by
slice (`Store.purge`, `anabranch.engine.slices`). Which rows of a shared state a reader may see is told in
`anabranch.engine.reader`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed
from functools import partial

import pyarrow as pa

from anabranch.control.records import Held, StateStatistics
from anabranch.engine.log import Log
from anabranch.engine.reader import Keeper, Reader, columns_read
from anabranch.engine.slices import Index, Keeping, lagging, limits_of
from anabranch.engine.spine import FAN_IN, MAX_TIER
from anabranch.engine.view import View
from anabranch.plan.identity import IndexKey, RowsKey, ViewKey
from anabranch.plan.query import BEGINNING_US, FOREVER_US, Stream, Table


@dataclass
class Build:
    """How far a view is recomputed: see `anabranch.control.records.ViewBuild`. `seed` are places in the view's key."""

    since: int
    seed: tuple[int, ...]
    batch: int
    row: int = -1


@dataclass
class Store:
    """All state of a slot but the partial rows of groups, which their boxes have."""

    logs: dict[str, Log] = field(default_factory=dict)
    indexes: dict[IndexKey, Index] = field(default_factory=dict)
    views: dict[ViewKey, View] = field(default_factory=dict)
    waiting: set[ViewKey] = field(default_factory=set)
    """Views that are not begun: they are empty, and nothing is kept in them."""
    builds: dict[ViewKey, Build] = field(default_factory=dict)
    """Views that are there in part."""
    thin: dict[IndexKey, int] = field(default_factory=dict)
    """Indexes that only the target of a migration needs, and that show old rows up to some batch; rows that come are added
    to them."""
    readers: tuple[Reader, ...] = ()
    horizons: dict[str, int] = field(default_factory=dict)
    """For each reader, and each member of a shared join, the time at or after which what is valid may be of use to it."""
    slices: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """For how long rows of each source are kept, shortest first: by who wants them, and as `told`."""
    windows: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The windows of all who want rows of each source, shortest first."""
    told: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """How new rows of sources are to be cut into slices, as far as that was decided."""
    kept: dict[ViewKey, tuple[int, str]] = field(default_factory=dict)
    """Who keeps the rows of a view: the last batch whose new rows were added to it, and the reader that did."""

    _read: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _viewers: dict[ViewKey, set[str]] = field(default_factory=dict)
    """Who has a use for the rows of each view: readers, and members of shared joins."""
    _keepers: dict[str, set[Keeper]] = field(default_factory=dict)
    """For each source who needs its rows after their batch: readers, and members of shared joins."""

    # -- what is there -----------------------------------------------------------------------------------------------

    @property
    def newest(self) -> int:
        """The newest batch of which rows are stored; -1 if none are."""
        return max((batch for log in self.logs.values() for batch in log.segments), default=-1)

    def serve(self, readers: Sequence[Reader], keeps: Collection[Reader] = ()) -> None:
        """Has what some readers want, and nothing else but what others have who are not replaced yet. What was not there
        before begins empty."""
        self.readers = tuple(readers)
        self._viewers, self._keepers = {}, {}
        for reader in readers:
            for aliases, view in reader.views.items():
                self._viewers.setdefault(view, set()).update(reader.viewers(aliases))
            for i in reader.inputs:
                if reader.keeps(i):
                    self._keepers.setdefault(i.source.name, set()).update(reader.keepers(i))
        sources = {source.name: source for reader in readers for source in reader.sources}
        for name in self.logs.keys() - sources.keys():
            del self.logs[name]
        for source in sources.values():
            self._serve_log(source)
        wanted = {key for reader in readers for key in reader.views.values()}
        for key in self.views.keys() - wanted - {key for reader in keeps for key in reader.views.values()}:
            self.drop_view(key)
        for key in wanted - self.views.keys():
            self.views[key] = View(len(key.inputs), str(key))
            if key.since <= self.newest or not key.since:
                self.waiting.add(key)
        asked = {key for reader in readers for key in reader.by_key}
        for index in self.indexes.keys() - asked - {key for reader in keeps for key in reader.by_key}:
            del self.indexes[index]
            self.thin.pop(index, None)
        for index in asked - self.indexes.keys():
            self.indexes[index] = self._index(index)

    def _serve_log(self, source: Stream | Table) -> None:
        inputs = [(reader, i) for reader in self.readers for i in reader.inputs_over(source.name)]
        kept = [(reader, i) for reader, i in inputs if reader.keeps(i)]
        self.windows[source.name] = tuple(sorted({us for reader, i in kept or inputs for us in reader.windows_us(i)}))
        self.slices[source.name] = limits_of(self.windows[source.name], self.told.get(source.name))
        stored = {c for reader, _ in kept or inputs for c in reader.stored_columns(source)}
        if len({frozenset(i.asked) for _, i in kept}) > 1:
            # Which rows are whose must be told again when they are read.
            stored |= columns_read(f for _, i in kept for f in i.asked.values())
        if isinstance(source, Stream):
            stored.add(source.time)
        elif not stored:
            stored.add(source.fields[0].name)
        schema = pa.schema([pa.field(f.name, f.type) for f in source.fields if f.name in stored])
        if source.name not in self.logs:
            self.logs[source.name] = Log(source, schema)
        self.logs[source.name].schema = schema
        if not kept:
            self.logs[source.name].clear()
        read = stored.union(*(reader.read_columns(source) for reader in self.readers))
        self._read[source.name] = tuple(f.name for f in source.fields if f.name in read)

    def cut_as(self, told: Mapping[str, tuple[int, ...]]) -> None:
        """Has rows that come be cut into slices in another way; those that are there stay as they are."""
        if told != self.told:
            self.told = dict(told)
            self.slices = {name: limits_of(windows, told.get(name)) for name, windows in self.windows.items()}

    def _index(self, key: IndexKey) -> Index:
        return Index(str(key), isinstance(key.rows, ViewKey), key.phase % FAN_IN ** (MAX_TIER - 1))

    def read_columns(self, source: Stream | Table) -> tuple[str, ...]:
        """The columns of a source that must be looked at when rows of it come in."""
        return self._read[source.name]

    def source_indexes(self, source: str) -> list[IndexKey]:
        """The indexes over a source."""
        return [key for key in self.indexes if isinstance(key.rows, RowsKey) and key.rows.source == source]

    # -- one state becomes another -----------------------------------------------------------------------------------

    def take_over(self, old: IndexKey, new: IndexKey, is_shared: bool) -> None:
        """Has the runs of an index serve as those of another; if the old one is to stay too, as copies of them."""
        if is_shared:
            self.indexes[new] = self.indexes[old].copied(str(new), self._index(new).phase)
        else:
            self.indexes[new] = self.indexes.pop(old)
            self.indexes[new].name = str(new)
        if old in self.thin:
            self.thin[new] = self.thin[old] if is_shared else self.thin.pop(old)

    def inherit_view(self, old: ViewKey, new: ViewKey) -> None:
        """Has the rows of a view serve as those of another, which may be added to by itself."""
        self.views[new] = self.views[old].copy(str(new))
        if old in self.waiting:
            self.waiting.add(new)
        if old in self.builds:
            self.builds[new] = changed(self.builds[old])

    def is_kept(self, source: str) -> bool:
        """Whether some reader needs rows of a source after their batch."""
        return any(reader.keeps(i) for reader in self.readers for i in reader.inputs_over(source))

    def drop_view(self, key: ViewKey) -> None:
        del self.views[key]
        self.waiting.discard(key)
        self.builds.pop(key, None)
        self.kept.pop(key, None)

    def forget_view(self, key: ViewKey) -> None:
        """Empties a view and its indexes."""
        self.views[key].clear()
        for index, kept in self.indexes.items():
            if index.rows == key:
                kept.clear()

    def is_over(self, key: ViewKey, horizon_us: int) -> bool:
        """Whether no row is valid any more that a view of a parallel track lacks."""
        logs = [(self.logs[rows.source], window_us) for rows, window_us in key.inputs]
        return not any(_old_segments(log, window_us, key.since, horizon_us) for log, window_us in logs)

    def old_segments(self, reader: Reader, since: int) -> int:
        """How many segments have rows that came before some batch and are still valid for those who go to another plan with
        a reader."""
        going, windows = reader.going, dict[str, int]()
        for i in reader.inputs:
            for each in (keeper for keeper in reader.keepers(i) if keeper.name in going):
                windows[i.source.name] = max(each.window_us, windows.get(i.source.name, 0))
        horizon_us = self.least_us(going)
        return sum(_old_segments(self.logs[name], us, since, horizon_us) for name, us in windows.items())

    # -- what goes ---------------------------------------------------------------------------------------------------

    def purge(self, horizons: dict[str, int]) -> None:
        """Drops what no reader needs any more."""
        self.horizons = horizons
        for name, log in self.logs.items():
            if log.purge(partial(self.over_us, name)):
                for reader in self.readers:
                    reader.forget(name, log.segments.keys())
            for key in self.source_indexes(name):
                self.indexes[key].purge(partial(self.ended_us, key))
            if isinstance(log.source, Table):
                shown = {reader.versions.get(name, 0) for reader in self.readers if reader.inputs_over(name)}
                for batch in [b for b in log.segments if b not in shown]:
                    log.drop(batch)
        for view_key, view in self.views.items():
            view.purge(self.horizon_us(view_key))
        for index, kept in self.indexes.items():
            if isinstance(index.rows, ViewKey):
                kept.purge(partial(self.ended_us, index))

    def over_us(self, source: str, keeping: Keeping, least_us: int = BEGINNING_US) -> int:
        """Rows of a slice of a source that started at or before this are wanted by nobody any more; or would be, if all
        watermarks had come to `least_us`."""
        keepers = self._keepers.get(source, ())
        ended = [self._ended_us(each, least_us) for each in keepers if _may_want(each, keeping)]
        # Where all who wanted rows of a slice are gone, so may the rows be.
        return min(ended, default=FOREVER_US if keepers else BEGINNING_US)

    def _ended_us(self, keeper: Keeper, least_us: int = BEGINNING_US) -> int:
        """Somebody wants no rows any more that started at or before this."""
        if keeper.window_us == FOREVER_US:
            return BEGINNING_US
        return max(BEGINNING_US, max(least_us, self.horizons[keeper.name]) - keeper.window_us)

    def held(self, source: str) -> dict[str, Held]:
        """What is kept of a source because watermarks lag (`anabranch.engine.slices.lagging`), by the streams of each. Rows
        that would be over if none did wait for the one by which they end last."""
        log, keepers = self.logs[source], self._keepers.get(source, ())
        newest = next(reversed(log.segments.values()), None)
        ending_us = [us for us in self.windows[source] if us != FOREVER_US]
        if newest is None or not keepers or not ending_us or not isinstance(log.source, Stream):
            return {}
        watermarks = dict[str, int]()
        for each in keepers:
            watermarks[each.streams] = min(self.horizons[each.name], watermarks.get(each.streams, FOREVER_US))
        classes = lagging(watermarks, newest.start_max_us, ending_us[-1])
        found = {streams: Held() for several in classes for streams in several}
        if not found:
            return {}
        foremost_us = max(watermarks.values())
        ended_us = {keeping: self.over_us(source, keeping, foremost_us) for keeping in log.slice_rows}
        for keeping, rows in log.ended_rows({k: us for k, us in ended_us.items() if us != BEGINNING_US}).items():
            wanting = [each for each in keepers if _may_want(each, keeping)]
            last = min(wanting, key=lambda each: (self._ended_us(each), each.streams), default=None)
            if last is not None and last.streams in found:
                found[last.streams] += Held(waiting=rows)
        for keeping, rows in log.slice_rows.items():
            for streams in keeping.free_of & found.keys():
                found[streams] += Held(free=rows)
        return found

    def horizon_us(self, key: ViewKey) -> int:
        """The least horizon of those who have a use for the rows of a view."""
        return self.least_us(self._viewers[key])

    def least_us(self, names: Iterable[str]) -> int:
        """The least horizon of some readers and members of shared joins."""
        return min([self.horizons[name] for name in names])

    def settle(self, batch: int) -> None:
        """Ends a batch: what arrived at indexes becomes runs, and merges that are due are made."""
        for key, index in self.indexes.items():
            index.settle(batch, partial(self.ended_us, key))

    def ended_us(self, key: IndexKey, keeping: Keeping) -> int:
        """The watermark of a slice of an index: what has ended by then is of no more use."""
        if isinstance(key.rows, ViewKey):
            return self.horizon_us(key.rows)
        over_us, retention_us = self.over_us(key.rows.source, keeping), keeping.retention_us
        if over_us in (BEGINNING_US, FOREVER_US):
            return over_us
        return BEGINNING_US if retention_us == FOREVER_US else max(BEGINNING_US, over_us + retention_us)

    # -- for people and tests ----------------------------------------------------------------------------------------

    def measured(self, readers: Iterable[Reader]) -> list[StateStatistics]:
        """The indexes and views that some readers read."""
        found, of_readers = [], tuple(readers)
        indexes = {key: self.indexes[key] for reader in of_readers for key in reader.by_key}
        for key, index in indexes.items():
            found.append(
                StateStatistics(str(key), "index", index.rows, index.bytes, len(index.runs), key.rows.sources)
            )
        views = {key: self.views[key] for reader in of_readers for key in reader.views.values()}
        for view_key, view in views.items():
            found.append(StateStatistics(str(view_key), "view", view.rows, view.bytes, sources=view_key.sources))
        return found

    def verify(self) -> None:
        """Checks the invariants of the state in memory; for tests."""
        for index in self.indexes.values():
            index.verify()
        for key in self.waiting:
            assert not self.views[key].segments, f"{key} is not begun, and has rows"


def _may_want(keeper: Keeper, keeping: Keeping) -> bool:
    """Whether somebody may want rows of a slice."""
    return keeper.window_us <= keeping.retention_us and keeping.is_for(keeper.streams)


def _old_segments(log: Log, window_us: int, since: int, horizon_us: int) -> int:
    if not isinstance(log.source, Stream):
        return 0
    old = (stored.start_max_us for batch, stored in log.segments.items() if batch < since)
    return sum(1 for start_us in old if window_us == FOREVER_US or start_us + window_us > horizon_us)


def readers_of(readers: Iterable[Reader], source: str) -> list[Reader]:
    """Those that read a source."""
    return [reader for reader in readers if reader.inputs_over(source)]
