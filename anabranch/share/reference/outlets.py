"""What becomes of the results of a join: a router, selections, unions, and the receivers of queries."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from anabranch.share.reference.rows import Meter, Pair, Row, pair
from anabranch.share.window_queries import OTHER, Stream, WindowQuery


class Taker(Protocol):
    """A place to which results of one query go."""

    def take(self, male: Row, partners: Sequence[Row]) -> None: ...


class Receiver:
    """The results of one query."""

    def __init__(self) -> None:
        self.pairs: list[Pair] = []

    def take(self, male: Row, partners: Sequence[Row]) -> None:
        self.pairs += [pair(male, partner) for partner in partners]


class PunctuatedUnion:
    """U_i of fig. 12: merges the results of slices for one query, in the order of their times.

    A male reference that leaves the last of these slices has been through all of them, so all results of its row and of rows
    before it are here: they are handed on. Nothing is compared but one time for each such reference.
    """

    def __init__(self, receiver: Receiver, meter: Meter) -> None:
        self.receiver, self.meter = receiver, meter
        self.queue: deque[tuple[Row, Sequence[Row] | None]] = deque()
        """Results, or None for a punctuation."""
        self.held: dict[int, list[tuple[Row, Sequence[Row]]]] = {}
        """By the number of the row that found them."""

    @property
    def is_waiting(self) -> bool:
        return bool(self.queue)

    def take(self, male: Row, partners: Sequence[Row]) -> None:
        self.queue.append((male, partners))

    def punctuate(self, male: Row) -> None:
        self.queue.append((male, None))

    def run_once(self) -> None:
        male, partners = self.queue.popleft()
        if partners is not None:
            self.held.setdefault(male.number, []).append((male, partners))
            return
        self.meter.merging += 1
        for number in sorted(number for number in self.held if number <= male.number):
            for found in self.held.pop(number):
                self.receiver.take(*found)


class MergingUnion:
    """The union of fig. 4: merges results of several joins for one query, each ordered, comparing each result once.

    The earliest result is handed on when each join has one waiting; the rest when input has ended.
    """

    def __init__(self, receiver: Receiver, meter: Meter, inputs: int) -> None:
        self.receiver, self.meter = receiver, meter
        self.waiting: list[deque[tuple[Row, Sequence[Row]]]] = [deque() for _ in range(inputs)]

    @property
    def is_waiting(self) -> bool:
        return all(self.waiting)

    def take(self, join: int, male: Row, partners: Sequence[Row]) -> None:
        self.meter.merging += len(partners)
        self.waiting[join].append((male, partners))

    def run_once(self) -> None:
        self.receiver.take(*min(self.waiting, key=lambda held: held[0][0].number).popleft())

    def finish(self) -> None:
        left = sorted((found for held in self.waiting for found in held), key=lambda found: found[0].number)
        for held in self.waiting:
            held.clear()
        for found in left:
            self.receiver.take(*found)


@dataclass(frozen=True)
class MergingInput:
    """One of the joins that a union merges."""

    union: MergingUnion
    join: int

    def take(self, male: Row, partners: Sequence[Row]) -> None:
        self.union.take(self.join, male, partners)


@dataclass(frozen=True)
class Target:
    """A query that reads a join: whether its window must be compared with, and where its results go."""

    query: WindowQuery
    is_routed: bool
    """False where every result of the join lies in the window of the query."""
    into: Taker


class Routed:
    """Router and selections above a join (fig. 3, 4, 13), and the punctuation of unions (fig. 12)."""

    def __init__(
        self,
        meter: Meter,
        targets: Sequence[Target],
        tests: Sequence[tuple[Stream, str]],
        windows: int,
        unions: Sequence[PunctuatedUnion] = (),
    ) -> None:
        self.meter, self.targets, self.unions = meter, targets, unions
        self.reach_s = reach_of(targets, tests)
        self.windows = windows
        """So many windows the router chooses from; with one there is no router."""

    def results(self, male: Row, satisfies: frozenset[str], partners: Sequence[Row]) -> None:
        found = tuple(partners)
        count_results(self.meter, male, found, self.windows, self.reach_s)
        for target in self.targets:
            wanted = target.query.wants(male.stream, male.satisfies) and target.query.wants(OTHER[male.stream], satisfies)
            rows = within(male, found, target.query.window_s) if target.is_routed else found
            if wanted and rows:
                target.into.take(male, rows)

    def punctuate(self, male: Row) -> None:
        for union in self.unions:
            union.punctuate(male)


class Counted:
    """The same comparisons without the results: for rates at which results are too many to be handed on."""

    def __init__(
        self,
        meter: Meter,
        targets: Sequence[Target],
        tests: Sequence[tuple[Stream, str]],
        windows: int,
        unions: int = 0,
        merged: Sequence[Target] = (),
    ) -> None:
        self.meter, self.windows, self.unions, self.merged = meter, windows, unions, merged
        self.reach_s = reach_of(targets, tests)
        self.joined: Counter[tuple[frozenset[str], frozenset[str]]] = Counter()
        """Results of the join, by the predicates that the row of A and the row of B satisfy."""

    def results(self, male: Row, satisfies: frozenset[str], partners: Sequence[Row]) -> None:
        count = len(partners)
        self.joined[(male.satisfies, satisfies) if male.stream == "A" else (satisfies, male.satisfies)] += count
        if self.windows > 1 or self.reach_s:
            count_results(self.meter, male, partners, self.windows, self.reach_s)
        for target in self.merged:
            self.meter.merging += len(within(male, partners, target.query.window_s)) if target.is_routed else count

    def punctuate(self, male: Row) -> None:
        self.meter.merging += self.unions


def reach_of(targets: Sequence[Target], tests: Sequence[tuple[Stream, str]]) -> tuple[float | None, ...]:
    """For each predicate that results are tested for, up to which age; None for all results of the join."""
    found: list[float | None] = []
    for stream, predicate in tests:
        asking = [target for target in targets if target.query.predicate(stream) == predicate]
        all_of_them = not all(target.is_routed for target in asking)
        found.append(None if all_of_them else max(target.query.window_s for target in asking))
    return tuple(found)


def count_results(
    meter: Meter, male: Row, partners: Sequence[Row], windows: int, reach_s: tuple[float | None, ...]
) -> None:
    """The comparisons of router and selections."""
    meter.routing += len(partners) * (windows - 1)
    for age_s in reach_s:
        meter.selecting += len(partners) if age_s is None else len(within(male, partners, age_s))


def within(male: Row, partners: Sequence[Row], window_s: float) -> Sequence[Row]:
    """The partners that are younger than a window when the row comes: the last ones, for the oldest come first."""
    if not partners or male.time_s - partners[0].time_s < window_s:
        return partners
    rows = tuple(partners)
    return rows[bisect_right(rows, -window_s, key=lambda row: row.time_s - male.time_s) :]
