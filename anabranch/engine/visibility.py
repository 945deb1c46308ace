"""Who sees what of the state of a slot: the rule, computed plainly, beside what lookups let readers see. For tests.

The rule. A row of a log is *a query's*, as a row of one of its inputs, iff

- its batch is in the range that the reader of the query has of the source; of a stored table, iff it is the reading that
  the reader's versions name;
- it starts at or after the watermark that the query had in that batch (rows of stored tables and of subqueries: always);
- it passes what the query asks of rows of the input: its filters, and that its keys are not NULL;
- it belongs to the cell as a row of the input, where it may be there for another one.

A row is a reader's iff it is its query's; of a shared join, iff it is some member's. `verify` checks of each box of a slot:

- `delta_of` gives the rows of each segment that are the reader's, and no others;
- a lookup of each key in an index over a source finds the rows with that key that are the reader's and have not ended, each
  once, and no others. A row that a select above a join would turn away may be there or not, also in a view;
- each row of a view combines rows of some query that wants the view, valid together, that fulfil the predicates on these
  inputs; and of all such combinations that have not ended none is missing, and none is there twice. A view that is not
  complete yet may lack some. What came before the last batch may be there though nobody wants it any more, and no lookup
  finds it: of a shared join what only members wanted who have left; else what a select turns away that stands at its stream,
  where it may have stood above a join before;
- a lookup in an index over a view finds the rows of the view in the same way.

What lookups let readers see is asked of the lookups themselves (`Lookup.matches`, `Lookup.combined`). What they should see
follows from the logs, from the queries, and from the watermarks that the slot was given, by masks over whole segments and a
join by sorting: neither hashes nor runs, sets of members nor slices have a part in it.

Example: q and p read s, and p's watermark is ahead. In batch 7 it is 60 s, and that of q 50 s. A row of 55 s is stored, as
row 3 of batch 7. For q it must be found by its key, for p it must not; in batch 30 as well, when the slot has been attached
anew and only the segment knows p's watermark. A view of p that has the row is wrong, and so is one of q that lacks what the
row has met.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.engine.arrival import delta_of, mask_of, members_of
from anabranch.engine.box import Box
from anabranch.engine.combination import Combination
from anabranch.engine.expressions import evaluate, predicate_mask
from anabranch.engine.keys import Hashes, hash_keys
from anabranch.engine.log import Stored, starts_of
from anabranch.engine.reader import BoundIndex, InputState, Reader
from anabranch.engine.run import Words
from anabranch.plan.demand import asked_of
from anabranch.plan.expression import Column, Expr, aliases_of, columns_of
from anabranch.plan.identity import ViewKey, named
from anabranch.plan.join_graph import Aliases, JoinGraph
from anabranch.plan.query import BEGINNING_US, FOREVER_US, Derived, Query, Stream, Table

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]

MOST_PAIRS = 1 << 18
"""Whether a view lacks something is not looked at where so many pairs of rows have one key: it would take too long."""


class Wanting(NamedTuple):
    """A query for which a reader reads: its own, or a member of a shared join."""

    name: str
    """Under which the store knows its horizon."""
    query: str
    streams: str
    """By whose watermark its rows count, as segments name it."""
    since: int
    asked: Mapping[str, tuple[Expr, ...]]
    """For each of its inputs what a row must pass."""
    windows_us: Mapping[str, int]


def wanting(reader: Reader) -> tuple[Wanting, ...]:
    """The queries for which a reader reads."""
    if reader.lineage is None:
        return (_wanting(reader.name, reader.query, reader.graph.query, reader.streams, reader.since),)
    shared = reader.lineage.shared
    names = (reader.name, *shared.names[1:])
    whole = zip(names, shared.names, shared.members, shared.streams, shared.since, strict=True)
    return tuple(_wanting(*each) for each in whole)


def _wanting(name: str, of_query: str, query: Query, streams: str, since: int) -> Wanting:
    graph, windows_us = JoinGraph(query), {i.alias: i.window.length_us for i in query.inputs}
    return Wanting(name, of_query, streams, since, {a: asked_of(graph, a) for a in query.aliases}, windows_us)


@dataclass(frozen=True)
class Told:
    """The rows of a segment, by whose they are as rows of one input of a reader."""

    reader: Reader
    ids: Numbers
    starts: Numbers
    own: Mask
    """For each row and each query that wants some whether it is the query's; selects above joins are not asked."""
    passing: Mapping[Expr, Mask]
    """Which rows pass each select that stands above a join."""
    near: Mask
    """Which rows would be some query's if all selects stood above joins."""

    def first(self, count: int) -> Told:
        """What is left where the segment has lost its last rows."""
        if count == len(self.ids):
            return self
        passing = {predicate: mask[:count] for predicate, mask in self.passing.items()}
        return Told(self.reader, self.ids[:count], self.starts[:count], self.own[:count], passing, self.near[:count])


