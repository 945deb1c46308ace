"""What a database does for us, whichever it is. There are two protocols, and one file for each database that speaks one.

Two things are asked of databases. Nobody who asks for one needs the other, no database here does both, and what they have
in common is that they can be closed:

- a `Server`, which is here, has *tables of its own*: they are described, looked up and read where they are. PostgreSQL is
  one;
- an `Embedded` (`anabranch.plan.statement`) has no rows: it lives in the worker of a slot and runs *statements over rows of
  ours*. DuckDB is one. That protocol stands where it is because the engine speaks it, which knows no databases.

A server that ran statements over windows of ours, mirrored there, would speak both.

A server is known by its *name*. Where it is and who we are there is said by the machine (`settings.py` beside this);
nothing of it is in a SQL file, plan, control record, journal, log or error text. Rows go in and come out as Arrow.

Every call ends within `Limits.timeout_s`. A call that fails because the connection is gone is made again on a new one, at
most `Limits.retries` times; calls only read, so that made twice is as good as made once. All other failures are
`DatabaseError`s at once. Whoever stops waiting for a call has it end in the server too: if the call takes too long, if the
caller is interrupted, and if the process dies that has made it. The driver of a database is imported in its own file, and
nowhere else (import-linter).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

TIMEOUT_S = 30.0
"""How long a database may take for a call, unless its settings say otherwise."""

RETRIES = 3
"""How often a call is made again whose connection broke."""


@dataclass(frozen=True)
class Limits:
    """How long a database may take, and how often it is asked again."""

    timeout_s: float = TIMEOUT_S
    retries: int = RETRIES
    pause_s: float = 0.1
    """The pause before the first repetition; each further one is twice as long."""


@dataclass(frozen=True)
class Wanted:
    """What a lookup asks of a table: some columns of the rows whose `keys` columns equal one of the keys handed in."""

    table: str
    """As the user wrote it: `schema.table`, a part in `"…"` where it has capitals, dots or quotes."""
    keys: tuple[str, ...]
    """Columns of the table. The keys handed in have one column for each, in this order, under any names."""
    columns: tuple[tuple[str, pa.DataType], ...]
    """The columns that come back, the keys first, in the types that they have here."""


@dataclass(frozen=True)
class TableSize:
    """How large a table is, about, as its database knows without looking."""

    rows: int
    bytes: int


class Server(Protocol):
    """A database with tables of its own, connected when it is first asked. A process has one of each name; calls come from
    one thread."""

    name: str

    def describe(self, table: str) -> tuple[tuple[str, pa.DataType], ...]:
        """The columns of a table in their order, in types of ours."""
        ...

    def lookup(self, wanted: Wanted, keys: pa.Table, snapshot: str | None = None) -> pa.Table:
        """The rows of a table for some distinct keys without NULLs, in any order: one round trip. With a snapshot
        (`export_snapshot`) the table as that shows it, else as it is now."""
        ...

    def read(
        self,
        table: str,
        columns: tuple[tuple[str, pa.DataType], ...],
        snapshot: str | None = None,
        most_rows: int | None = None,
        most_bytes: int | None = None,
    ) -> pa.Table:
        """The whole of a table, or no more than some of its rows, whichever; with a snapshot as that shows it, else as it
        is now. DatabaseError, if that is more than `most_bytes`: nobody holds all of it then."""
        ...

    def size(self, table: str) -> TableSize | None:
        """How large a table is; None if its database does not know: it is a view, or was never analysed."""
        ...

    def export_snapshot(self) -> AbstractContextManager[str]:
        """Names the state of the database as it is now, for as long as the context is open: other connections may read
        exactly that, from any machine."""
        ...

    def close(self) -> None:
        """Lets the connection go; the next call makes a new one."""
        ...


Servers = Callable[[str], Server]
"""Gives the server of a name."""
