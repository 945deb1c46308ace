"""A real PostgreSQL: types, keys, names, bad settings, faults, snapshots; and that nothing tells the password."""

from __future__ import annotations

import datetime as dt
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from adbc_driver_postgresql import dbapi as driver

from anabranch.errors import DatabaseError, DatabaseGoneError
from anabranch.place.databases.postgresql import PostgreSQL
from anabranch.place.databases.protocol import Wanted
from anabranch.place.databases.settings import settings_of
from bench.postgres import PASSWORD, Server

EVERY_TYPE = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE every (sm smallint, i integer, b bigint, n numeric(10,2), t text, v varchar(9), c char(4), u uuid, f boolean,
                    d date, ts timestamp, tz timestamptz, y bytea, m mood, r real, dp double precision);
INSERT INTO every VALUES (1, 2, 3, 4.50, 'é''"', 'v', 'ab', '00000000-0000-0000-0000-00000000000a', true, '2026-01-02',
                          '2026-01-02 03:04:05.000006', '2026-01-02 03:04:05.000006+00', '\\x00ff', 'ok', 1.5, 2.5);
INSERT INTO every (sm) VALUES (NULL);
GRANT SELECT ON every TO looker;
"""
TIME = dt.datetime(2026, 1, 2, 3, 4, 5, 6)
VALUES = {
    "sm": 1, "i": 2, "b": 3, "n": Decimal("4.50"), "t": "é'\"", "v": "v", "c": "ab",
    "u": "00000000-0000-0000-0000-00000000000a", "f": True, "d": dt.date(2026, 1, 2), "ts": TIME,
    "tz": TIME.replace(tzinfo=dt.UTC), "y": b"\x00\xff", "m": "ok", "r": 1.5, "dp": 2.5,
}  # fmt: skip


@pytest.fixture
def shop(postgres: Server) -> Iterator[PostgreSQL]:
    database = PostgreSQL(settings_of("shop", postgres.environment))
    yield database
    database.close()


def wanted(database: PostgreSQL, table: str, *keys: str) -> Wanted:
    return Wanted(table, keys, tuple(database.describe(table)))


def test_columns_and_values_of_every_type(postgres: Server, shop: PostgreSQL) -> None:
    postgres.sql(EVERY_TYPE)
    try:
        every = wanted(shop, "public.every", "i")
        assert shop.read("every", every.columns).to_pylist()[0] == VALUES
        for key, value in VALUES.items():
            if key in ("r", "dp"):
                continue
            type = dict(every.columns)[key]
            other = {pa.string(): "x", pa.bool_(): False, pa.binary(): b""}.get(type)
            keys = pa.table({"key": pa.array([value] + ([] if other is None else [other]), type)})
            found = shop.lookup(Wanted("every", (key,), every.columns), keys)
            assert found.to_pylist() == [VALUES], key
            assert found.schema.types == [type for _, type in every.columns]
        odd = pa.table({"key": ["\0", "00000000-0000-0000-0000-00000000000A", "nothing", ""]})
        for key in ("t", "u", "c", "m"):
            assert shop.lookup(Wanted("every", (key,), every.columns), odd).num_rows == 0
    finally:
        postgres.sql("DROP TABLE every; DROP TYPE mood")


def test_names_with_quotes_and_several_keys(postgres: Server, shop: PostgreSQL) -> None:
    postgres.sql("""
        CREATE SCHEMA "My ""S"; GRANT USAGE ON SCHEMA "My ""S" TO looker;
        CREATE TABLE "My ""S"."a.b'c" ("K ""1" int, "select" text, "V;--" int);
        INSERT INTO "My ""S"."a.b'c" VALUES (1, 'x', 10), (1, 'y', 20), (2, 'x', 30), (1, 'x', 11), (NULL, 'x', 40);
        GRANT SELECT ON "My ""S"."a.b'c" TO looker""")
    name = """ "My ""S"."a.b'c" """
    columns = shop.describe(name)
    assert columns == (("K \"1", pa.int32()), ("select", pa.string()), ("V;--", pa.int32()))
    keys = pa.table({"a": pa.array([1, 2, 3], pa.int64()), "b": ["x", "y", "x"]})
    found = shop.lookup(Wanted(name, ("K \"1", "select"), columns), keys)
    assert sorted(found.column("V;--").to_pylist()) == [10, 11]
    assert shop.lookup(Wanted(name, ("K \"1", "select"), columns), keys.slice(0, 0)).num_rows == 0


def test_what_is_wrong_is_said_within_seconds_and_without_the_password(postgres: Server, tmp_path: Path) -> None:
    postgres.sql("""CREATE TABLE odd (a int, shape point); GRANT SELECT ON odd TO looker; CREATE TABLE secret (a int);
                    CREATE TABLE plain (a int); GRANT SELECT ON plain TO looker;
                    CREATE SCHEMA hidden; CREATE TABLE hidden.t (a int); GRANT SELECT ON hidden.t TO looker""")
    right = postgres.environment

    def asked(table: str, **other: str) -> str:
        own = {f"ANABRANCH_DATABASE_SHOP_{key}": value for key, value in other.items()}
        database, began = PostgreSQL(settings_of("shop", {**right, **own})), time.monotonic()
        with pytest.raises(DatabaseError) as told:
            database.read(table, database.describe(table))
        assert time.monotonic() - began < 15
        assert PASSWORD not in str(told.value)
        return str(told.value)

    assert "check ANABRANCH_DATABASE_SHOP_USER" in (wrong := asked("plain", PASSWORD="hunter2"))
    assert "hunter2" not in wrong
    assert 'database "nope" does not exist' in asked("plain", DBNAME="nope")
    assert "there is no table nope in the database shop" in asked("nope")
    assert "column shape of odd in the database shop is point, which is no type here" in asked("odd")
    assert "GRANT SELECT" in asked("secret")
    assert "GRANT" in asked("hidden.t")
    assert "invalid connection option" in asked("plain", PASSWRD=PASSWORD)
    assert asked("plain", SSLMODE="often")
    assert asked("plain", PORT="many")
    assert asked("plain", HOST="127.0.0.1", PORT="1")
    assert "is it running" in asked("plain", HOST=str(tmp_path))
    assert "'' is no name of a table" in asked("")
    with pytest.raises(DatabaseError, match="TIMEOUT is a number"):
        settings_of("shop", {"ANABRANCH_DATABASE_SHOP_TIMEOUT": "soon"})


def test_a_table_of_which_we_may_not_read_all_is_refused_or_has_the_other_columns(
    postgres: Server, shop: PostgreSQL
) -> None:
    """What we may not read is said when a table is declared, not by the first batch."""
    postgres.sql("CREATE TABLE half (id int, name text, salary int); GRANT SELECT (id, name) ON half TO looker;"
                 "INSERT INTO half VALUES (1, 'x', 2); CREATE TABLE none (id int)")  # fmt: skip
    columns = shop.describe("half")
    assert columns == (("id", pa.int32()), ("name", pa.string()))
    assert shop.lookup(Wanted("half", ("id",), columns), pa.table({"k": [1]})).to_pylist() == [{"id": 1, "name": "x"}]
    with pytest.raises(DatabaseError, match="we may not read the table none of the database shop: have its owner GRANT"):
        shop.describe("none")


def test_how_large_a_table_is_as_far_as_the_server_knows(postgres: Server, shop: PostgreSQL) -> None:
    postgres.sql("CREATE TABLE sized AS SELECT n AS id FROM generate_series(1, 5000) n; GRANT SELECT ON sized TO looker;"
                 "CREATE VIEW seen AS SELECT * FROM sized; GRANT SELECT ON seen TO looker")  # fmt: skip
    assert shop.size("sized") is None, "it was never analysed"
    postgres.sql("ANALYZE sized")
    size = shop.size("public.sized")
    assert size is not None
    assert size.rows == 5000
    assert size.bytes > 5000 * 4
    assert shop.size("seen") is None
    assert shop.size("nowhere") is None
    columns = shop.describe("sized")
    assert shop.read("sized", columns, most_rows=7).num_rows == 7
    with shop.export_snapshot() as snapshot:
        postgres.sql("DELETE FROM sized WHERE id > 10")
        assert shop.read("sized", columns, snapshot).num_rows == 5000
        assert shop.read("sized", columns).num_rows == 10


def test_a_table_that_changes_under_us(postgres: Server, shop: PostgreSQL) -> None:
    postgres.sql("CREATE TABLE moving (id int, v int); INSERT INTO moving VALUES (1, 1); GRANT SELECT ON moving TO looker")
    asked, keys = wanted(shop, "moving", "id"), pa.table({"k": [1]})
    with shop.export_snapshot() as snapshot:
        postgres.sql("UPDATE moving SET v = 2")
        assert shop.lookup(asked, keys, snapshot).to_pylist() == [{"id": 1, "v": 1}]
        assert shop.lookup(asked, keys).to_pylist() == [{"id": 1, "v": 2}]
        assert shop.lookup(asked, keys, snapshot).to_pylist() == [{"id": 1, "v": 1}]
    time.sleep(1)  # the server takes a moment to see that its holder has gone
    with pytest.raises(DatabaseGoneError, match="new snapshot"):
        shop.lookup(asked, keys, snapshot)
    assert shop.lookup(asked, keys).num_rows == 1
    postgres.sql("ALTER TABLE moving DROP COLUMN v")
    with pytest.raises(DatabaseError, match="was the table altered"):
        shop.lookup(asked, keys)
    with pytest.raises(DatabaseError, match="has no column v any more"):
        shop.lookup(asked, keys)
    postgres.sql("ALTER TABLE moving ADD COLUMN v text; UPDATE moving SET v = 'x'")
    with pytest.raises(DatabaseError, match="has other types than when it was declared"):
        shop.lookup(asked, keys)
    postgres.sql("DROP TABLE moving")
    with pytest.raises(DatabaseError, match="is the table still there"):
        shop.lookup(asked, keys)
    with pytest.raises(DatabaseError, match="there is no table moving"):
        shop.lookup(asked, keys)


def test_a_lock_held_by_another_and_a_server_that_hangs(postgres: Server) -> None:
    postgres.sql("CREATE TABLE locked (id int); INSERT INTO locked VALUES (1); GRANT SELECT ON locked TO looker")
    shop = PostgreSQL(settings_of("shop", {**postgres.environment, "ANABRANCH_DATABASE_SHOP_TIMEOUT": "1"}))
    asked, keys = wanted(shop, "locked", "id"), pa.table({"k": [1]})
    with postgres.locked("locked"), pytest.raises(
        DatabaseError, match=r"took longer than 1 s: .* ANABRANCH_DATABASE_SHOP_TIMEOUT"
    ):
        shop.lookup(asked, keys)
    assert shop.lookup(asked, keys).num_rows == 1
    pids = [int(pid) for pid in postgres.sql("SELECT pid FROM pg_stat_activity WHERE usename = 'looker'").split()]
    for pid in pids:
        subprocess.run(["kill", f"-{signal.SIGSTOP.value}", str(pid)], check=True)
    try:
        began = time.monotonic()
        with pytest.raises(DatabaseError, match="took longer"):
            shop.lookup(asked, keys)
        assert time.monotonic() - began < 8
        assert shop.lookup(asked, keys).num_rows == 1  # on a new connection
    finally:
        for pid in pids:
            subprocess.run(["kill", f"-{signal.SIGCONT.value}", str(pid)], check=True)


def test_a_server_that_is_killed_and_comes_back(postgres: Server, shop: PostgreSQL) -> None:
    postgres.sql("CREATE TABLE kept (id int); INSERT INTO kept VALUES (1); GRANT SELECT ON kept TO looker")
    asked, keys = wanted(shop, "kept", "id"), pa.table({"k": [1]})
    postgres.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'looker'")
    assert shop.lookup(asked, keys).num_rows == 1  # made again at once
    postgres.kill()
    with pytest.raises(DatabaseError, match="is it running"):
        shop.lookup(asked, keys)
    postgres.start()
    assert shop.lookup(asked, keys).num_rows == 1


SLOW = """
CREATE OR REPLACE VIEW slow AS SELECT 1 AS id, pg_sleep(60)::text AS s; GRANT SELECT ON slow TO looker;
CREATE OR REPLACE VIEW endless AS SELECT set_config('statement_timeout', '0', false) AS s; GRANT SELECT ON endless TO looker
"""
"""A table that takes long to read, and one that rids whoever reads it of the timeout of the server."""


def no_slow_statement(postgres: Server) -> bool:
    """Whether the server soon runs no statement for us that takes long."""
    running = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'looker' AND query LIKE '%slow%' AND state = 'active'"
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if postgres.sql(running).strip() == "0":
            return True
        time.sleep(0.1)
    return False


def test_a_call_that_takes_too_long_is_cancelled_in_the_server(postgres: Server) -> None:
    postgres.sql(SLOW)
    shop = PostgreSQL(settings_of("shop", {**postgres.environment, "ANABRANCH_DATABASE_SHOP_TIMEOUT": "1"}))
    columns = shop.describe("slow")
    shop.read("endless", shop.describe("endless"))
    with pytest.raises(DatabaseError, match="took longer than 1 s"):
        shop.read("slow", columns)
    assert no_slow_statement(postgres)
    assert shop.size("slow") is None, "the next call has a connection of its own"
    shop.close()


LOOKS = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored where tests run
from anabranch.place.databases.postgresql import PostgreSQL
from anabranch.place.databases.settings import settings_of
shop = PostgreSQL(settings_of("shop"))
columns = shop.describe("slow")
shop.read("endless", shop.describe("endless"))
print("asks", flush=True)
try:
    shop.read("slow", columns)
except KeyboardInterrupt:
    time.sleep(60)  # it is still there
"""


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL])
def test_what_runs_in_the_server_ends_with_who_asked_for_it(postgres: Server, by: signal.Signals) -> None:
    postgres.sql(SLOW)
    env = {**os.environ, **postgres.environment, "ANABRANCH_DATABASE_SHOP_TIMEOUT": "120"}
    with subprocess.Popen(
        [sys.executable, "-c", LOOKS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env, text=True
    ) as worker:
        try:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "asks\n"
            time.sleep(0.5)  # it asks
            worker.send_signal(by)
            assert no_slow_statement(postgres)
        finally:
            worker.kill()


def test_a_service_file_and_a_passfile(postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    services, passes = tmp_path / "services", tmp_path / "passes"
    services.write_text(f"[shop]\nhost={postgres.socket}\ndbname=shop\nuser=looker\n")
    passes.write_text(f"*:*:*:looker:{PASSWORD}\n")
    passes.chmod(0o600)
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    monkeypatch.setenv("PGPASSFILE", str(passes))
    postgres.sql("CREATE TABLE served (id int); GRANT SELECT ON served TO looker")
    assert PostgreSQL(settings_of("shop", {})).describe("served") == (("id", pa.int32()),)


def ended(postgres: Server, name: str) -> bool:
    """Whether the server soon ends all connections of a name."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if postgres.sql(f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'").strip() == "0":
            return True
    return False


@pytest.mark.parametrize("setting", ["idle_in_transaction_session_timeout", "transaction_timeout"])
def test_a_snapshot_is_held_for_longer_than_the_server_bears_transactions(
    postgres: Server, shop: PostgreSQL, setting: str
) -> None:
    if not postgres.sql(f"SELECT 1 FROM pg_settings WHERE name = '{setting}'"):
        pytest.skip(f"the server has no {setting}")
    postgres.sql("CREATE TABLE IF NOT EXISTS long (id int, v int); DELETE FROM long; INSERT INTO long VALUES (1, 1);"
                 "GRANT SELECT ON long TO looker")  # fmt: skip
    asked, keys = wanted(shop, "long", "id"), pa.table({"k": [1]})
    own = {"ANABRANCH_DATABASE_SHOP_APPLICATION_NAME": "witness"}
    dsn = settings_of("shop", {**postgres.environment, **own}).dsn
    postgres.sql(f"ALTER ROLE looker SET {setting} = '100ms'")
    try:
        with shop.export_snapshot() as snapshot:
            with closing(driver.connect(dsn, autocommit=True)) as witness, witness.cursor() as cursor:
                cursor.execute("BEGIN")
                assert ended(postgres, "witness")
            postgres.sql("UPDATE long SET v = 2")
            assert shop.lookup(asked, keys, snapshot).to_pylist() == [{"id": 1, "v": 1}]
    finally:
        postgres.sql(f"ALTER ROLE looker RESET {setting}")
