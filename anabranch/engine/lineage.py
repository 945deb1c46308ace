"""Lineage: which members of a shared join each row, and each combination of rows, is for (State-Slice, section 6.1).

A *set* of members has a number. When a row comes, each distinct predicate of the members is evaluated once, and the row
gets the number of the set of members that can use it; a row of the empty set is no row of the join. A combination has the
set that its rows have in common, less the members whose windows do not hold any more: member m wants a combination iff for
every input s the time since s, `max(start) - start_s`, is less than its window of s. That time lies between two of the
members' windows, its *age slice*, and each slice has a set too. So what members want of a combination is an AND of a few
sets, which a table of numbers tells; what no member wants goes no further.

Example: q has a window of 5 s, p one of 60 s and the filter `t.size > 100`. A trade of size 20 has the set {q}, one of 300
{q, p}; quotes have {q, p}. A quote that is 7 s younger than the trade of size 300 is in the age slice from 5 to 60 s, whose
set is {p}: the combination is p's. With the trade of size 20 it is nobody's.

Where filters on several streams and many windows make almost every combination's set another one, numbers do not pay: from
then on combinations carry the bits of their sets themselves, a word for 64 members, and rows keep their numbers.

Numbers are not stored: they follow from what a segment holds (`anabranch.engine.reader` says whose rows are late), and are
told again when a slot is attached. So members may change without a file that does. A member that came while others ran is in
no set of a row that came before it: predicates that it alone has are not asked of such rows, whose segments may lack the
columns.

A member over some of the inputs is in no set of rows of the others: what has met one of those is none of its own. It has
fewer streams, and so a watermark of its own: a row that is late for some members is in none of their sets.

Example: r joins trades and quotes, q trades, quotes and orders. Trades and quotes have the set {q, r}, orders {q}. The
watermark of r has come to second 9, that of q to second 6, for orders are behind. A trade of second 7 has the set {q}.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.engine.blame import errors_of
from anabranch.engine.columns import ColumnStore, Ids
from anabranch.engine.combination import Combination
from anabranch.engine.expressions import predicate_mask
from anabranch.engine.kernels.lineage import (
    add_bit,
    age_slices,
    has_members,
    intersect,
    longest_windows,
    number_rows,
)
from anabranch.engine.log import Log, Stored, starts_of
from anabranch.plan.expression import Expr
from anabranch.plan.identity import named
from anabranch.plan.query import BEGINNING_US, FOREVER_US
from anabranch.plan.shared_join import SharedJoin, normal

Numbers = npt.NDArray[np.integer]
"""Sets of members: by number, one for each row; or, with two dimensions, the words of their bits for each row."""

NOBODY = 0
"""The number of the empty set."""

MOST_TABLE = 2048
"""What two sets have in common stands in a table as long as there are so many sets; else combinations carry bits."""

MOST_SETS = 1 << 14
"""When there are more sets, those that no stored row has are forgotten at the end of a batch."""

WORD_BITS = 64


class Sets:
    """Sets of members, numbered as they occur.

    >>> sets = Sets()
    >>> q, both = sets.number(0b01), sets.number(0b11)
    >>> sets.common(np.array([q, both], np.int32), np.array([both, both], np.int32)).tolist() == [q, both]
    True
    """

    def __init__(self) -> None:
        self.masks = [0]
        """The members of each set, as bits."""
        self._numbers = {0: NOBODY}
        self._table = np.full((64, 64), -1, np.int32)

    def __len__(self) -> int:
        return len(self.masks)

    def number(self, mask: int) -> int:
        """The number of a set."""
        found = self._numbers.get(mask)
        if found is None:
            found = self._numbers[mask] = len(self.masks)
            self.masks.append(mask)
            size = len(self._table)
            if found >= size and not self.are_many():
                grown = np.full((2 * size, 2 * size), -1, np.int32)
                grown[:size, :size] = self._table
                self._table = grown
        return found

    def are_many(self) -> bool:
        """Whether there are more sets than a table is made for."""
        return len(self.masks) > MOST_TABLE

    def common(self, left: Numbers, right: Numbers) -> Numbers | None:
        """The sets that two sets each have in common; None if there are too many sets to number them."""
        out = np.empty(len(left), np.int32)
        if not self.are_many() and intersect(self._table, left, right, out):
            unknown = out < 0
            for one, other in np.unique(np.stack([left[unknown], right[unknown]]), axis=1).T.tolist():
                found = self.number(self.masks[one] & self.masks[other])
                if self.are_many():
                    return None
                self._table[one, other] = self._table[other, one] = found
            intersect(self._table, left, right, out)
        return None if self.are_many() else out

    def members(self, numbers: Numbers, count: int) -> npt.NDArray[np.bool_]:
        """For each of some sets and each of `count` members whether it is in it."""
        width = (count + 7) // 8
        packed = np.frombuffer(b"".join(self.masks[n].to_bytes(width, "little") for n in numbers.tolist()), np.uint8)
        bits = np.unpackbits(packed.reshape(len(numbers), width), axis=1, count=count, bitorder="little")
        return bits.view(np.bool_)


@dataclass(frozen=True)
class Asked:
    """A predicate that some members have on an input."""

    predicate: Expr
    text: str
    """As segments name it."""
    members: int
    """Those that have it, as bits."""
    lacking: int
    """All members but these: what is left of a set if a row does not pass."""
    owner: str
    """A query that has it: its errors are that query's."""


