"""How rows of a table in a database come to a batch: by a lookup of its keys, or by reading the table whole.

Both give the same results, so a slot chooses anew in every batch, by what was measured of the database (`anabranch calibrate
--database NAME --table … --key …`), and by what the table itself has taken of late beside that (`anabranch.control.pace`;
commits have it, so a restart goes on with it). A cost that was never measured is not trusted: then rows are looked up.

- A table that may change (CURRENT) is read whole in a batch in which that takes less than to look up its keys. Nothing of it
  is kept.
- One that does not change (STATIC) may be *shipped*: read whole once, and kept in the worker. How many batches will come,
  and with which keys, nobody knows. So it is looked up until lookups have taken as long as shipping takes, and shipped then:
  all in all that is never more than twice what the better of the two would have taken, had one known.

A hint may ask for either (`/*+ PLACE(customers, engine) */`): then nothing has to be measured, and no figures are compared.
A table of unknown size is looked up, and so is one that has more than `MOST_BYTES`, or takes longer than `LONGEST_S` to
read: it would fill the worker, or run into the timeout of a call.

>>> costs = LookupCosts(round_trip_s=0.001, key_s=4e-6, row_s=1e-6)
>>> small = TableSize(rows=100_000, bytes=8_000_000)
>>> choose_way(False, 1_000, small, costs), choose_way(False, 50_000, small, costs)
(<Way.LOOKUP: 'looked up'>, <Way.READ_WHOLE: 'read whole'>)
>>> choose_way(True, 1_000, small, costs), choose_way(True, 1_000, small, costs, spent_s=0.2)
(<Way.LOOKUP: 'looked up'>, <Way.SHIPPED: 'shipped'>)
>>> choose_way(True, 50_000, small, None), choose_way(True, 50_000, None, costs)
(<Way.LOOKUP: 'looked up'>, <Way.LOOKUP: 'looked up'>)
>>> choose_way(False, 50_000, small, costs, place="database"), choose_way(True, 1, small, None, place="engine")
(<Way.LOOKUP: 'looked up'>, <Way.SHIPPED: 'shipped'>)
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import msgspec

from anabranch.control.pace import Pace
from anabranch.place.calibrate import remembered
from anabranch.place.databases.protocol import TableSize
from anabranch.plan.query import DATABASE, ENGINE

MOST_BYTES = 256 << 20
"""Tables that a worker keeps, or reads whole, have no more together, as the database counts their bytes."""

LONGEST_S = 5.0
"""A table that takes longer to read is looked up: a call has a timeout."""


TELLING = 100
"""So many keys, or rows, tell what one takes: fewer are lost in the round trip."""


class Way(Enum):
    """How the rows of a table come to a batch."""

    LOOKUP = "looked up"
    READ_WHOLE = "read whole"
    SHIPPED = "shipped"


class LookupCosts(msgspec.Struct, frozen=True):
    """What was measured of a database, in seconds."""

    round_trip_s: float
    key_s: float
    """For each key that is looked up."""
    row_s: float
    """For each row that is read."""
    lookup_pace: float = 1.0
    """How many times as long lookups take, and `whole_pace` reading the table whole, by what was measured since."""
    whole_pace: float = 1.0

    def lookup_s(self, keys: int) -> float:
        """What it takes to look some distinct keys up."""
        return self.lookup_pace * (self.round_trip_s + keys * self.key_s)

    def whole_s(self, rows: int) -> float:
        """What it takes to read a table of some rows."""
        return self.whole_pace * (self.round_trip_s + rows * self.row_s)

    @property
    def share_at_par(self) -> float:
        """How many keys, for each row of a table, take as long to look up as the table takes to read."""
        key_s = self.lookup_pace * self.key_s
        return self.whole_pace * self.row_s / key_s if key_s else float("inf")


def lookup_costs_of(database: str) -> LookupCosts | None:
    """What is known on this machine of lookups in a database; None: they were not measured."""
    measured = remembered(database)
    if measured is None or not {"lookup", "out"} <= measured.row_s.keys():
        return None
    return LookupCosts(measured.round_trip_s, measured.per_row_s("lookup"), measured.per_row_s("out"))


def pace_name(stream: str, way: Way) -> str:
    """What the pace is called of a way in which rows of a table come to those of a stream: a table is read as it is shipped.

    >>> pace_name("orders+customers", Way.SHIPPED)
    'orders+customers, read whole'
    """
    return f"{stream}, {(Way.LOOKUP if way is Way.LOOKUP else Way.READ_WHOLE).value}"


def at_pace(costs: LookupCosts, paces: Mapping[str, Pace], stream: str) -> LookupCosts:
    """What was calibrated of a database, at the pace that it has for the rows of a stream."""
    looked_up, whole = (
        paces.get(pace_name(stream, way), Pace()).beside(costs.round_trip_s).factor for way in (Way.LOOKUP, Way.READ_WHOLE)
    )
    return LookupCosts(costs.round_trip_s, costs.key_s, costs.row_s, looked_up, whole)


def expected_s(costs: LookupCosts, way: Way, count: int) -> float | None:
    """How long some keys, or rows of a table that is read whole, were expected to take by what was calibrated; None if there
    are too few to tell."""
    if count < TELLING:
        return None
    return costs.lookup_s(count) if way is Way.LOOKUP else costs.whole_s(count)


def choose_way(
    is_static: bool,
    keys: int,
    size: TableSize | None,
    costs: LookupCosts | None,
    spent_s: float = 0.0,
    room_bytes: float = MOST_BYTES,
    place: str | None = None,
) -> Way:
    """How some keys of a batch are served. `spent_s` is what lookups in the table have taken so far, in this worker, and
    `room_bytes` what it may still keep; `place` is where a hint wants the table (`Enriched.place`)."""
    if place == DATABASE or size is None or size.bytes > room_bytes:
        return Way.LOOKUP
    if place == ENGINE:
        return Way.SHIPPED if is_static else Way.READ_WHOLE
    if costs is None:
        return Way.LOOKUP
    whole_s, lookup_s = costs.whole_s(size.rows), costs.lookup_s(keys)
    if whole_s > LONGEST_S:
        return Way.LOOKUP
    if is_static:
        return Way.SHIPPED if spent_s + lookup_s > whole_s else Way.LOOKUP
    return Way.READ_WHOLE if lookup_s > whole_s else Way.LOOKUP
