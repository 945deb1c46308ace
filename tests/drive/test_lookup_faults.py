"""What goes wrong with a real PostgreSQL while queries look up in it: results are those of the batches that were committed.

Each fault strikes in one batch of several. If the batch fails by it, the tables are changed while it is down, and the batch
is run again by a pipeline that knows nothing: its rows meet the tables as the second attempt finds them, all other rows what
their own batches found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest

from anabranch.drive.local import LocalPipeline
from anabranch.errors import DatabaseError
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.lookups import CASES, batches, bound, expected, feed, table_rows
from tests.support.shop import CREATE, Fault, Shop, killed_before, killed_within, locked, slow

STRIKES_IN = 1
"""The batch in which something goes wrong."""


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
