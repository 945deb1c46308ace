"""Sliced window joins (definitions 1 and 3), executed as in fig. 6 and 9."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from anabranch.share.reference.rows import KeyBand, Meter, Reference, Row
from anabranch.share.window_queries import OTHER, Stream


class Operator(Protocol):
    """Takes one item from its queue at a time."""

    @property
    def is_waiting(self) -> bool:
        """Whether something is in the queue."""

    def run_once(self) -> None: ...


class Outlet(Protocol):
    """Takes what a join gives."""

    def results(self, male: Row, satisfies: frozenset[str], partners: Sequence[Row]) -> None:
        """The partners of a row that satisfy the same predicates, in the order of their times; the sequence is the
        join's own."""

    def punctuate(self, male: Row) -> None:
        """The join has given all results of the row, and of all rows before it."""


_EMPTY: dict[frozenset[str], deque[Row]] = {}


class WindowState:
    """The female references of one stream in a slice, in the order in which the rows came; and by key, to find partners."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.references: deque[Reference] = deque()
        self._by_key: dict[int, dict[frozenset[str], deque[Row]]] = {}

    def __len__(self) -> int:
        return len(self.references)

    def insert(self, reference: Reference) -> None:
        row = reference.row
        self.references.append(reference)
        alike = self._by_key.setdefault(row.key, {})
        if row.satisfies not in alike:
            alike[row.satisfies] = deque()
        alike[row.satisfies].append(row)
        self.meter.stored_rows += 1

    def purge(self, now_s: float, end_s: float) -> list[Reference]:
        """Takes out the rows that are `end_s` old or older: the oldest come first, so it stops at the first that stays."""
        references, expired = self.references, []
        while references and now_s - references[0].row.time_s >= end_s:
            row = references[0].row
            self._by_key[row.key][row.satisfies].popleft()
            expired.append(references.popleft())
        self.meter.stored_rows -= len(expired)
        return expired

    def probe(self, keys: Sequence[int]) -> list[tuple[frozenset[str], Sequence[Row]]]:
        """The rows with these keys; those that satisfy the same predicates together."""
        return [
            (satisfies, rows) for key in keys for satisfies, rows in self._by_key.get(key, _EMPTY).items() if rows
        ]


class SlicedJoin:
    """A[start, end) ⋈ B[start, end): rows of each stream that are from `start` to `end` old when a row of the other comes.

    The binary join of definition 3. Given only female references to A and male ones to B it is the one-way join of
    definition 1, A[start, end) ⋉ B. With a start of 0 and no next join it is a regular window join.

    Only `end_s` is compared with: what is in the state is old enough, because the join before handed it on (lemma 1).
    """

    def __init__(
        self,
        condition: KeyBand,
        span_s: tuple[float, float],
        outlet: Outlet,
        meter: Meter,
        first_window: int = 1,
        span_b_s: tuple[float, float] | None = None,
    ) -> None:
        self.outlet, self.meter = outlet, meter
        self.partner_keys = condition.partner_keys
        self.spans_s: dict[Stream, tuple[float, float]] = {"A": span_s, "B": span_b_s or span_s}
        self.first_window = first_window
        """Rows with a smaller lineage are dropped before this slice: the selection σ' of fig. 15."""
        self.queue: deque[Reference] = deque()
        """From the join before: one queue for both streams, and for both kinds of references."""
        self.states: dict[Stream, WindowState] = {"A": WindowState(meter), "B": WindowState(meter)}
        self.next: SlicedJoin | None = None
        self.after_purge: Callable[[SlicedJoin, Row], None] | None = None
        """Called when a row has purged and not yet probed, with the join and the row: the moment of lemma 1."""

    @property
    def is_waiting(self) -> bool:
        return bool(self.queue)

    def run_once(self) -> None:
        reference = self.queue.popleft()
        if reference.is_male:
            self._purge_and_probe(reference)
        else:
            self.states[reference.row.stream].insert(reference)

    def _purge_and_probe(self, reference: Reference) -> None:
        male, meter = reference.row, self.meter
        stream = OTHER[male.stream]
        state = self.states[stream]
        meter.visits += 1
        meter.purging += 1
        for expired in state.purge(male.time_s, self.spans_s[stream][1]):
            self._hand_on(expired)
        if self.after_purge is not None:
            self.after_purge(self, male)
        meter.probing += len(state)
        for satisfies, partners in state.probe(self.partner_keys(male)):
            self.outlet.results(male, satisfies, partners)
        self._hand_on(reference)
        self.outlet.punctuate(male)

    def _hand_on(self, reference: Reference) -> None:
        following = self.next
        if following is not None and reference.lineage >= following.first_window:
            following.queue.append(reference)
