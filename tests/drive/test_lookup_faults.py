"""What goes wrong with a real PostgreSQL while queries look up in it: results are those of the batches that were committed.

Each fault strikes in one batch of several. If the batch fails by it, the tables are changed while it is down, and the batch
is run again by a pipeline that knows nothing: its rows meet the tables as the second attempt finds them, all other rows what
their own batches found.
"""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from anabranch.drive.local import LocalPipeline
from anabranch.errors import DatabaseError
from anabranch.place.databases.postgresql import PostgreSQL
from anabranch.place.databases.settings import settings_of
from anabranch.storage.filesystem import MemoryFilesystem
from bench.postgres import Server
from tests.support import oracle
from tests.support.cutting import CuttingProxy
from tests.support.lookups import CASES, batches, bound, expected, feed, table_rows

CREATE = {
    "customers": "CREATE TABLE customers (id int, region text, least bigint, name text);"
                 "GRANT SELECT ON customers TO looker;",
    "regions": "CREATE TABLE regions (code text, rate double precision); GRANT SELECT ON regions TO looker;",
}
STRIKES_IN = 1
"""The batch in which something goes wrong."""


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
    return "NULL" if value is None else repr(value) if not isinstance(value, str) else "'" + value.replace("'", "''") + "'"


@pytest.fixture
def shop(postgres: Server) -> Iterator[Shop]:
    with tempfile.TemporaryDirectory(prefix="ab-cut-", dir="/tmp") as folder:  # a socket's path must be short
        proxy = CuttingProxy(Path(folder), postgres.socket)
        found = Shop(postgres, proxy)
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
def restarted(shop: Shop) -> Iterator[None]:
    shop.server.kill()
    shop.server.start()
    yield


@contextmanager
def sessions_ended(shop: Shop) -> Iterator[None]:
    shop.server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'looker'")
    yield


@contextmanager
def always_cut(shop: Shop) -> Iterator[None]:
    shop.proxy.arm(60, times=1000)
    try:
        yield
    finally:
        shop.proxy.disarm()


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


@contextmanager
def dropped(shop: Shop) -> Iterator[None]:
    shop.server.sql("DROP TABLE customers")
    try:
        yield
    finally:
        shop.server.sql(CREATE["customers"])


@contextmanager
def without_a_column(shop: Shop) -> Iterator[None]:
    shop.server.sql("ALTER TABLE customers DROP COLUMN name")
    try:
        yield
    finally:
        shop.server.sql("ALTER TABLE customers ADD COLUMN name text")


@contextmanager
def of_another_type(shop: Shop) -> Iterator[None]:
    shop.server.sql("ALTER TABLE customers ALTER COLUMN id TYPE text")
    try:
        yield
    finally:
        shop.server.sql("ALTER TABLE customers ALTER COLUMN id TYPE int USING id::int")


@contextmanager
def with_another_column(shop: Shop) -> Iterator[None]:
    shop.server.sql("ALTER TABLE customers ADD COLUMN born date, ALTER COLUMN name TYPE varchar(30)")
    try:
        yield
    finally:
        shop.server.sql("ALTER TABLE customers DROP COLUMN born")


@contextmanager
def forbidden(shop: Shop) -> Iterator[None]:
    shop.server.sql("REVOKE SELECT ON customers FROM looker")
    try:
        yield
    finally:
        shop.server.sql("GRANT SELECT ON customers TO looker")


FAULTS: dict[str, tuple[Fault, str, float]] = {
    "killed before": (killed_before, "is it running", 30),
    "killed within": (killed_within, "is it running", 30),
    "restarted": (restarted, "", 30),
    "sessions ended": (sessions_ended, "", 30),
    "always cut": (always_cut, "the database shop says", 30),
    "slow": (slow, "took longer than 1 s", 1),
    "locked": (locked, "took longer than 1 s", 1),
    "dropped": (dropped, "is the table still there", 30),
    "without a column": (without_a_column, "was the table altered", 30),
    "of another type": (of_another_type, "was the type of a key column changed", 30),
    "with another column": (with_another_column, "", 30),
    "forbidden": (forbidden, "GRANT SELECT", 30),
}
"""What goes wrong, what is said then (nothing: it goes on), and the timeout."""


