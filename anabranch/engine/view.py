"""A view: combined rows that a plan keeps, as row ids of their parts. Their validity and keys stand in their indexes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.engine.columns import LOW, AddressTables, Ids
from anabranch.engine.kernels.gather import gather_64
from anabranch.errors import MissingRowError


@dataclass
class Combined:
    """What one batch added: for each input of the view the row ids (parts × rows)."""

    parts: npt.NDArray[np.int64]
    end_max_us: int
    keeps_alive: pa.Buffer | None = None
    room: npt.NDArray[np.int64] | None = None
    """What `parts` is the beginning of, while more may come: so that a row is copied twice at most, not with each piece."""


class View:
    """The combined rows of a set of inputs that may still be valid."""

    def __init__(self, inputs: int, name: str) -> None:
        self.inputs, self.name = inputs, name
        self.segments: dict[int, Combined] = {}
        self._tables: AddressTables | None = None
        """Where the ids of each input lie, and how many there are; None until somebody asks."""
        self._ending: list[tuple[int, int]] = []
        """The largest end and the batch of each segment, as a heap; also of segments to which more came."""

    def add(self, batch: int, segment: Combined) -> None:
        """Sets what a batch holds (again, when more came)."""
        before = self.segments.get(batch)
        self.segments[batch] = segment
        if before is None or before.end_max_us != segment.end_max_us:
            heappush(self._ending, (segment.end_max_us, batch))
        if self._tables is not None:
            self._learn(self._tables, batch)

    def _learn(self, tables: AddressTables, batch: int) -> None:
        parts = self.segments[batch].parts
        tables.set(batch, *(part.ctypes.data for part in parts), parts.shape[1])

    def _learned(self) -> AddressTables:
        if self._tables is None:
            self._tables = AddressTables(self.inputs + 1)
            for batch in sorted(self.segments):
                self._learn(self._tables, batch)
        return self._tables

    def check(self, ids: Ids) -> None:
        """Refuses ids that are not those of combined rows in the view."""
        place = self._learned().first_outside(ids)
        if place >= 0:
            batch, offset = int(ids[place]) >> 32, int(ids[place]) & LOW
            raise MissingRowError(
                f"an index names row {offset} of batch {batch} of the view of {self.name}, which is not there. The state's "
                "parts do not belong together: restore the checkpoint from a backup, or start with an empty one"
            )

    def part(self, place: int, ids: Ids) -> Ids:
        """The row ids of one input, by its place in the view's key, for combined rows."""
        tables = self._learned()
        out = np.empty(len(ids), np.int64)
        gather_64(tables.addresses[place], tables.base, tables.renumbered(ids), out)
        return out

    def append(self, batch: int, ids: Sequence[Ids], end_max_us: int) -> int:
        """Adds combined rows of the batch that is being processed; returns the offset of the first."""
        fresh = np.stack(ids)
        before = self.segments.get(batch)
        if before is None:
            self.add(batch, Combined(fresh, end_max_us))
            return 0
        first, room = int(before.parts.shape[1]), before.room
        last = first + fresh.shape[1]
        if room is None or last > room.shape[1]:
            room = np.empty((self.inputs, 2 * last), np.int64)
            room[:, :first] = before.parts
        room[:, first:last] = fresh
        self.add(batch, Combined(room[:, :last], max(end_max_us, before.end_max_us), room=room))
        return first

    def copy(self, name: str) -> View:
        """The same rows under another name: what is added to one is not added to the other."""
        found = View(self.inputs, name)
        for batch, segment in self.segments.items():
            found.add(batch, Combined(segment.parts, segment.end_max_us, segment.keeps_alive))
        return found

    def clear(self) -> None:
        self.segments, self._tables, self._ending = {}, None, []

    def purge(self, watermark_us: int) -> None:
        """Drops segments of which no row is valid at or after the watermark."""
        while self._ending and self._ending[0][0] <= watermark_us:
            end_us, batch = heappop(self._ending)
            if batch in self.segments and self.segments[batch].end_max_us == end_us:
                del self.segments[batch]
                if self._tables is not None:
                    self._tables.drop(batch)

    @property
    def rows(self) -> int:
        return sum(s.parts.shape[1] for s in self.segments.values())

    @property
    def bytes(self) -> int:
        return sum(s.parts.nbytes for s in self.segments.values())
