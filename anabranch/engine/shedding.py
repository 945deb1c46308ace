"""Rows that are dropped before they are joined, where a pipeline cannot take in all that streams bring.

Which rows are kept follows from a hash of all columns of a row, the salt of the batch and the share of the stream that is
kept; share and salt stand in the control record (`Control.shed`, `Control.salt`). So a batch that runs again drops the same
rows, wherever and in whatever order they are read. A row that is dropped has been seen: it moves the watermark as others do,
unless it is too early, and it is counted.

Every result has come through the shares of all its rows. The share of a batch is kept with its rows (`Stored.kept`), so that
results of later batches know it, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from anabranch.engine.row_hash import chosen, hash_rows, salt_for
from anabranch.plan.query import FOREVER_US, Stream

Given = TypeVar("Given", pa.RecordBatch, pa.Table)


def kept_mask(stream: str, rows: pa.RecordBatch | pa.Table, share: float, salt: int) -> npt.NDArray[np.bool_]:
    """Which rows of a stream are among the share that is kept."""
    return chosen(hash_rows(rows), share, salt_of(stream, salt))


def salt_of(stream: str, salt: int) -> int:
    """The salt of a stream in a batch: equal rows of two streams are shed independently of each other."""
    return salt_for(salt, f"shed {stream}")


@dataclass(frozen=True)
class Dropped:
    """Rows of a stream that were shed in a batch."""

    rows: int = 0
    largest_time_us: int | None = None
    """The largest time of those that are not too early."""

    def __add__(self, other: Dropped) -> Dropped:
        times = [us for us in (self.largest_time_us, other.largest_time_us) if us is not None]
        return Dropped(self.rows + other.rows, max(times, default=None))


@dataclass(frozen=True)
class Shedding:
    """Which share of the rows of each stream a batch keeps, by which salt; and the driver's clock, for early rows."""

    kept: Mapping[str, float] = field(default_factory=dict)
    salt: int = 0
    planned_us: int = FOREVER_US

    def shed(self, stream: Stream, rows: Given) -> tuple[Given, Dropped]:
        """The rows of a stream that are kept, and what was dropped.

        >>> stream = Stream("s", (), "ts")
        >>> rows = pa.table({"ts": pa.array(range(1000), pa.timestamp("us"))})
        >>> kept, dropped = Shedding({"s": 0.5}, salt=1).shed(stream, rows)
        >>> kept.num_rows + dropped.rows, 450 < kept.num_rows < 550
        (1000, True)
        """
        share = self.kept.get(stream.name, 1.0)
        if share >= 1 or not rows.num_rows:
            return rows, Dropped()
        mask = kept_mask(stream.name, rows, share, self.salt)
        away = rows.filter(pa.array(~mask))
        times = away.column(away.schema.get_field_index(stream.time)).drop_null()
        times_us = times.cast(pa.timestamp("us")).cast(pa.int64()).to_numpy()
        times_us = times_us[times_us <= stream.early_after_us(self.planned_us)]
        return rows.filter(pa.array(mask)), Dropped(away.num_rows, int(times_us.max()) if len(times_us) else None)