def run(shop: Shop, case_name: str, slots: int, strike: Fault, told: str, timeout_s: float = 30, seed: int = 7) -> None:
    """Batches, in one of which something goes wrong."""
    rng, case = np.random.default_rng([seed, slots]), CASES[case_name]
    query, given = bound(case), batches(rng, 2, 60)
    disk, versions, found = MemoryFilesystem(), list[dict[str, pa.Table]](), Counter[tuple[object, ...]]()

    def started() -> LocalPipeline:
        database = shop.connect(timeout_s)
        return LocalPipeline([query], disk, slots=slots, databases=lambda _: database)

    pipeline = started()
    for batch, rows in enumerate([*given, {}]):
        versions.append(shop.put(table_rows(rng)) if rows else versions[-1])
        if batch != STRIKES_IN:
            found += oracle.bag(pipeline.step(batch, feed(query, rows))["q"].results)
            continue
        with strike(shop):
            if not told:
                found += oracle.bag(pipeline.step(batch, feed(query, rows))["q"].results)
            else:
                with pytest.raises(DatabaseError, match=told):
                    pipeline.step(batch, feed(query, rows))
        if told:
            pipeline, versions[-1] = started(), shop.put(table_rows(rng))
            found += oracle.bag(pipeline.step(batch, feed(query, rows))["q"].results)
    assert (theirs := expected(case, given, versions)) == found, oracle.difference(found, theirs)
    assert theirs, "a case without results tells nothing"


@pytest.mark.few(3)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_one_batch(shop: Shop, fault: str) -> None:
    run(shop, "two streams", 1, *FAULTS[fault])


@pytest.mark.few(1)
@pytest.mark.parametrize("fault", ["killed within", "sessions ended", "dropped"])
def test_a_fault_where_slots_read_one_snapshot(shop: Shop, fault: str) -> None:
    strike, told, timeout_s = FAULTS[fault]
    run(shop, "joined by what is found", 3, strike, "the database shop says" if told else "", timeout_s)


def test_a_connection_that_is_cut_anywhere_in_a_transfer(shop: Shop) -> None:
    """The call is made again on a new connection, and nobody notices. The first bytes of a connection are its login."""
    for number, after in enumerate((0, 60, 150, 700, 1_100), start=1):
        @contextmanager
        def cut(shop: Shop, after: int = after) -> Iterator[None]:
            if after > 500:
                shop.server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'looker'")
            shop.proxy.arm(after)
            try:
                yield
            finally:
                shop.proxy.disarm()

        shop.create()
        run(shop, "two streams", 1, cut, "")
        assert shop.proxy.interfered == number


def test_a_database_that_is_gone_after_the_commit_is_not_missed(shop: Shop) -> None:
    """What was found is state: batches without keys to look up, and rebuilds, need no database."""
    rng, case = np.random.default_rng(3), CASES["two streams"]
    query, given = bound(case), batches(rng, 4, 60)
    given = [given[0], *({"payments": rows["payments"]} for rows in given[1:])]
    version, disk = shop.put(table_rows(rng)), MemoryFilesystem()
    database = shop.connect()
    pipeline = LocalPipeline([query], disk, databases=lambda _: database)
    found = oracle.bag(pipeline.step(0, given[0])["q"].results)
    shop.server.kill()
    try:
        for batch, rows in enumerate(given[1:], start=1):
            pipeline = LocalPipeline([query], disk, databases=lambda _: database)
            found += oracle.bag(pipeline.step(batch, rows)["q"].results)
    finally:
        shop.server.start()
    empty = {"orders": given[0]["orders"].slice(0, 0)}
    assert (theirs := expected(case, [given[0], *({**empty, **rows} for rows in given[1:])], [version] * 4)) == found
    assert theirs
