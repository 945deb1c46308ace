"""A batch that waits for a database that is gone: it is run again, whole, and nobody sees anything of the tries before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

from anabranch.control.journal import Journal
from anabranch.control.records import Commit
from anabranch.drive.patience import Patience, pause_s
from anabranch.drive.runner import Runner
from anabranch.errors import DatabaseError, DatabaseGoneError, SessionError
from anabranch.session import Session
from tests.support import oracle
from tests.support.fake_database import FakeDatabase
from tests.support.faulty import Crash
from tests.support.lookups import CASES, batches, bound, expected, feed, table_rows
from tests.support.shop import Fault, Shop, killed_before, killed_within, locked, slow
from tests.support.simulation import NotedRunner, Simulation

WAITED_IN = 1
"""The batch that waits."""


@contextmanager
def waiting(then: Callable[[int], bool]) -> Iterator[list[tuple[int, str]]]:
    """Instead of waiting, something is done after so many tries, which says whether to try again. The waits."""
    waits = list[tuple[int, str]]()

    def wait(self: Patience, tries: int, said: str) -> bool:
        self.waits_for = said
        waits.append((tries, said))
        return then(tries)

    with mock.patch.object(Patience, "wait", wait):
        yield waits


class Gone(FakeDatabase):
    """A database that is gone at some calls, counted from 1; snapshots are calls, too."""

    def __init__(self, *at: int) -> None:
        super().__init__("crm", {})
        self.at, self.calls, self.before_lookup = at, 0, self._call

    def _call(self) -> None:
        self.calls += 1
        if self.calls in self.at:
            raise DatabaseGoneError("the database crm says: it is gone")

    @contextmanager
    def export_snapshot(self) -> Iterator[str]:
        self._call()
        with super().export_snapshot() as name:
            yield name


def simulated(database: FakeDatabase, case_name: str, slots: int, seed: int = 1, failure: str = "wait") -> Simulation:
    """Batches whose tables change ahead of each try: of each batch that counts which was committed."""
    rng, case = np.random.default_rng([6, seed]), CASES[case_name]
    query, given, versions = bound(case), batches(rng, 4, 120), dict[int, dict[str, pa.Table]]()

    def change(batch: int) -> None:
        database.tables = table_rows(rng)
        versions[batch] = dict(database.tables)

    made = Simulation(
        [query], [feed(query, rows) for rows in given], {}, slots=slots, databases=database, before_attempt=change,
        lookup_failure=failure, to_files=bool(seed % 2),
    )  # fmt: skip
    found = made.run()["q"]
    theirs = expected(case, given, [versions[n] for n in range(len(given))])
    assert theirs == found, oracle.difference(found, theirs)
    assert theirs
    return made


@pytest.mark.few(6)
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("name", ["two streams", "joined by what is found", "a chain of tables", "groups"])
@pytest.mark.parametrize("at", [(1,), (2, 3), (1, 2, 3, 4, 6), range(3, 40, 2)])
def test_a_batch_waits_and_is_run_again(at: tuple[int, ...], name: str, slots: int) -> None:
    database = Gone(*at)
    with waiting(lambda tries: True) as waits:
        made = simulated(database, name, slots, seed=slots)
    assert len(waits) == sum(call <= database.calls for call in at)
    told = [entry for entry in Journal(made.checkpoint, "q").entries() if entry.event in ("waiting", "answered")]
    assert [entry.event for entry in told] == ["waiting", "answered"] * sum(tries == 1 for tries, _ in waits)
    assert "it is gone" in told[0].text
    assert made.lives == 1


def test_a_driver_that_dies_while_it_waits() -> None:
    """Whoever comes next begins the batch again, and waits as well."""
    dies = iter([True, False, True, True] + [False] * 100)

    def then(tries: int) -> bool:
        if next(dies):
            raise Crash("the driver dies")
        return True

    with waiting(then) as waits:
        made = simulated(Gone(1, 2, 5, 6, 7, 9), "joined by what is found", 3)
    assert made.lives == 4
    assert len(waits) == 6


def test_by_default_it_fails() -> None:
    with waiting(lambda tries: True) as waits, pytest.raises(DatabaseGoneError, match="it is gone"):
        simulated(Gone(2), "two streams", 1, failure="fail")
    assert not waits


def test_what_does_not_pass_by_itself_is_not_waited_for() -> None:
    database = FakeDatabase("crm", {})

    def forbidden() -> None:
        raise DatabaseError("the database crm says: permission denied")

    database.before_lookup = forbidden
    with waiting(lambda tries: True) as waits, pytest.raises(DatabaseError, match="permission denied"):
        simulated(database, "two streams", 1)
    assert not waits


def test_a_run_that_is_stopped_waits_no_longer() -> None:
    patience = Patience("wait")
    patience.stop()
    assert not patience.wait(30, "gone")
    with waiting(lambda tries: tries < 4) as waits, pytest.raises(DatabaseGoneError):
        simulated(Gone(*range(1, 90)), "two streams", 1)
    assert len(waits) == 4
    assert [pause_s(tries) for tries in (1, 2, 6, 7, 10_000)] == [1, 2, 32, 60, 60]


def test_progress_tells_how_long_a_batch_waited_beside_what_its_tasks_took() -> None:
    told = list[dict[str, float]]()

    def note(self: Runner, commit: Commit, plans: object, wall_s: dict[str, float], is_closing: bool) -> None:
        told.append(wall_s)

    with waiting(lambda tries: True), mock.patch.object(NotedRunner, "_note", note):
        simulated(Gone(1), "two streams", 1)
    assert ["waited" in wall_s for wall_s in told][:2] == [True, False]
    assert min(told[0]["waited"], told[0]["tasks"]) >= 0


def test_what_to_do_about_lookups_is_checked() -> None:
    with pytest.raises(SessionError, match="fail or wait, not 'engine'"):
        Session(lookup_failure="engine")


REAL: dict[str, tuple[Fault, float]] = {
    "killed before": (killed_before, 30), "killed within": (killed_within, 30), "slow": (slow, 1), "locked": (locked, 1),
}  # fmt: skip
"""What goes wrong with a PostgreSQL, and its timeout."""


@pytest.mark.few(1)
@pytest.mark.parametrize("fault", REAL)
@pytest.mark.parametrize(("name", "slots"), [("two streams", 1), ("joined by what is found", 3)])
def test_a_postgresql_that_comes_back(shop: Shop, fault: str, name: str, slots: int) -> None:
    strike, timeout_s = REAL[fault]
    rng, case = np.random.default_rng([9, slots]), CASES[name]
    query, given, database = bound(case), batches(rng, 3, 120), shop.connect(timeout_s)
    versions, trouble, state = dict[int, dict[str, pa.Table]](), ExitStack(), {"is_struck": False, "is_over": False}

    def change(batch: int) -> None:
        if not state["is_struck"] or state["is_over"]:
            versions[batch] = shop.put(table_rows(rng))
        if batch == WAITED_IN and not state["is_struck"]:
            state["is_struck"] = True
            trouble.enter_context(strike(shop))

    def then(tries: int) -> bool:
        if tries == 2:
            trouble.close()
            state["is_over"] = True
        return True

    made = Simulation(
        [query], [feed(query, rows) for rows in given], {}, slots=slots, databases=lambda _: database, before_attempt=change,
        lookup_failure="wait",
    )  # fmt: skip
    with waiting(then) as waits:
        found = made.run()["q"]
    theirs = expected(case, given, [versions[n] for n in range(len(given))])
    assert theirs == found, oracle.difference(found, theirs)
    assert theirs
    assert [tries for tries, _ in waits] == [1, 2]
