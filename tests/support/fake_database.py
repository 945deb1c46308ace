"""A database in memory, that changes between batches and fails on demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import duckdb
import pyarrow as pa

from anabranch.errors import DatabaseError
from anabranch.place.databases.protocol import Server, TableSize, Wanted


class FakeDatabase:
    """Tables by name. `lookups` counts what it was asked; `before_lookup` is called ahead of each, and may change tables,
    or raise."""

    def __init__(self, name: str, tables: Mapping[str, pa.Table]) -> None:
        self.name, self.tables = name, dict(tables)
        self.lookups: list[tuple[Wanted, pa.Table, str | None]] = []
        self.reads: list[str] = []
        self.before_lookup = lambda: None
        self._snapshots: dict[str, dict[str, pa.Table]] = {}
        self._connection = duckdb.connect()

    def __call__(self, name: str) -> Server:
        """Itself, as what gives databases by name."""
        if name != self.name:
            raise DatabaseError(f"there is no database {name}")
        return self

    @property
    def is_held(self) -> bool:
        """Whether somebody holds a snapshot: changes are not seen by whoever reads that."""
        return bool(self._snapshots)

    def describe(self, table: str) -> tuple[tuple[str, pa.DataType], ...]:
        return tuple((f.name, f.type) for f in self.tables[table].schema)

    def lookup(self, wanted: Wanted, keys: pa.Table, snapshot: str | None = None) -> pa.Table:
        self.before_lookup()
        self.lookups.append((wanted, keys, snapshot))
        assert keys.num_rows, "there is nothing to look up"
        assert not any(column.null_count for column in keys.columns)
        if snapshot is not None and snapshot not in self._snapshots:
            raise DatabaseError(f"there is no snapshot {snapshot}")
        tables = self.tables if snapshot is None else self._snapshots[snapshot]
        columns = ", ".join(f't."{name}"' for name, _ in wanted.columns)
        equal = " AND ".join(f't."{key}" = k."{ours}"' for key, ours in zip(wanted.keys, keys.column_names, strict=True))
        self._connection.register("t", tables[wanted.table])
        self._connection.register("k", keys)
        found = self._connection.sql(f"SELECT {columns} FROM k JOIN t ON {equal}").to_arrow_table()
        return found.cast(pa.schema(list(wanted.columns)))

    def read(
        self,
        table: str,
        columns: tuple[tuple[str, pa.DataType], ...],
        snapshot: str | None = None,
        most_rows: int | None = None,
        most_bytes: int | None = None,
    ) -> pa.Table:
        self.before_lookup()
        self.reads.append(table)
        tables = self.tables if snapshot is None else self._snapshots[snapshot]
        found = tables[table].select([name for name, _ in columns]).slice(0, most_rows)
        if most_bytes is not None and found.nbytes > most_bytes:
            raise DatabaseError(f"{table} is too large")
        return found

    def size(self, table: str) -> TableSize | None:
        return TableSize(self.tables[table].num_rows, self.tables[table].nbytes)

    @contextmanager
    def export_snapshot(self) -> Iterator[str]:
        name = f"snapshot {len(self._snapshots)} of {len(self.lookups)}"
        self._snapshots[name] = dict(self.tables)
        try:
            yield name
        finally:  # whoever holds it may die
            del self._snapshots[name]

    def close(self) -> None:
        pass