@dataclass(frozen=True)
class Ages:
    """The windows of an input at which a combination stops to be some member's, and the set of each slice between them."""

    limits_us: npt.NDArray[np.int64]
    sets: npt.NDArray[np.int32]


class Lineage:
    """The sets of the rows of a shared join in a slot."""

    def __init__(self, shared: SharedJoin) -> None:
        self.shared, self._everybody = shared, (1 << len(shared.members)) - 1
        self._last_came = max(shared.since)
        self._over = {alias: sum(1 << place for place in shared.members_over(alias)) for alias in shared.join.aliases}
        """The members that have each input."""
        self._streams: dict[str, dict[str, int]] = {alias: {} for alias in shared.join.aliases}
        """The members that have each input, by the streams whose watermark is theirs."""
        for alias, by_streams in self._streams.items():
            for place in shared.members_over(alias):
                by_streams[shared.streams[place]] = by_streams.get(shared.streams[place], 0) | 1 << place
        self._asked = {alias: self._predicates(alias) for alias in shared.join.aliases}
        self._known: dict[str, dict[int, Numbers]] = {alias: {} for alias in shared.join.aliases}
        """The sets of the rows of each segment, by input; of inputs that members ask different things of."""
        self._beyond: dict[frozenset[str], int] = {}
        """The members that have some inputs, and others, as bits."""
        self._most_sets = MOST_SETS
        self._begin(Sets())

    def tells_late(self, alias: str) -> bool:
        """Whether members over an input have watermarks of their own: then sets tell whose rows are late."""
        return len(self._streams[alias]) > 1

    def inherit(self, before: Lineage) -> None:
        """Takes over the sets of rows that another lineage knows, in which there are other members: those that both have are
        in the same sets, and a row that came before a member is in none of its sets. Not of an input of which all members
        asked something that not all ask now: rows of the log that did not pass it were in no index, and sets do not tell."""
        if before.shared.members[0] != self.shared.members[0]:
            return  # the inputs have other names
        known = {member: place for place, member in enumerate(before.shared.members)}
        stays = [(known[m], 1 << place) for place, m in enumerate(self.shared.members) if m in known]
        came = [n for m, n in zip(self.shared.members, self.shared.since, strict=True) if m not in known]
        first = min(came, default=None)
        for alias, segments in before._known.items():
            asked, now = ({str(normal(f)) for f in shared.asked[alias]} for shared in (before.shared, self.shared))
            if before.tells_late(alias) != self.tells_late(alias) or not asked <= now:
                continue
            for batch, numbers in segments.items():
                if first is not None and batch >= first:
                    continue
                there, places = np.unique(numbers, return_inverse=True)
                masks = [sum(bit for old, bit in stays if before.sets.masks[n] >> old & 1) for n in there.tolist()]
                self.learn(alias, batch, np.array([self.sets.number(mask) for mask in masks])[places])

    def _begin(self, sets: Sets) -> None:
        self.sets, self._stores = sets, dict[str, ColumnStore]()
        self._words = np.zeros((0, 0), np.uint64)
        self._longest = {alias: np.empty(0, np.int64) for alias in self.shared.join.aliases}
        """The longest window that the members of each set have of an input; -1 where nobody has asked yet."""
        self.everybody = sets.number(self._everybody)
        self._ages = {alias: self._ages_of(self.shared.windows_us(alias)) for alias in self.shared.join.aliases}
        self._even_ages = self._ages_of([max(i.window.length_us for i in m.inputs) for m in self.shared.members])

    def _predicates(self, alias: str) -> tuple[Asked, ...]:
        own, source = self.shared.own_filters[alias], self.shared.join.input(alias).source.name
        having: dict[str, int] = {}
        first: dict[str, tuple[Expr, str]] = {}
        for place, filters in enumerate(own):
            for text, predicate in filters.items():
                having[text] = having.get(text, 0) | 1 << place
                first.setdefault(text, (predicate, self.shared.names[place]))
        return tuple(
            Asked(first[text][0], named(first[text][0], source), members, self._everybody & ~members, first[text][1])
            for text, members in having.items()
        )

    def _ages_of(self, windows_us: Sequence[int]) -> Ages:
        """The age slices of windows of all members. One that does not have the input (0) is in all of them: rows tell."""
        limits = sorted(set(windows_us) - {max(windows_us), 0})
        slices = [sum(1 << m for m, own_us in enumerate(windows_us) if own_us > us or not own_us) for us in (-1, *limits)]
        return Ages(np.array(limits, np.int64), np.array([self.sets.number(mask) for mask in slices], np.int32))

    @cached_property
    def window_us(self) -> int | None:
        """The largest window, if it is that of all inputs, and each member has one window for all its inputs: then the
        oldest row alone decides."""
        longest = {i.window.length_us for i in self.shared.join.inputs}
        is_even = all(len({i.window.length_us for i in m.inputs}) == 1 for m in self.shared.members)
        return min(longest) if is_even and len(longest) == 1 and FOREVER_US not in longest else None

    # -- the sets of rows ----------------------------------------------------------------------------------------------

    def number(
        self,
        alias: str,
        batch: int,
        rows: pa.RecordBatch,
        passed: Collection[str] = (),
        starts: Ids | None = None,
        late_us: Mapping[str, int] | None = None,
    ) -> Numbers | None:
        """The set of each row of an input that came in a batch; None if all members take all rows. Rows have `passed` some
        predicates; those that start before a time in `late_us` are late for the members with such streams."""
        there = self._there(batch) & self._over[alias]
        asked = [each for each in self._asked[alias] if each.text not in passed and each.members & there]
        late = list(self._late(alias, starts, late_us or {}))
        if not asked and not late:
            return None if there == self._everybody else np.full(rows.num_rows, self.sets.number(there), np.int32)
        lacking = [*(each.lacking for each in asked), *(members for members, _ in late)]
        words = np.zeros((-(-len(lacking) // WORD_BITS), rows.num_rows), np.uint64)
        for place, each in enumerate(asked):
            with errors_of(each.owner):
                mask = predicate_mask(
                    (each.predicate,), lambda c: rows.column(rows.schema.get_field_index(c.name)), rows.num_rows
                )
            add_bit(words[place // WORD_BITS], place % WORD_BITS, mask)
        for place, (_, in_time) in enumerate(late, len(asked)):
            add_bit(words[place // WORD_BITS], place % WORD_BITS, in_time)
        local, firsts = np.empty(rows.num_rows, np.int32), np.empty(rows.num_rows, np.int64)
        count = number_rows(words, local, firsts)
        found = np.empty(count, np.int32)
        for place in range(count):
            bits = [int(word) for word in words[:, firsts[place]]]
            mask_of = there
            for at, left in enumerate(lacking):
                if not bits[at // WORD_BITS] >> at % WORD_BITS & 1:
                    mask_of &= left
            found[place] = self.sets.number(mask_of)
        numbers: Numbers = found[local]
        return numbers

    def _late(
        self, alias: str, starts: Ids | None, late_us: Mapping[str, int]
    ) -> Iterator[tuple[int, npt.NDArray[np.bool_]]]:
        """Where some rows are late for some members: those that are left then, and which rows are in time."""
        if starts is None or not self.tells_late(alias):
            return
        for streams, members in self._streams[alias].items():
            in_time = np.asarray(starts >= late_us.get(streams, BEGINNING_US), np.bool_)
            if not in_time.all():
                yield self._everybody & ~members, in_time

    def _there(self, batch: int) -> int:
        """The members that were there when a batch came."""
        if batch >= self._last_came:
            return self._everybody
        return sum(1 << place for place, since in enumerate(self.shared.since) if since <= batch)

    def _is_told(self, alias: str, batches: Collection[int]) -> bool:
        """Whether rows of an input differ in whose they are, given the batches that are stored."""
        has_come = bool(batches) and min(batches) < self._last_came
        return bool(self._asked[alias]) or has_come or self.tells_late(alias)

    def _alike(self, alias: str, count: int) -> Numbers | None:
        """The set of some rows of an input that all have the same; None if it is everybody."""
        over = self._over[alias]
        return None if over == self._everybody else np.full(count, self.sets.number(over), np.int32)

    def learn(self, alias: str, batch: int, numbers: Numbers | None) -> None:
        """Notes the sets of the rows of a segment."""
        if numbers is not None:
            self._known[alias][batch] = numbers.astype(np.uint16 if len(self.sets) <= 1 << 16 else np.uint32)

    def of_segment(self, alias: str, batch: int, stored: Stored) -> Numbers | None:
        """The set of each row of a segment; None if all members take all rows."""
        count = stored.rows.num_rows
        if not self._is_told(alias, (batch,)):
            return self._alike(alias, count)
        if batch not in self._known[alias]:
            starts = starts_of(self.shared.join.input(alias).source, stored.rows)
            numbers = self.number(alias, batch, stored.rows, stored.passed, starts, stored.watermarks)
            self.learn(alias, batch, np.full(count, self.everybody) if numbers is None else numbers)
        # A segment loses the rows at its end that are kept least.
        return self._known[alias][batch][:count]

    def of(self, alias: str, ids: Ids, log: Log) -> Numbers | None:
        """The set of each of some rows; None if all members take all rows."""
        if not self._is_told(alias, log.segments):
            return self._alike(alias, len(ids))
        store, wide = self._stores.get(alias), any(n.dtype == np.uint32 for n in self._known[alias].values())
        if store is None or (wide and store.type == pa.uint16()):
            store = self._stores[alias] = ColumnStore(pa.uint32() if wide else pa.uint16())
        if len(store.known) != len(log.segments):
            store.known.intersection_update(log.segments)
            for batch in sorted(log.segments.keys() - store.known):
                numbers = self.of_segment(alias, batch, log.segments[batch])
                if numbers is None:
                    numbers = np.full(log.segments[batch].rows.num_rows, self.everybody)
                self._known[alias][batch] = numbers = np.ascontiguousarray(numbers, np.uint32 if wide else np.uint16)
                store.learn(batch, pa.array(numbers))
        found: Numbers = store.gather(ids, {}).to_numpy()
        return found

    def longest_us(self, alias: str, numbers: Numbers) -> npt.NDArray[np.int64]:
        """The longest window that the members of each set have of an input."""
        known, windows = self._longest[alias], np.array(self.shared.windows_us(alias))
        if numbers.ndim == 2:
            of_bits = np.empty(len(numbers), np.int64)
            longest_windows(numbers, np.argsort(-windows, kind="stable"), windows, of_bits)
            return of_bits
        if len(known) < len(self.sets):
            known = self._longest[alias] = np.concatenate([known, np.full(2 * len(self.sets) - len(known), -1)])
        there = np.flatnonzero(np.bincount(numbers))
        if len(new := there[known[there] < 0]):
            known[new] = np.where(self.sets.members(new, len(windows)), windows, 0).max(axis=1)
        longest: npt.NDArray[np.int64] = known[numbers]
        return longest

    def watermarks(self, alias: str, numbers: Numbers, known: Mapping[str, int]) -> npt.NDArray[np.int64]:
        """The watermarks of the members of each set, as bits: what is known of their streams."""
        bits = [(members, known.get(streams, 0)) for streams, members in self._streams[alias].items()]
        found = np.zeros(len(self.sets), np.int64)
        for number in np.flatnonzero(np.bincount(numbers)).tolist():
            for members, each in bits:
                if self.sets.masks[number] & members:
                    found[number] |= each
        own: npt.NDArray[np.int64] = found[numbers]
        return own

    def forget(self, alias: str, alive: Collection[int]) -> None:
        """Leaves out segments that are gone."""
        for batch in self._known[alias].keys() - set(alive):
            del self._known[alias][batch]
        if alias in self._stores:
            self._stores[alias].known.intersection_update(alive)

    def bits(self, sets: Numbers) -> npt.NDArray[np.uint64]:
        """The words of the bits of sets."""
        if sets.ndim == 2:
            return sets.astype(np.uint64, copy=False)
        if len(self._words) < len(self.sets):
            width = -(-len(self.shared.members) // WORD_BITS)
            packed = b"".join(mask.to_bytes(8 * width, "little") for mask in self.sets.masks)
            self._words = np.frombuffer(packed, np.uint64).reshape(-1, width)
        found: npt.NDArray[np.uint64] = self._words[sets]
        return found

    def settle(self) -> None:
        """Ends a batch: sets do not grow with batches. Where there are very many, sets that no stored row has are forgotten,
        and the others numbered anew; next time when there are twice as many."""
        if len(self.sets) <= self._most_sets:
            return
        before = self.sets
        self._begin(Sets())
        for known in self._known.values():
            for batch, numbers in known.items():
                there, places = np.unique(numbers, return_inverse=True)
                new = np.array([self.sets.number(before.masks[n]) for n in there.tolist()])
                known[batch] = new[places].astype(np.uint16 if len(self.sets) <= 1 << 16 else np.uint32)
        self._most_sets = max(MOST_SETS, 2 * len(self.sets))

    # -- the sets of combinations --------------------------------------------------------------------------------------

    def combined(
        self, sets: Numbers | None, parts: Mapping[str, Ids], logs: Mapping[str, Log], starts: Ids, ends: Ids
    ) -> Numbers | None:
        """The sets of combinations: of rows that have `sets`, with rows of other inputs. Where all windows of a member are
        alike, its window is looked at; else where they are kept in a view, and at the end of the route (`in_time`)."""
        for alias, ids in parts.items():
            sets = self._both(sets, self.of(alias, ids, logs[alias]))
        if (window_us := self.window_us) is not None:
            # A combination ends with its oldest row.
            sets = self._young(sets, self._even_ages, starts - ends + window_us)
        return sets

    def in_time(self, rows: Combination, logs: Mapping[str, Log]) -> Numbers | None:
        """The sets of combinations, less the members whose windows do not hold."""
        sets = rows.sets
        if self.window_us is None:
            for alias, ids in rows.ids.items():
                if len(self._ages[alias].limits_us):
                    sets = self._young(sets, self._ages[alias], rows.starts - logs[alias].times(ids))
        return sets

    def ends_us(self, rows: Combination, logs: Mapping[str, Log]) -> Ids:
        """Until when a view keeps combinations: by the longest windows of the members of their sets. As the join has
        them they end later, if others have longer windows."""
        if rows.sets is None:
            return rows.ends
        if (window_us := self.window_us) is not None:
            if not self.tells_ages_by_ends:
                return rows.ends
            return rows.ends - window_us + self.longest_us(next(iter(rows.ids)), rows.sets)
        ends = rows.ends.copy()
        for alias, ids in rows.ids.items():
            longest_us = self.longest_us(alias, rows.sets)
            has_end = longest_us != FOREVER_US
            np.minimum(ends, logs[alias].times(ids) + np.where(has_end, longest_us, 0), out=ends, where=has_end)
        return ends

    def ends_in_join(self, ends: Ids, parts: Mapping[str, Ids], logs: Mapping[str, Log]) -> Ids:
        """Until when combinations are valid as the join has them: of rows with some `ends`, with combined rows of a view,
        which tells until when it keeps these (`ends_us`)."""
        assert self.window_us is not None
        for alias, ids in parts.items():
            ends = np.minimum(ends, logs[alias].times(ids) + self.window_us)
        return ends

    @cached_property
    def tells_ages_by_ends(self) -> bool:
        """Whether the ends of combinations tell their ages; where all members have one window, none is asked for."""
        return self.window_us is not None and len(self._even_ages.limits_us) > 0

    def members_beyond(self, inputs: frozenset[str]) -> int:
        """The members that have some inputs, and others, as bits."""
        if inputs not in self._beyond:
            self._beyond[inputs] = sum(1 << place for place in self.shared.beyond(inputs))
        return self._beyond[inputs]

    def of_members(self, sets: Numbers | None, members: int, count: int) -> Numbers:
        """What is left of sets, of so many combinations, if only some members (as bits) are looked at."""
        found = self._both(sets, np.full(count, self.sets.number(members), np.int32))
        assert found is not None
        return found

    def _young(self, sets: Numbers | None, ages: Ages, age_us: npt.NDArray[np.int64]) -> Numbers | None:
        if not len(ages.limits_us):
            return sets
        slices = np.empty(len(age_us), np.int32)
        age_slices(age_us, ages.limits_us, slices)
        return self._both(sets, ages.sets[slices])

    def _both(self, one: Numbers | None, other: Numbers | None) -> Numbers | None:
        if one is None or other is None:
            return other if one is None else one
        if one.ndim == other.ndim == 1 and (found := self.sets.common(one, other)) is not None:
            return found
        return self.bits(one) & self.bits(other)


def wanted(sets: Numbers) -> npt.NDArray[np.bool_]:
    """Which of some sets have a member."""
    if sets.ndim == 1:
        return np.asarray(sets != NOBODY, np.bool_)
    found = np.empty(len(sets), np.bool_)
    has_members(sets, found)
    return found
