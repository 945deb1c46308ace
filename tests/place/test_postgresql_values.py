"""Values at the ends of what PostgreSQL has, and servers with settings of their own: a key finds what is equal to it, and
what comes is what is stored, looked up or read whole; what has no form here is an error that says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from anabranch.drive.local import LocalPipeline
from anabranch.errors import DatabaseError, DatabaseGoneError
from anabranch.place.databases import postgresql
from anabranch.place.databases.calls import Call
from anabranch.place.databases.postgresql import PostgreSQL
from anabranch.place.databases.postgresql_types import Stored, key_array
from anabranch.place.databases.protocol import Wanted
from anabranch.place.databases.settings import settings_of
from anabranch.place.reading import LookupCosts
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from bench.postgres import Server
from tests.support import oracle

DAY_US = 86_400_000_000
FIRST_US, LAST_US = -2_440_588 * DAY_US, 2**63 - 2
"""The first time that PostgreSQL has, and the last that we have."""


@pytest.fixture
def shop(postgres: Server) -> Iterator[PostgreSQL]:
    database = PostgreSQL(settings_of("shop", postgres.environment))
    yield database
    database.close()
    postgres.sql("DROP TABLE IF EXISTS held; ALTER ROLE looker RESET ALL; ALTER ROLE looker CONNECTION LIMIT -1")


def create(postgres: Server, columns: str, *rows: str) -> None:
    postgres.sql(f"CREATE TABLE held ({columns}); GRANT SELECT ON held TO looker;"
                 + "".join(f"INSERT INTO held VALUES ({row});" for row in rows))  # fmt: skip


HELD: dict[str, tuple[str, pa.DataType, dict[str, int]]] = {
    "date": ("DATE", pa.date32(), {
        "infinity": 2**31 - 1, "-infinity": -(2**31), "1970-01-01": 0, "5874897-12-31": 2_145_042_905,
        "4714-11-24 BC": -2_440_588, "0001-01-01 BC": -719_528, "12026-02-03": 3_672_912, "0020-01-01": -712_223,
    }),
    "timestamp": ("TIMESTAMP", pa.timestamp("us"), {
        "infinity": 2**63 - 1, "-infinity": -(2**63), "1970-01-01": 0, "1969-12-31 23:59:59.999999": -1,
        "294247-01-10 04:00:54.775806": LAST_US, "4714-11-24 00:00:00 BC": FIRST_US, "2026-01-02 03:04:05.000006":
        1_767_323_045_000_006, "0001-12-31 23:59:59.999999 BC": -62_135_596_800_000_001,
    }),
}  # fmt: skip
HELD["timestamptz"] = ("TIMESTAMP", HELD["timestamp"][1], {
    f"{text}+00" if text[0].isdigit() and "BC" not in text else text.replace(" BC", "+00 BC"): us
    for text, us in HELD["timestamp"][2].items()
})  # fmt: skip
NOWHERE = {
    pa.date32(): (2**31 - 2, -(2**31) + 1, 2_145_042_906, -2_440_589),
    pa.timestamp("us"): (FIRST_US - 1, -(2**63) + 1),
}
"""Dates and times that we have and PostgreSQL does not: no value of a column equals them, and none is an error."""

SETTINGS = {
    "as it is": "",
    "in another zone": "ALTER ROLE looker SET timezone = 'Asia/Kolkata'",
    "with dates written otherwise": "ALTER ROLE looker SET datestyle = 'SQL, DMY'",
}


@pytest.mark.few(3)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", HELD)
@pytest.mark.parametrize("way", ["looked up", "read whole"])
def test_dates_and_times_meet_those_that_are_equal(
    postgres: Server, shop: PostgreSQL, kind: str, setting: str, way: str
) -> None:
    """Whatever the session of the user has set, and at the ends of the range: as a stored table of ours has them."""
    name, type, held = HELD[kind]
    create(postgres, f"k {kind}, v int", *(f"'{text}', {n}" for n, text in enumerate(held)), "NULL, -1")
    postgres.sql(SETTINGS[setting])
    number = pa.int32() if type == pa.date32() else pa.int64()
    numbers = [*held.values(), *NOWHERE[type], 77, None]
    keys = pa.array(numbers, number).cast(type)
    orders = pa.table({"id": range(len(keys)), "k": keys, "ts": pa.array([0] * len(keys), pa.timestamp("us"))})
    streams = f"CREATE STREAM orders (id BIGINT, k {name}, ts TIMESTAMP) TIME ts;"
    asked = "CREATE QUERY q AS SELECT o.id, h.v FROM orders [NOW] o, held h WHERE o.k = h.k"
    there = streams + "CREATE TABLE held FROM DATABASE shop TABLE 'held';" + asked
    query = parse_script(there, describe=lambda _, table: shop.describe(table)).queries[0].query
    costs = {"shop": LookupCosts(0.0, key_s=1.0, row_s=0.0)} if way == "read whole" else {}
    postgres.sql("ANALYZE held")
    pipeline = LocalPipeline([query], MemoryFilesystem(), databases=lambda _: shop, lookup_costs=costs)
    found = oracle.bag(pipeline.step(0, {"orders": orders})["q"].results)
    ours = parse_script(streams + f"CREATE TABLE held (k {name}, v INT);" + asked).queries[0].query
    rows = pa.table({"k": pa.array(list(held.values()), number).cast(type), "v": pa.array(range(len(held)), pa.int32())})
    assert found == oracle.expected(ours, [{"orders": orders}], {"held": rows})
    assert found == Counter((n, n) for n in range(len(held)))


@pytest.mark.parametrize("kind", HELD)
def test_dates_and_times_come_as_they_are_and_infinities_as_the_ends(
    postgres: Server, shop: PostgreSQL, kind: str
) -> None:
    _, _, held = HELD[kind]
    create(postgres, f"k {kind}, v int", *(f"'{text}', {n}" for n, text in enumerate(held)))
    number = pa.int32() if kind == "date" else pa.int64()
    found = shop.read("held", shop.describe("held")).sort_by("v").column("k")
    assert [each for chunk in found.chunks for each in chunk.view(number).to_pylist()] == list(held.values())


def test_an_index_on_times_serves(postgres: Server) -> None:
    postgres.sql("CREATE TABLE many (k timestamptz); CREATE INDEX ON many (k);"
                 "INSERT INTO many SELECT to_timestamp(n) FROM generate_series(1, 100000) n; ANALYZE many")  # fmt: skip
    meant = key_array(Stored("timestamptz", pa.timestamp("us", "UTC")), pa.array([5], pa.timestamp("us")))
    plan = postgres.sql(f"EXPLAIN SELECT * FROM unnest('{{5}}'::{meant.cast}) AS k(k1) JOIN many t ON t.k = "
                        + meant.meant.format("k.k1"))  # fmt: skip
    postgres.sql("DROP TABLE many")
    assert "Index Only Scan" in plan


@pytest.mark.parametrize(
    ("columns", "row", "told"),
    [
        ("k int, v numeric(10,2)", "1, 'NaN'", "column v has a NaN"),
        ("k int, v timestamp", "1, '294276-12-31'", "column v has a time that is none here"),
        ("k int, v timestamptz", "1, '294247-01-10 04:00:54.775807+00'", "column v has a time that is none here"),
    ],
)
def test_a_value_that_has_no_form_here(postgres: Server, shop: PostgreSQL, columns: str, row: str, told: str) -> None:
    """Only what is read counts: other rows, and other columns, are had all the same."""
    create(postgres, columns, row, "2, NULL")
    described, key = shop.describe("held"), pa.table({"k": [1]})
    with pytest.raises(DatabaseError, match=f"the table held of the database shop: {told}"):
        shop.lookup(Wanted("held", ("k",), described), key)
    with pytest.raises(DatabaseError, match=told):
        shop.read("held", described)
    assert shop.lookup(Wanted("held", ("k",), described[:1]), key).num_rows == 1
    assert shop.lookup(Wanted("held", ("k",), described), pa.table({"k": [2]})).to_pylist() == [{"k": 2, "v": None}]


KEPT = {"LATIN1": ("é", "ü"), "EUC_JP": ("日", "本"), "SQL_ASCII": ("é", "日")}


@pytest.mark.parametrize("encoding", KEPT)
def test_a_database_of_another_encoding(postgres: Server, encoding: str) -> None:
    """Text comes as what it says. Keys that have no form there find nothing, and others are found beside them."""
    name, (one, two) = f"enc_{encoding.lower()}", KEPT[encoding]
    postgres.sql(f"CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0", "postgres")
    try:
        postgres.sql(f"SET client_encoding = 'UTF8'; CREATE TABLE held (k text, v text);"
                     f"INSERT INTO held VALUES ('{one}', '{two}'), ('{two}', 'x'), ('e', 'y');"
                     "CREATE VIEW fixed AS SELECT k::char(4) AS k, v FROM held; GRANT SELECT ON fixed TO looker;"
                     "GRANT SELECT ON held TO looker", name)  # fmt: skip
        shop = PostgreSQL(settings_of("shop", {**postgres.environment, "ANABRANCH_DATABASE_SHOP_DBNAME": name}))
        for table in ("held", "fixed"):
            columns = shop.describe(table)
            asked, whole = Wanted(table, ("k",), columns), shop.read(table, columns)
            assert Counter(whole.column("k").to_pylist()) == Counter([one, two, "e"])
            for odd in ("", "€", "ß", "😀", "ع"):
                found = shop.lookup(asked, pa.table({"k": [one, odd, "nothing", "e"]}))
                assert sorted(found.to_pylist(), key=str) == sorted([{"k": one, "v": two}, {"k": "e", "v": "y"}], key=str)
        with shop.export_snapshot() as snapshot:
            assert shop.lookup(asked, pa.table({"k": ["😀", two]}), snapshot).to_pylist() == [{"k": two, "v": "x"}]
        shop.close()
    finally:
        postgres.sql(f"DROP DATABASE {name}", "postgres")


def test_bytes_that_are_no_text_are_told(postgres: Server) -> None:
    postgres.sql("CREATE DATABASE odd ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0", "postgres")
    try:
        postgres.sql("CREATE TABLE held (k text); INSERT INTO held VALUES (E'\\xe9'); GRANT SELECT ON held TO looker", "odd")
        shop = PostgreSQL(settings_of("shop", {**postgres.environment, "ANABRANCH_DATABASE_SHOP_DBNAME": "odd"}))
        with pytest.raises(DatabaseError, match="invalid byte sequence for encoding"):
            shop.read("held", shop.describe("held"))
        shop.close()
    finally:
        postgres.sql("DROP DATABASE odd", "postgres")


def test_a_type_of_a_user_that_is_called_as_one_of_the_server(postgres: Server, shop: PostgreSQL) -> None:
    postgres.sql("CREATE DOMAIN public.uuid AS int")
    try:
        create(postgres, "k public.uuid")
        with pytest.raises(DatabaseError, match=r"is public\.uuid, which is no type here"):
            shop.describe("held")
    finally:
        postgres.sql("DROP TABLE held; DROP DOMAIN public.uuid")


def test_keys_that_other_rules_take_for_equal_are_not(postgres: Server, shop: PostgreSQL) -> None:
    """The column has a collation by which A and a are equal, and blanks at the end of `char(n)` do not count."""
    is_there = False
    with suppress(RuntimeError):  # not every server was built with it
        postgres.sql("CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
        is_there = True
    create(postgres, f"k text {'COLLATE loose' if is_there else ''}, c char(4), v int",
           "'A', 'a', 1", "'a', 'a ', 2", "'á', 'A', 3")  # fmt: skip
    text = "CREATE STREAM s (k STRING, c STRING, ts TIMESTAMP) TIME ts; CREATE TABLE held FROM DATABASE shop TABLE 'held';"
    rows = pa.table({"k": ["a", "A", "á", "b"], "c": ["a", "a ", "A", "a"], "ts": pa.array([0] * 4, pa.timestamp("us"))})
    for key, wanted in (("k", [("A", 1), ("a", 2), ("á", 3)]), ("c", [("A", 3), ("a", 1), ("a", 1), ("a", 2), ("a", 2)])):
        script = text + f"CREATE QUERY q AS SELECT s.{key}, h.v FROM s [NOW], held h WHERE s.{key} = h.{key}"
        query = parse_script(script, describe=lambda _, table: shop.describe(table)).queries[0].query
        pipeline = LocalPipeline([query], MemoryFilesystem(), databases=lambda _: shop)
        found = oracle.bag(pipeline.step(0, {"s": rows})["q"].results)
        assert sorted(found.elements()) == wanted, key


@pytest.mark.parametrize("bound", ["KEYS_AT_ONCE", "BYTES_AT_ONCE"])
def test_many_keys_go_in_several_statements(
    postgres: Server, shop: PostgreSQL, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    create(postgres, "k text, v int", *(f"'k{n}', {n}" for n in range(40)))
    monkeypatch.setattr(postgresql, bound, 7 if bound == "KEYS_AT_ONCE" else 60)
    asked, sent, inner = Wanted("held", ("k",), shop.describe("held")), list[int](), postgresql._rows

    def counted(call: Call, sql: str, parameters: pa.RecordBatch, *more: Any) -> pa.Table:
        sent.append(len(parameters.column(0).values))
        return inner(call, sql, parameters, *more)

    monkeypatch.setattr(postgresql, "_rows", counted)
    keys = pa.table({"k": [f"k{n}" for n in range(50)] + ["x" * 100]})
    with shop.export_snapshot() as snapshot:
        for seen in (None, snapshot):
            sent.clear()
            assert sorted(shop.lookup(asked, keys, seen).column("v").to_pylist()) == list(range(40))
            assert len(sent) > 6
            assert sum(sent) == 51
    assert np.max(sent) <= 25
    assert shop.lookup(asked, keys.slice(0, 0)).num_rows == 0


def test_no_more_is_found_than_a_worker_bears(
    postgres: Server, shop: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(postgres, "k int, v text")
    postgres.sql("INSERT INTO held SELECT n % 2, repeat('x', 1000) FROM generate_series(1, 2000) n")
    asked, keys = Wanted("held", ("k",), shop.describe("held")), pa.table({"k": [0, 1]})
    with shop.export_snapshot() as snapshot:
        for seen in (None, snapshot):
            monkeypatch.setattr(postgresql, "MOST_FOUND", 1 << 20)
            with pytest.raises(DatabaseError, match="more than 1 MiB of rows for 2 keys of a batch: is k what rows"):
                shop.lookup(asked, keys, seen)
            monkeypatch.setattr(postgresql, "MOST_FOUND", 1 << 30)
            assert shop.lookup(asked, keys, seen).num_rows == 2000


def test_no_more_is_found_by_all_statements_of_a_lookup_than_a_worker_bears(
    postgres: Server, shop: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(postgres, "k int, v text")
    postgres.sql("INSERT INTO held SELECT n, repeat('x', 1000) FROM generate_series(1, 20) n")
    asked, keys = Wanted("held", ("k",), shop.describe("held")), pa.table({"k": range(1, 21)})
    monkeypatch.setattr(postgresql, "KEYS_AT_ONCE", 5)
    monkeypatch.setattr(postgresql, "MOST_FOUND", 15_000)
    with pytest.raises(DatabaseError, match="rows for 20 keys of a batch"):
        shop.lookup(asked, keys)
    monkeypatch.setattr(postgresql, "MOST_FOUND", 25_000)
    assert shop.lookup(asked, keys).num_rows == 20


def test_no_more_is_read_than_a_worker_has_room_for(postgres: Server, shop: PostgreSQL) -> None:
    """A text is compressed there."""
    create(postgres, "k int, v text")
    postgres.sql("INSERT INTO held SELECT n, repeat('x', 100000) FROM generate_series(1, 200) n; ANALYZE held")
    columns, size = shop.describe("held"), shop.size("held")
    assert size is not None
    assert size.bytes < 1 << 20
    with pytest.raises(DatabaseError, match="the table held of the database shop has more than 16 MiB"):
        shop.read("held", columns, most_bytes=1 << 24)
    assert shop.read("held", columns, most_bytes=1 << 25).num_rows == 200


def test_a_server_at_its_limits_may_answer_later(postgres: Server, shop: PostgreSQL) -> None:
    """Whoever waits for a database that is gone (`lookup_failure`) waits for this, too."""
    create(postgres, "k int")
    postgres.sql("ALTER ROLE looker CONNECTION LIMIT 0")
    with pytest.raises(DatabaseGoneError, match="too many connections"):
        shop.describe("held")
    postgres.sql("ALTER ROLE looker CONNECTION LIMIT -1; ALTER ROLE looker SET lock_timeout = '50ms'")
    asked = Wanted("held", ("k",), shop.describe("held"))
    with postgres.locked("held"), pytest.raises(DatabaseGoneError, match="lock timeout"):
        shop.lookup(asked, pa.table({"k": [1]}))
    assert shop.lookup(asked, pa.table({"k": [1]})).num_rows == 0


def test_a_statement_that_fails_in_the_server_is_not_taken_for_a_server_that_is_not_there(
    postgres: Server, shop: PostgreSQL
) -> None:
    postgres.sql("CREATE TABLE held (k int); INSERT INTO held VALUES (0);"
                 "CREATE VIEW bad AS SELECT 1 / k AS v FROM held; GRANT SELECT ON bad TO looker")  # fmt: skip
    try:
        with pytest.raises(DatabaseError, match=r"division by zero; does SELECT \* FROM the table, or the view, work"):
            shop.read("bad", shop.describe("bad"))
    finally:
        postgres.sql("DROP VIEW bad")