@dataclass(frozen=True)
class Rows:
    """The rows of an input of a box that are its reader's, in the order of their ids."""

    box: Box
    i: InputState
    wanting: tuple[Wanting, ...]
    ids: Numbers
    starts: Numbers
    own: Mask
    passing: Mapping[Expr, Mask]
    near: Numbers
    """The ids of the rows that would be the reader's if all selects stood above joins."""

    def column(self, column: Column) -> pa.Array:
        return self.box.log_of(self.i.alias).column(column.name, self.ids)

    def passes_all(self) -> Mask:
        """Which rows pass all selects."""
        return reduce(np.logical_and, self.passing.values(), np.ones(len(self.ids), np.bool_))

    @cached_property
    def wanted(self) -> Mask:
        """Which rows have not ended for some query that has them."""
        found = np.zeros(len(self.ids), np.bool_)
        for place, each in enumerate(self.wanting):
            if (window_us := each.windows_us.get(self.i.alias)) is not None:
                found |= self.own[:, place] & (_ends(self.starts, window_us) > self.box.store.horizons[each.name])
        return found & self.passes_all()


def _together(several: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.concatenate(several) if several else np.empty(0, np.int64)


def _ends(starts: Numbers, window_us: int) -> Numbers:
    return np.full(len(starts), FOREVER_US, np.int64) if window_us == FOREVER_US else starts + window_us


class Visibility:
    """What was found out about the rows of a slot, so that each segment is looked at once."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str, int], Told] = {}
        self._wanting: dict[Reader, tuple[Wanting, ...]] = {}
        self._watermarks: dict[int, Mapping[str, int]] = {}
        """Those of the queries in the batches after which the slot was verified."""

    def verify(self, boxes: Iterable[Box], batch: int, watermarks: Mapping[str, int]) -> None:
        """Checks what the boxes of a slot see after a batch that was run with some watermarks."""
        self._watermarks[batch], boxes = watermarks, tuple(boxes)
        self._wanting = {box.reader: self._wanting.get(box.reader) or wanting(box.reader) for box in boxes}
        alive: set[int] = set()
        told: dict[tuple[str, str, int], Told] = {}
        for box in boxes:
            rows = {i.alias: self._rows(box, i, told) for i in box.reader.inputs if box.reader.keeps(i)}
            if not box.reader.is_placed:
                self._verify_states(box, rows, batch)
            alive.update(b for alias in rows for b in box.log_of(alias).segments)
        self._told = told
        self._watermarks = {b: each for b, each in self._watermarks.items() if b in alive}

    # -- whose rows are ----------------------------------------------------------------------------------------------

    def _rows(self, box: Box, i: InputState, told: dict[tuple[str, str, int], Told]) -> Rows:
        found, queries = [], self._wanting[box.reader]
        for batch, stored in box.log_of(i.alias):
            key = (box.name, i.alias, batch)
            known = self._told.get(key)
            if known is None or known.reader is not box.reader or len(known.ids) < stored.rows.num_rows:
                known = self._tell(box.reader, i, batch, stored)
            told[key] = known
            found.append(known.first(stored.rows.num_rows))
        ids, starts = _together([each.ids for each in found]), _together([each.starts for each in found])
        own = np.concatenate([each.own for each in found] or [np.empty((0, len(queries)), np.bool_)])
        mine = own.any(axis=1)
        selects = [s.predicate for s in box.reader.selects if s.alias == i.alias]
        passing = {f: _together([each.passing[f] for each in found]).astype(np.bool_)[mine] for f in selects}
        near = _together([each.ids[each.near] for each in found])
        return Rows(box, i, queries, ids[mine], starts[mine], own[mine], passing, near)

    def _tell(self, reader: Reader, i: InputState, batch: int, stored: Stored) -> Told:
        starts, selects = starts_of(i.source, stored.rows), {s.predicate for s in reader.selects}
        own, near = np.zeros((len(starts), len(self._wanting[reader])), np.bool_), np.zeros(len(starts), np.bool_)
        is_shown, is_stream = _is_in_range(reader, i, batch), isinstance(i.source, Stream)
        asking = [(place, each) for place, each in enumerate(self._wanting[reader]) if is_shown and i.alias in each.asked]
        asking = [(place, each) for place, each in asking if not is_stream or batch >= each.since]
        asked = {f for _, each in asking for f in each.asked[i.alias] if f not in selects}
        passing = {f: _passes(f, i, stored) for f in asked}
        for place, each in asking:
            mine = [f for f in each.asked[i.alias] if f not in selects]
            in_time = self._is_in_time(reader, i, batch, stored, each, starts)
            found = reduce(np.logical_and, [passing[f] for f in mine if f not in i.selects], in_time)
            own[:, place] = reduce(np.logical_and, [passing[f] for f in mine if f in i.selects], found)
            near |= found
        above = [f for f in selects if aliases_of(f) == {i.alias}]
        passing = {f: _passes(f, i, stored) if is_shown else np.zeros(len(starts), np.bool_) for f in above}
        given = delta_of(reader, i, batch, stored, starts).positions
        assert np.array_equal(given, np.flatnonzero(own.any(axis=1))), (
            f"{reader.name} takes {len(given)} rows of batch {batch} of {i.source.name} as those of {i.alias}, and "
            f"{int(own.any(axis=1).sum())} are its own"
        )
        return Told(reader, (batch << 32) + np.arange(len(starts), dtype=np.int64), starts, own, passing, near)

    def _is_in_time(self, reader: Reader, i: InputState, batch: int, stored: Stored, each: Wanting, starts: Numbers) -> Mask:
        """Which rows were not late for a query, and belong to the cell."""
        found = np.ones(len(starts), np.bool_)
        if isinstance(i.source, Stream) and not isinstance(i.source, Derived):
            known = self._watermarks.get(batch, {}).get(each.query)
            found &= starts >= (stored.watermarks.get(each.streams, BEGINNING_US) if known is None else known)
        if i.source.name in reader.place.parted:
            found &= members_of(reader, i, stored.rows)
        return found

    # -- what lookups show -------------------------------------------------------------------------------------------

    def _verify_states(self, box: Box, rows: Mapping[str, Rows], batch: int) -> None:
        reader = box.reader
        for index in reader.by_key.values():
            if len(index.aliases) == 1:
                _verify_index(box, index, rows[index.aliases[0]])
        for aliases, key in reader.views.items():
            if key not in box.store.waiting:
                _verify_view(box, aliases, key, rows, batch)


def _is_in_range(reader: Reader, i: InputState, batch: int) -> bool:
    if isinstance(i.source, Table):
        return batch == reader.versions.get(i.source.name, 0)
    first, end = reader.spans.get(i.source.name, (0, batch + 1))
    return first <= batch < end


def _passes(predicate: Expr, i: InputState, stored: Stored) -> Mask:
    """Which rows of a segment pass a predicate. A segment may lack its columns if all its rows had passed when they came."""
    if {column.name for column in columns_of(predicate)} <= set(stored.rows.schema.names):
        mask = mask_of((predicate,), stored.rows)
        assert mask is not None
        return mask
    assert named(predicate, i.source.name) in stored.passed, f"nobody can tell which rows of {i.alias} pass {predicate}"
    return np.ones(stored.rows.num_rows, np.bool_)


def _since_us(horizon_us: int, starts: Numbers) -> int:
    """From when on what is looked up must be valid: from the horizon on, where there is one yet."""
    return horizon_us if horizon_us != BEGINNING_US else int(starts.min()) if len(starts) else 0


def _verify_index(box: Box, index: BoundIndex, rows: Rows) -> None:
    """Of an index over a source."""
    i, store = rows.i, box.store
    keys = [evaluate(term, rows.column, len(rows.ids)) for term in index.terms]
    since_us = _since_us(store.horizons[box.name], rows.starts[rows.starts != BEGINNING_US])
    valid = _have_keys(keys, len(rows.ids))
    hashes = _hashes(keys, valid)
    by, found = _found(box, index, hashes[valid], since_us)
    ids = found.ids[i.alias]
    where = _places(rows.ids, ids)
    foreign = where < 0
    assert not foreign.any(), f"{box.name} finds {int(foreign.sum())} rows by {index.key} that are none of its {i.alias}"
    assert len(np.unique(ids)) == len(ids), f"{box.name} finds rows by {index.key} twice"
    assert valid[where].all(), f"{box.name} finds rows without a key by {index.key}"
    ends = _ends(rows.starts, i.window_us)[where]
    assert (ends > since_us).all(), f"{box.name} finds rows by {index.key} that have ended"
    assert np.array_equal(found.ends, ends), f"{box.name} finds rows by {index.key} that end at another time"
    if by is not None:
        assert np.array_equal(hashes[where], by), f"{box.name} finds rows by {index.key} that have another key"
    is_whole = index.key not in store.thin and store.indexes[index.key].gap is None
    if is_whole or box.rebuild.is_needed(index):
        shown = np.zeros(len(rows.ids), np.bool_)
        shown[where] = True
        lacking = rows.wanted & valid & ~shown
        assert not lacking.any(), f"{box.name} does not find {int(lacking.sum())} rows of its {i.alias} by {index.key}"


def _hashes(keys: list[pa.Array], valid: Mask) -> Hashes:
    """The hashes of keys, 0 where they are not valid."""
    if valid.all():
        return hash_keys(keys, len(valid))
    found, mask = np.zeros(len(valid), np.uint64), pa.array(valid)
    found[valid] = hash_keys([key.filter(mask) for key in keys], int(valid.sum()))
    return found


def _found(box: Box, index: BoundIndex, known: Hashes, since_us: int) -> tuple[Hashes | None, Combination]:
    """What lookups of all keys find that is valid from some time on, and the hash by which each was found (None: in an
    order). Asked for are the hashes that are known, and whatever the runs have."""
    state = box.store.indexes[index.key]
    if index.is_ordered:
        words, highs = np.zeros(1, np.uint64), np.full(1, np.iinfo(np.uint64).max)
    else:
        words, highs = np.unique(np.concatenate([known, *(run.visible()[:, 0] for run in state.runs)])), None
    times = np.full(len(words), since_us, np.int64), np.full(len(words), FOREVER_US, np.int64)
    ordered: Words = np.stack([words, *(each.view(np.uint64) for each in (np.arange(len(words)), *times))], axis=1)
    asking, pieces, sought = Combination({}, *times), list[Combination](), list[Numbers]()
    for matches, _ in box.lookup.matches(index.aliases, state, ordered, highs, asking, visible=True):
        matches, found = box.lookup.combined(index.aliases, asking, matches)
        pieces.append(found)
        sought.append(matches[0])
    ids = {alias: _together([piece.ids[alias] for piece in pieces]) for alias in index.aliases}
    rows = Combination(ids, _together([piece.starts for piece in pieces]), _together([piece.ends for piece in pieces]))
    return (None if index.is_ordered else words[_together(sought)]), rows


def _have_keys(keys: list[pa.Array], count: int) -> Mask:
    masks = [key.is_valid().to_numpy(zero_copy_only=False) for key in keys if key.null_count]
    return reduce(np.logical_and, masks, np.ones(count, np.bool_))


def _places(known: Numbers, ids: Numbers) -> Numbers:
    """Where ids stand among known ones, which are sorted; -1 for others."""
    if not len(known):
        return np.full(len(ids), -1, np.int64)
    places = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    return np.where(known[places] == ids, places, -1)


# -- views -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Combined:
    """Combinations of the rows of some inputs of a box: the places of the rows of each."""

    rows: Mapping[str, Rows]
    places: Mapping[str, Numbers]

    def __len__(self) -> int:
        return len(next(iter(self.places.values())))

    def where(self, mask: Mask) -> Combined:
        return Combined(self.rows, {alias: places[mask] for alias, places in self.places.items()})

    def column(self, column: Column) -> pa.Array:
        rows = self.rows[column.alias]
        return rows.box.log_of(column.alias).column(column.name, rows.ids[self.places[column.alias]])

    def ids_of(self, alias: str) -> Numbers:
        return self.rows[alias].ids[self.places[alias]]

    def starts_of(self, alias: str) -> Numbers:
        return self.rows[alias].starts[self.places[alias]]

    @cached_property
    def starts(self) -> Numbers:
        return _highest([self.starts_of(alias) for alias in self.places])

    @cached_property
    def ends(self) -> Numbers:
        return _least([_ends(self.starts_of(a), self.rows[a].i.window_us) for a in self.places])

    @cached_property
    def codes(self) -> Numbers:
        """A number for each: the same for the same rows."""
        found = np.zeros(len(self), np.int64)
        for alias, places in sorted(self.places.items()):
            found = found * (len(self.rows[alias].ids) + 1) + places
        return found


def _highest(several: Sequence[Numbers]) -> Numbers:
    return reduce(np.maximum, several)


def _least(several: Sequence[Numbers]) -> Numbers:
    return reduce(np.minimum, several)


def _verify_view(box: Box, aliases: Aliases, key: ViewKey, rows: Mapping[str, Rows], batch: int) -> None:
    store, view, order = box.store, box.store.views[key], box.reader.orders[aliases]
    inputs = {alias: rows[alias] for alias in aliases}
    parts = np.concatenate([s.parts for s in view.segments.values()] or [np.empty((len(order), 0), np.int64)], axis=1)
    is_new = _together([np.full(s.parts.shape[1], b == batch) for b, s in view.segments.items()]).astype(np.bool_)
    for place, alias in enumerate(order):
        # What has ended stays as long as the segment of the view, and rows may be gone from their logs.
        there = box.log_of(alias).inside(np.ascontiguousarray(parts[place]))
        parts, is_new = (parts, is_new) if there is None else (parts[:, there], is_new[there])
    kept = Combined(inputs, {a: _places(inputs[a].ids, ids) for a, ids in zip(order, parts, strict=True)})
    foreign = np.logical_or.reduce([places < 0 for places in kept.places.values()])
    may_stay = np.logical_and.reduce([_places(inputs[a].near, ids) >= 0 for a, ids in zip(order, parts, strict=True)])
    wrong = foreign & (is_new | ~may_stay if box.reader.lineage is None else is_new)
    assert not wrong.any(), f"{int(wrong.sum())} rows of the view {key} have parts that are none of {box.name}"
    kept = kept.where(~foreign)
    fits, must = _wanted_of(box, aliases, key, kept)
    assert fits.all(), f"{int((~fits).sum())} rows of the view {key} are no combinations that {box.name} wants"
    assert len(np.unique(kept.codes)) == len(kept), f"the view {key} has rows twice"
    since_us = _since_us(store.horizon_us(key), kept.starts[kept.starts != BEGINNING_US])
    for index in box.reader.view_indexes[aliases]:
        _verify_view_index(box, index, kept, must & (kept.ends > since_us), since_us)
    if key not in store.builds and (all_ := _joined(box, aliases, key, inputs)) is not None:
        _, must = _wanted_of(box, aliases, key, all_)
        lacking = must & ~np.isin(all_.codes, kept.codes)
        assert not lacking.any(), f"the view {key} lacks {int(lacking.sum())} of {int(must.sum())} rows"


def _verify_view_index(box: Box, index: BoundIndex, kept: Combined, must: Mask, since_us: int) -> None:
    keys = [evaluate(term, kept.column, len(kept)) for term in index.terms]
    valid = _have_keys(keys, len(kept))
    _, found = _found(box, index, _hashes(keys, valid)[valid], since_us)
    shown = Combined(kept.rows, {a: _places(kept.rows[a].ids, ids) for a, ids in found.ids.items()})
    there = np.logical_and.reduce([places >= 0 for places in shown.places.values()])
    assert there.all(), f"{box.name} finds rows by {index.key} that are not all its own"
    assert len(np.unique(shown.codes)) == len(shown), f"{box.name} finds rows by {index.key} twice"
    assert np.isin(shown.codes, kept.codes).all(), f"{box.name} finds rows by {index.key} that the view does not have"
    if index.key in box.store.thin or box.store.indexes[index.key].gap is not None:
        return
    lacking = must & valid & ~np.isin(kept.codes, shown.codes)
    assert not lacking.any(), f"{box.name} does not find {int(lacking.sum())} rows by {index.key}"


def _wanted_of(box: Box, aliases: Aliases, key: ViewKey, rows: Combined) -> tuple[Mask, Mask]:
    """Which combinations of rows may stand in a view, and which must as long as it is complete. Of a shared join, rows may
    that members wanted who have left, with their windows; and where one has left a view of a parallel track, old rows."""
    reader, graph, inside = box.reader, box.reader.graph, set(aliases)
    is_one, in_time = reader.lineage is None, rows.starts < rows.ends
    for alias in aliases:
        if isinstance(reader.input(alias).source, Stream):
            in_time &= rows.ids_of(alias) >> 32 >= key.since
    may = in_time.copy() if is_one else np.ones(len(rows), np.bool_)
    for terms in graph.classes:
        values = [evaluate(t, rows.column, len(rows)) for t in terms if aliases_of(t) <= inside]
        for other in values[1:]:
            may &= _equal(values[0], other)
    if len(rows) and (mask := predicate_mask(graph.decided_in(inside), rows.column, len(rows))) is not None:
        may &= mask
    must = may & in_time & (rows.ends > box.store.horizon_us(key))
    for select in reader.selects:
        if select.alias in inside:
            must &= rows.rows[select.alias].passing[select.predicate][rows.places[select.alias]]
    wanted = np.zeros(len(rows), np.bool_)
    for place, each in enumerate(rows.rows[aliases[0]].wanting):
        if not is_one and not inside < each.asked.keys():
            continue  # members over just these inputs take their combinations, and nothing goes on
        mine = np.logical_and.reduce([rows.rows[a].own[rows.places[a], place] for a in aliases])
        ends = [_ends(rows.starts_of(a), each.windows_us[a]) for a in aliases]
        end_us = _least(ends)
        wanted |= mine & (rows.starts < end_us) & (end_us > box.store.horizons[each.name])
    return may, must & wanted


def _equal(left: pa.Array, right: pa.Array) -> Mask:
    same = pc.fill_null(pc.equal(left, right), False)
    if pa.types.is_floating(left.type):
        same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(left), pc.is_nan(right)), False))
    found: Mask = same.to_numpy(zero_copy_only=False)
    return found


def _joined(box: Box, aliases: Aliases, key: ViewKey, rows: Mapping[str, Rows]) -> Combined | None:
    """All combinations of the rows of some inputs that have not ended, are valid together and have one key, as far as keys
    of single inputs tell; None if there are too many."""
    horizon_us = box.store.horizon_us(key)
    alive = {a: np.flatnonzero(_ends(rows[a].starts, rows[a].i.window_us) > horizon_us) for a in aliases}
    left = sorted(aliases, key=lambda a: len(alive[a]))
    first = left.pop(0)
    found = Combined(rows, {first: alive[first]})
    while left:
        terms = {alias: _shared_terms(box.reader.graph, set(found.places), alias) for alias in left}
        alias = max(left, key=lambda a: len(terms[a]))
        left.remove(alias)
        other = Combined(rows, {alias: alive[alias]})
        pairs = _pairs([
            _coded(evaluate(ours, found.column, len(found)), evaluate(theirs, other.column, len(other)))
            for ours, theirs in terms[alias]
        ], len(found), len(other))  # fmt: skip
        if pairs is None:
            return None
        found = Combined(rows, {**{a: p[pairs[0]] for a, p in found.places.items()}, alias: alive[alias][pairs[1]]})
        found = found.where(found.starts < found.ends)
    return found


def _shared_terms(graph: JoinGraph, bound: set[str], alias: str) -> list[tuple[Expr, Expr]]:
    """Terms over inputs that are joined, and over another one, that must be equal."""
    found = []
    for terms in graph.classes:
        ours = [t for t in terms if aliases_of(t) <= bound]
        theirs = [t for t in terms if aliases_of(t) == {alias}]
        if ours and theirs:
            found.append((ours[0], theirs[0]))
    return found


def _coded(left: pa.Array, right: pa.Array) -> tuple[Numbers, Numbers]:
    """Numbers of values, the same for equal ones; other than all of the other side's for NULL."""
    both = pa.concat_arrays([left, right])
    if pa.types.is_floating(both.type):  # 0.0 equals -0.0, and NaN equals NaN
        plain = both.cast(pa.float64()).to_numpy(zero_copy_only=False) + 0.0
        both = pa.array(np.where(np.isnan(plain), np.nan, plain).view(np.int64), mask=~_have_keys([both], len(both)))
    codes = both.dictionary_encode().indices.fill_null(-1).to_numpy().astype(np.int64)
    ours, theirs = codes[: len(left)], codes[len(left) :]
    return ours, np.where(theirs < 0, -2, theirs)


def _pairs(keys: list[tuple[Numbers, Numbers]], count: int, others: int) -> tuple[Numbers, Numbers] | None:
    """The pairs of rows that have equal keys; None if there are too many."""
    ours, theirs = np.zeros(count, np.int64), np.zeros(others, np.int64)
    for left, right in keys:
        ours, theirs = ours * (count + others + 3) + left + 2, theirs * (count + others + 3) + right + 2
        codes = np.unique(np.concatenate([ours, theirs]), return_inverse=True)[1]
        ours, theirs = codes[:count], codes[count:]
    order = np.argsort(theirs, kind="stable")
    first, last = (np.searchsorted(theirs[order], ours, side) for side in ("left", "right"))
    counts = last - first
    if counts.sum() > MOST_PAIRS:
        return None
    places = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
    return np.repeat(np.arange(count), counts), order[places]
