"""A shop's tables in a PostgreSQL behind a proxy, and what goes wrong with it."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pyarrow as pa

from anabranch.place.databases.postgresql import PostgreSQL
from anabranch.place.databases.settings import settings_of
from bench.postgres import Server
from tests.support.cutting import CuttingProxy

CREATE = {
    "customers": "CREATE TABLE customers (id int, region text, least bigint, name text);"
    "GRANT SELECT ON customers TO looker;",
    "regions": "CREATE TABLE regions (code text, rate double precision); GRANT SELECT ON regions TO looker;",
}


class Shop:
    """The tables of the cases in a PostgreSQL, behind a proxy."""

    def __init__(self, server: Server, proxy: CuttingProxy) -> None:
        self.server, self.proxy = server, proxy
        self._made: list[PostgreSQL] = []

    def connect(self, timeout_s: float = 30) -> PostgreSQL:
        """A database that has no connection yet."""
        own = {"HOST": str(self.proxy.folder), "TIMEOUT": str(timeout_s)}
        told = {**self.server.environment, **{f"ANABRANCH_DATABASE_SHOP_{key}": value for key, value in own.items()}}
        self._made.append(PostgreSQL(settings_of("shop", told)))
        return self._made[-1]

    def create(self) -> None:
        self.server.sql("DROP TABLE IF EXISTS customers, regions;" + "".join(CREATE.values()))

    def put(self, tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
        """Has the tables hold other rows, all at once."""
        said = ["BEGIN"]
        for name, rows in tables.items():
            said.append(f"DELETE FROM {name}")
            values = [", ".join(_literal(value) for value in row.values()) for row in rows.to_pylist()]
            said += [f"INSERT INTO {name} ({', '.join(rows.column_names)}) VALUES ({each})" for each in values]
        self.server.sql(";\n".join([*said, "COMMIT"]))
        return tables

    def close(self) -> None:
        for each in self._made:
            each.close()


def _literal(value: object) -> str:
    return (
        "NULL" if value is None else repr(value) if not isinstance(value, str) else "'" + value.replace("'", "''") + "'"
    )


@contextmanager
def opened(server: Server) -> Iterator[Shop]:
    """A shop whose tables have no rows yet."""
    with tempfile.TemporaryDirectory(prefix="ab-cut-", dir="/tmp") as folder:  # a socket's path must be short
        proxy = CuttingProxy(Path(folder), server.socket)
        found = Shop(server, proxy)
        found.create()
        yield found
        found.close()
        proxy.close()


Fault = Callable[[Shop], AbstractContextManager[None]]


@contextmanager
def killed_before(shop: Shop) -> Iterator[None]:
    shop.server.kill()
    try:
        yield
    finally:
        shop.server.start()


@contextmanager
def killed_within(shop: Shop) -> Iterator[None]:
    shop.proxy.arm(100, shop.server.kill)
    try:
        yield
    finally:
        if shop.proxy.interfered:
            shop.server.start()


@contextmanager
def slow(shop: Shop) -> Iterator[None]:
    over = threading.Event()
    shop.proxy.arm(60, lambda: over.wait(20) and None, times=1000)
    try:
        yield
    finally:
        shop.proxy.disarm()
        over.set()


@contextmanager
def locked(shop: Shop) -> Iterator[None]:
    with shop.server.locked("customers"):
        yield
