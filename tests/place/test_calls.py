"""Calls of a server through a driver that does what a test has it do: which connection says what, and what becomes of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from anabranch.errors import DatabaseGoneError
from anabranch.place.databases import calls, postgresql
from anabranch.place.databases.postgresql import PostgreSQL
from anabranch.place.databases.protocol import Limits
from anabranch.place.databases.settings import Settings

WAIT_S = 60.0
COLUMNS = (("id", pa.int32()),)
DESCRIBED = pa.table(
    {"attname": ["id"], "typname": ["int4"], "typtype": ["b"], "atttypmod": [-1], "shown": ["integer"], "is_ours": [True]}
)


class Driver:
    """Makes connections, and notes what each is asked and that it is closed. `meanwhile` is called ahead of statements,
    `connecting` ahead of connections."""

    def __init__(self) -> None:
        self.said: list[list[str]] = []
        self.dsn = ""
        self.meanwhile: Callable[[int, str], None] = lambda number, sql: None
        self.connecting: Callable[[int], None] = lambda number: None

    def connect(self, dsn: str, autocommit: bool) -> Connection:
        self.said.append([])
        self.dsn = dsn
        number = len(self.said) - 1
        self.connecting(number)
        return Connection(self, number)


class Connection:
    def __init__(self, driver: Driver, number: int) -> None:
        self.driver, self.number = driver, number

    def cursor(self) -> Cursor:
        return Cursor(self.driver, self.number)

    def close(self) -> None:
        self.driver.said[self.number].append("closed")


class Cursor:
    def __init__(self, driver: Driver, number: int) -> None:
        self.driver, self.number = driver, number
        self.description: object = None
        self.sql = ""

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def execute(self, sql: str, parameters: Any = None) -> None:
        if sql != postgresql.WATCH:
            self.sql, self.description = sql, "rows" if sql.lstrip().startswith("SELECT") else None
            self.driver.said[self.number].append(" ".join(sql.split()[:3]))
            self.driver.meanwhile(self.number, sql)

    def fetchall(self) -> list[tuple[str]]:
        return []

    def fetch_arrow_table(self) -> pa.Table:
        return DESCRIBED if self.sql == postgresql.DESCRIBE else pa.table({"id": pa.array([1], pa.int32())})

    def adbc_cancel(self) -> None:
        """It does not reach the server."""

    def close(self) -> None:
        pass


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    monkeypatch.setattr(postgresql, "driver", made)
    return made


@pytest.fixture
def shop(driver: Driver) -> PostgreSQL:
    found = PostgreSQL(Settings("shop", {"host": "h"}, Limits(timeout_s=WAIT_S, retries=0)))
    found.describe("t")
    return found


def leave(monkeypatch: pytest.MonkeyPatch, ask: Callable[[], object], hangs: threading.Event) -> None:
    """Leaves a call when it hangs: one that was left sooner, on a slow machine, is made again."""
    with monkeypatch.context() as patched:
        patched.setattr(postgresql, "GRACE_S", 0.05 - WAIT_S)
        patched.setattr(calls, "CANCEL_S", 0.01)
        while not hangs.is_set():
            with pytest.raises(DatabaseGoneError, match="took longer"):
                ask()


BEGIN, IMPORT, SELECT = "BEGIN ISOLATION LEVEL", "SET TRANSACTION SNAPSHOT", 'SELECT t."id" AS'


@pytest.mark.parametrize("seen", ["one", None])
def test_a_call_that_was_left_says_nothing_on_the_connection_of_the_next(
    driver: Driver, shop: PostgreSQL, monkeypatch: pytest.MonkeyPatch, seen: str | None
) -> None:
    """Its answer comes while the next call is in the middle of its transaction."""
    hangs, answers, late = threading.Event(), threading.Event(), dict[int, threading.Thread]()

    def hanging(number: int, sql: str) -> None:
        if sql.startswith("SELECT"):
            late[number] = threading.current_thread()
            hangs.set()
            assert answers.wait(WAIT_S)

    def answering(number: int, sql: str) -> None:
        if number not in late and sql.startswith("SET"):
            answers.set()
            for thread in late.values():
                thread.join(WAIT_S)

    driver.meanwhile = hanging
    leave(monkeypatch, lambda: shop.read("t", COLUMNS, seen), hangs)
    driver.meanwhile = answering
    assert shop.read("t", COLUMNS, "two").num_rows == 1
    assert not any(thread.is_alive() for thread in late.values())
    for number in late:
        said = driver.said[number][1:] if number == 0 else driver.said[number]
        assert said == [*([BEGIN, IMPORT] if seen else []), SELECT, "closed"]
    assert driver.said[-1] == [BEGIN, IMPORT, SELECT, "COMMIT"]


def test_a_connection_that_comes_too_late_is_closed(
    driver: Driver, shop: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, answers, late = threading.Event(), threading.Event(), dict[int, threading.Thread]()

    def hanging(number: int) -> None:
        late[number] = threading.current_thread()
        hangs.set()
        assert answers.wait(WAIT_S)

    shop.close()
    driver.connecting = hanging
    leave(monkeypatch, lambda: shop.read("t", COLUMNS), hangs)
    driver.connecting = lambda number: None
    assert shop.read("t", COLUMNS).num_rows == 1
    answers.set()
    for number, thread in late.items():
        thread.join(WAIT_S)
        assert driver.said[number] == ["closed"]
    assert shop.read("t", COLUMNS).num_rows == 1
    assert driver.said[-1] == [SELECT, SELECT]


def test_a_call_that_fails_in_a_transaction_leaves_it_to_nobody(driver: Driver, shop: PostgreSQL) -> None:
    """Whatever fails: the next call would read what the transaction sees."""
    def fails(number: int, sql: str) -> None:
        if sql.startswith("SELECT"):
            raise pa.ArrowInvalid("what comes cannot be read")

    driver.meanwhile = fails
    with pytest.raises(pa.ArrowInvalid):
        shop.read("t", COLUMNS, "one")
    driver.meanwhile = lambda number, sql: None
    assert shop.read("t", COLUMNS).num_rows == 1
    assert driver.said[0][1:] == [BEGIN, IMPORT, SELECT, "closed"]
    assert driver.said[1:] == [[SELECT]]


def test_a_connection_that_is_cut_soon_ends_so_that_a_call_that_was_left_does_not_wait_for_hours(driver: Driver) -> None:
    shop = PostgreSQL(Settings("shop", {"host": "h", "tcp_user_timeout": "0"}, Limits(timeout_s=7.0)))
    shop.describe("t")
    assert "keepalives_idle='9'" in driver.dsn
    assert "tcp_user_timeout='0'" in driver.dsn, "who sets it means it"
    shop = PostgreSQL(Settings("shop", {"host": "h"}, Limits(timeout_s=7.0)))
    shop.describe("t")
    assert "tcp_user_timeout='9000'" in driver.dsn


def test_a_process_that_has_no_thread_left_for_a_call_leaves_no_connection_behind(
    driver: Driver, shop: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fails)
        with pytest.raises(RuntimeError):
            shop.read("t", COLUMNS)
    assert driver.said[0][-1] == "closed"
    assert shop.read("t", COLUMNS).num_rows == 1
