"""A view: combined rows that a plan keeps, as row ids of their parts. Their validity and keys stand in their indexes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.engine.columns import AddressTable, Ids
from anabranch.engine.kernels.gather import gather_64
from anabranch.plan.join_graph import Aliases


@dataclass
class Combined:
    """What one batch added: for each input of the view the row ids (parts × rows)."""

    parts: npt.NDArray[np.int64]
    end_max_us: int
    keeps_alive: pa.Buffer | None = None


class View:
    """The combined rows of a set of inputs that may still be valid."""

    def __init__(self, aliases: Aliases) -> None:
        self.aliases = aliases
        self.name = " ".join(aliases)
        self.segments: dict[int, Combined] = {}
        self._tables: list[AddressTable] | None = None

    def add(self, batch: int, segment: Combined) -> None:
        """Sets what a batch holds (again, when more came)."""
        self.segments[batch] = segment
        if self._tables is not None:
            self._learn(batch)

    def _learn(self, batch: int) -> None:
        if self._tables is None:
            base = min(self.segments)
            self._tables = [AddressTable(base) for _ in self.aliases]
            for known in self.segments:
                self._learn(known)
            return
        parts = self.segments[batch].parts
        for place, table in enumerate(self._tables):
            table.set(batch, parts[place].ctypes.data)

    def part(self, alias: str, ids: Ids) -> Ids:
        """The row ids of one input for combined rows."""
        if self._tables is None:
            self._learn(min(self.segments))
        assert self._tables is not None
        table = self._tables[self.aliases.index(alias)]
        out = np.empty(len(ids), np.int64)
        gather_64(table.addresses, table.base, ids, out)
        return out

    def append(self, batch: int, ids: dict[str, Ids], end_max_us: int) -> int:
        """Adds combined rows of the batch that is being processed; returns the offset of the first."""
        fresh = np.stack([ids[a] for a in self.aliases])
        before = self.segments.get(batch)
        if before is None:
            self.add(batch, Combined(fresh, end_max_us))
            return 0
        self.add(batch, Combined(np.concatenate([before.parts, fresh], axis=1), max(end_max_us, before.end_max_us)))
        return int(before.parts.shape[1])

    def clear(self) -> None:
        self.segments, self._tables = {}, None

    def purge(self, watermark_us: int) -> None:
        """Drops segments of which no row is valid at or after the watermark."""
        dead = [b for b, s in self.segments.items() if s.end_max_us <= watermark_us]
        for batch in dead:
            del self.segments[batch]
        if dead and self._tables is not None:
            base = min(self.segments, default=max(dead) + 1)
            if base - self._tables[0].base > len(self._tables[0].addresses) // 2:
                for table in self._tables:
                    table.rebase(base)

    @property
    def rows(self) -> int:
        return sum(s.parts.shape[1] for s in self.segments.values())

    @property
    def bytes(self) -> int:
        return sum(s.parts.nbytes for s in self.segments.values())
