"""Slices: rows of a source that are kept equally long, and the indexes over them.

What is kept of a row is decided by who wants it: a row that only a query with a window of one minute wants goes after a
minute, although another query over the same stream keeps its own rows for an hour. So the windows of all who read a source
cut its rows into *slices* by how long they are kept (State-Slice, section 5, calls the chain with a slice for each window
Mem-Opt; section 6 pushes selections into it). In a log the rows of a batch stand in the order of their slices, those that
are kept longest first: where a slice ends, the segment loses its tail, and the ids of the other rows stay as they are. An
index has a spine for each slice.

How finely rows are cut is told in the control record of a batch (`anabranch.share.source_chain` decides about it), and may
be another in the next one; where nothing is told, windows that are nearly alike have one slice (`bounds_of`). Any cut is
exact: a row goes to a slice that is kept at least as long as somebody wants the row, the longest slice is as long as the
longest window (`limits_of`), and each segment says how its own rows are cut. So nothing is rewritten when the cut changes:
rows that come are cut in the new way, and those that are there stay in their slices until these end. After the longest
window no row is left that was cut in the old way. (The paper's split and merge, section 5.3, stop two operators and hand
their queue on; here no batch waits.)

Queries over other streams have watermarks of their own. As long as these go together, slices are by length alone. Where
one of them lags (`lagging`), rows that nobody wants by it are in slices of their own (`Keeping`), however lengths are cut:
they do not wait for it. In a segment the slices stand in the order in which they are to end, as far as one can tell when
the rows come. One that ends sooner after all stays until those behind it end. Where a watermark stands still, and rows are
wanted for longer by one that goes on, that is so of rows that come until it is behind by the difference of the windows.

Example: q keeps all trades for 1 minute, p those with a size over 100 for 60 minutes. The windows are 1 and 60 minutes. Of
1,000 trades of a batch ten are p's: they are rows 0 to 9 of its segment, the others 10 to 999. A minute later the segment
has ten rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from anabranch.engine import bounds
from anabranch.engine.kernels.lineage import number_rows, order_by_number
from anabranch.engine.run import SortedRun, Words, run_of_batch
from anabranch.engine.spine import Spine

BETWEEN = "; "
"""Between the keys of streams (`anabranch.plan.identity.streams_key`), which hold none."""


class Keeping(NamedTuple):
    """How long the rows of a slice are kept: until they are so old by the watermarks of all who want some of them."""

    retention_us: int
    unwanted_by: str = ""
    """By whom none of them is wanted, as streams whose watermark is theirs (`Reader.streams`), with `BETWEEN` them. Who
    comes later with history finds none either: whose rows it takes over has the same streams (`anabranch.plan.history`)."""

    @property
    def free_of(self) -> frozenset[str]:
        """The streams of the watermarks that the rows do not wait for."""
        return frozenset(self.unwanted_by.split(BETWEEN)) if self.unwanted_by else frozenset()

    def is_for(self, streams: str) -> bool:
        """Whether somebody with these streams may want some of the rows."""
        return not self.unwanted_by or streams not in self.free_of


class Slice(NamedTuple):
    """Rows of a segment that are kept equally long."""

    retention_us: int
    end: int
    """The position behind its last row: it begins where the one before it ends."""
    start_max_us: int
    unwanted_by: str = ""

    @property
    def keeping(self) -> Keeping:
        return Keeping(self.retention_us, self.unwanted_by)


class Unwanted(NamedTuple):
    """Which watermarks that lag rows need not wait for."""

    by: tuple[str, ...]
    """As slices tell it (`Keeping.unwanted_by`): nobody, those that are furthest behind, these and the next ones, and so on
    to all that lag."""
    places: npt.NDArray[np.int64]
    """The place of each row among these."""


def lagging(watermarks: Mapping[str, int], newest_us: int, window_us: int) -> list[tuple[str, ...]]:
    """The watermarks that lag, as the streams of each, in classes, those furthest behind first. `newest_us` is when the
    last of the rows starts that come, `window_us` the longest window over their stream that ends.

    A row that waits for the foremost watermark alone is kept for a *stay*: the window, the lateness, and what a batch
    spans (`newest_us + window_us` less that watermark). A watermark that is a stay or more behind the foremost one lags.
    Those that are one to two stays behind are a class, those that are two to four another, and so on. Of more than
    `bounds.MOST_LAGGING` classes the nearest do not count as lagging.

    A row does not wait for the furthest classes by whose watermarks nobody wants it, up to the first class by one of
    whose somebody does; for all others it waits. So what a watermark that stands still holds back is bounded, whatever
    streams are silent, for how long, and how often. Of rows that nobody wants by it, it holds those

    - that came before it lagged: they started less than two stays after it;
    - that somebody wanted by a watermark w of its class, or of one further behind. When the last of these rows came, w
      was at least half as far behind as this one. The rows held back are since this one; those since w, half of them or
      more, were kept then for the sake of who waits for w. So no more than twice as long a time is held as was kept
      anyway.

    Example: windows of 3 s, and batches of 1 s. No row of c comes after second 10, so the watermark of who waits for it
    stays there, while that of who joins a and b alone goes on. Rows of a that start before second 16 or so stay until c
    goes on. Later ones that only a and b want go after 4 seconds.

    All of this is told by the control record and the rows of the batch: a batch that runs again cuts alike.

    >>> lagging({"a, b": 100, "a, c": 98, "a, d": 80, "a, e": -10**6, "a, f": -10**6}, 101, 4)
    [('a, e', 'a, f'), ('a, d',)]
    """
    foremost_us = max(watermarks.values())
    stay_us = max(0, newest_us - foremost_us) + window_us
    classes: dict[int, list[str]] = {}
    for streams in sorted(watermarks):
        if doublings := ((foremost_us - watermarks[streams]) // stay_us).bit_length():
            classes.setdefault(doublings, []).append(streams)
    return [tuple(classes[doublings]) for doublings in sorted(classes, reverse=True)[: bounds.MOST_LAGGING]]


ENDING = Keeping(0)
"""Of rows of views, which have ends of their own."""


def bounds_of(windows_us: Iterable[int]) -> tuple[int, ...]:
    """How long rows are kept, by the windows of those who want them: the lengths of the slices, shortest first. A window
    has the next longer slice if that is not much longer.

    >>> bounds_of([60, 5, 50, 60])
    (5, 60)
    """
    found: list[int] = []
    for window_us in sorted(set(windows_us), reverse=True):
        # The longest are kept as they are: what is merged is kept longer than needed, never shorter.
        if not found or (len(found) < bounds.MOST_SLICES and window_us * bounds.SLICE_RATIO <= found[-1]):
            found.append(window_us)
    return tuple(reversed(found))


def coarse_windows(windows_us: tuple[int, ...], most: int) -> tuple[int, ...]:
    """So many of some windows at most, shortest first: the longest is among them, and the others are even steps apart.

    >>> coarse_windows((1, 2, 3, 4, 5), 3)
    (1, 3, 5)
    """
    step = (len(windows_us) - 1) / (most - 1)
    return tuple(windows_us[round(place * step)] for place in range(most))


def limits_of(windows_us: Collection[int], told_us: Collection[int] | None) -> tuple[int, ...]:
    """How long rows are kept, by the windows of those who want them and what was decided: the lengths of the slices,
    shortest first. What was decided may be of other readers than there are now.

    >>> limits_of([5, 50, 60], (5, 55, 90)), limits_of([5, 50], ()), limits_of([5, 50, 60], None)
    ((5, 55, 60), (50,), (5, 60))
    """
    if told_us is None:
        return bounds_of(windows_us)
    longest_us = max(windows_us)
    return (*sorted({us for us in told_us if 0 < us < longest_us}), longest_us)


class Index:
    """An index over a source, with a spine for each slice; or over a view, whose rows have ends of their own, with one."""

    def __init__(self, name: str, has_end: bool, phase: int) -> None:
        self.name, self.has_end, self.phase = name, has_end, phase
        self.spines: dict[Keeping, Spine] = {}
        """By how long rows are kept; a view has one spine."""
        self._gap: tuple[int, int] | None = None

    def spine(self, keeping: Keeping = ENDING) -> Spine:
        """The spine of a slice."""
        found = self.spines.get(keeping)
        if found is None:
            found = self.spines[keeping] = Spine(self.name, keeping.retention_us, self.has_end, self.phase)
            found.gap = self._gap
        return found

    def copied(self, name: str, phase: int) -> Index:
        """The same runs under another name, to be gone on with by itself."""
        made = Index(name, self.has_end, phase)
        for keeping, spine in self.spines.items():
            other = made.spine(keeping)
            other.phase, other.runs = spine.phase, [replace(run, _row=None) for run in spine.runs]
        made.gap = self.gap
        return made

    @property
    def gap(self) -> tuple[int, int] | None:
        """The first and the last batch whose rows are still to be derived."""
        return self._gap

    @gap.setter
    def gap(self, gap: tuple[int, int] | None) -> None:
        self._gap = gap
        for spine in self.spines.values():
            spine.gap = gap

    @property
    def runs(self) -> list[SortedRun]:
        return [run for spine in self.spines.values() for run in spine.runs]

    @property
    def rows(self) -> int:
        return sum(spine.rows for spine in self.spines.values())

    @property
    def bytes(self) -> int:
        return sum(spine.bytes for spine in self.spines.values())

    # -- lookups -----------------------------------------------------------------------------------------------------

    def tables(
        self, with_arriving: bool, window_us: Callable[[Keeping], int | None]
    ) -> Iterator[tuple[npt.NDArray[np.int64], int]]:
        """What a probe sees: runs, and for how long their rows are valid. `window_us` tells it for each slice; None: no row
        of the slice is to be seen."""
        found: dict[int, list[npt.NDArray[np.int64]]] = {}
        for keeping, spine in self.spines.items():
            if (valid_us := window_us(keeping)) is not None:
                found.setdefault(valid_us, []).append(spine.table(with_arriving))
        for valid_us, tables in found.items():
            yield tables[0] if len(tables) == 1 else np.concatenate(tables), valid_us

    def extent(self, with_arriving: bool) -> tuple[int, int]:
        """The least and the largest hash that a probe may see; (2^64, -1) if there is none."""
        found = [spine.extent(with_arriving) for spine in self.spines.values()]
        return min((least for least, _ in found), default=2**64), max((largest for _, largest in found), default=-1)

    # -- rows come and go --------------------------------------------------------------------------------------------

    def arrive(self, batch: int, ordered: Words, slices: Collection[Slice] = ()) -> None:
        """Adds rows of the batch that is being processed; those of a source by their slices."""
        for keeping, rows in parts_of(ordered, slices):
            self.spine(keeping).arrive(run_of_batch(batch, rows, self.has_end, keeping.retention_us))

    def restore(self, batch: int, ordered: Words, slices: Collection[Slice] = ()) -> None:
        """Adds rows of a batch that were derived again, as far as no run shows them."""
        for keeping, rows in parts_of(ordered, slices):
            self.spine(keeping).restore(run_of_batch(batch, rows, self.has_end, keeping.retention_us))

    def settle(self, batch: int, ended_us: Callable[[Keeping], int]) -> None:
        """Ends a batch; `ended_us` is the watermark of each slice: what has ended by then is left out of merges."""
        for keeping, spine in self.spines.items():
            spine.settle(batch, ended_us(keeping))

    def purge(self, ended_us: Callable[[Keeping], int]) -> None:
        """Drops runs of which no row is valid at or after the watermark of its slice, and slices without rows."""
        for keeping, spine in list(self.spines.items()):
            spine.purge(ended_us(keeping))
            if not spine.runs and not spine.arriving and len(self.spines) > 1:
                del self.spines[keeping]

    def lacks(self, batch: int, slices: Collection[Slice] = ()) -> bool:
        """Whether some rows of a batch are shown by no run."""
        kept = {each.keeping for each in slices} or {ENDING}
        return any(self.spine(keeping).lacking(batch) for keeping in kept)

    def clear(self) -> None:
        self.spines, self._gap = {}, None

    def moved(self) -> None:
        """Runs lie at other addresses now."""
        for spine in self.spines.values():
            spine.moved()

    def verify(self) -> None:
        for spine in self.spines.values():
            spine.verify()


def parts_of(ordered: Words, slices: Collection[Slice]) -> Iterator[tuple[Keeping, Words]]:
    """Sorted rows of a segment by slice, as far as there are any."""
    if len(slices) < 2:
        if len(ordered):
            yield (next(iter(slices)).keeping if slices else ENDING), ordered
        return
    positions, begin = ordered[:, 1].view(np.int64), 0
    for each in slices:
        inside = (positions >= begin) & (positions < each.end)
        if inside.any():
            yield each.keeping, ordered if inside.all() else ordered[inside]
        begin = each.end


def cut(
    kept_us: npt.NDArray[np.int64] | None,
    limits_us: tuple[int, ...],
    starts: npt.NDArray[np.int64],
    unwanted: Unwanted | None = None,
    over_us: Callable[[Keeping], int] | None = None,
) -> tuple[npt.NDArray[np.int64] | None, tuple[Slice, ...]]:
    """The order in which rows of a segment stand, None: as they are; and their slices. `kept_us` says for how long each row
    is wanted, None: as long as any; `unwanted` by which watermarks that lag rows are not wanted, if that is so. Slices stand
    in the order in which they are to end, the last first, as things are: `over_us` tells until when each is over."""
    if unwanted is None and (kept_us is None or len(limits_us) == 1):
        return None, (Slice(limits_us[-1], len(starts), int(starts.max())),)
    # Few rows differ in how they are wanted: rows that do not are told from others in one pass, and the rest is about these.
    told = [values for values in (kept_us, None if unwanted is None else unwanted.places) if values is not None]
    alike, firsts = np.empty(len(starts), np.int32), np.empty(len(starts), np.int64)
    firsts = firsts[: number_rows(np.stack(told).view(np.uint64), alike, firsts)]
    last = len(limits_us) - 1
    places = np.full(len(firsts), last) if kept_us is None else np.searchsorted(np.array(limits_us), kept_us[firsts])
    codes = places if unwanted is None else places + len(limits_us) * unwanted.places[firsts]
    if unwanted is not None and len(np.unique(codes)) > bounds.MOST_APART:  # rather kept too long than in very many slices
        codes = int(places.max()) + len(limits_us) * unwanted.places[firsts]
    there, code_of = np.unique(codes, return_inverse=True)
    keeping = [_keeping(each, limits_us, unwanted) for each in there.tolist()]
    ranked = sorted(range(len(there)), key=lambda n: (over_us(keeping[n]) if over_us else 0, -keeping[n].retention_us))
    if len(there) == 1:
        return None, (Slice(keeping[0].retention_us, len(starts), int(starts.max()), keeping[0].unwanted_by),)
    ranks = np.empty(len(there), np.int32)
    ranks[ranked] = np.arange(len(there))
    ranks = ranks[code_of][alike]
    ends, order = np.cumsum(np.bincount(ranks)), np.empty(len(starts), np.int64)
    begins = np.concatenate([[0], ends[:-1]])
    order_by_number(ranks, begins.copy(), order)
    newest_us = np.maximum.reduceat(starts[order], begins)
    return order, tuple(
        Slice(keeping[place].retention_us, end, newest, keeping[place].unwanted_by)
        for place, end, newest in zip(ranked, ends.tolist(), newest_us.tolist(), strict=True)
    )


def _keeping(code: int, limits_us: tuple[int, ...], unwanted: Unwanted | None) -> Keeping:
    by, place = divmod(code, len(limits_us))
    return Keeping(limits_us[place], unwanted.by[by] if unwanted is not None else "")
