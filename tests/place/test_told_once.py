"""What becomes of a block is told once in the journal, whenever a driver dies: the one that comes tells what the one before
it could not, and nothing again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from anabranch.control.journal import Entry, Journal
from anabranch.drive.local import Steady
from anabranch.plan.query import Query
from tests.support import oracle
from tests.support.cases import Part
from tests.support.failing_duckdb import declared, failing
from tests.support.homeward import ALONE, JOINED, ROWS, Homeward
from tests.support.simulation import Simulation

FREE = ALONE.replace("/*+ PLACE(x, duck) */ ", "").replace("6 SECONDS", "2 SECONDS")
GIVEN = ROWS[:12]
WAYS: dict[str, tuple[str, str, Any, Collection[int]]] = {
    "home": (ALONE, "fail", partial(Homeward, home=5, back=99), ()),
    "home, of a join": (JOINED, "fail", partial(Homeward, home=5, back=99), ()),
    "home, and asked to stay": (ALONE, "fail", partial(Homeward, home=5, back=6), ()),
    "to the database for the first time": (FREE, "fail", partial(Homeward, home=99, back=5), ()),
    "home and back, because the database fails": (ALONE, "engine", lambda _: Steady(), (4,)),
}
"""The query, what becomes of failures, who decides, and the batches in which DuckDB fails."""


RECORDS = tuple(f"checkpoint/{kind}" for kind in ("control", "commit", "journal"))
"""A death at any other put leaves what one of these leaves."""


class Case:
    """A way that a block goes while a driver may die."""

    def __init__(self, name: str) -> None:
        sql, failure, self.loop, self.fails_in = WAYS[name]
        self.query: Query = declared(sql, failure)
        self.now = 0

    @contextmanager
    def failing(self) -> Iterator[None]:
        with failing(lambda: self.now in self.fails_in):
            yield

    def made(self) -> Simulation:
        def note(batch: int) -> None:
            self.now = batch

        return Simulation([self.query], GIVEN, {}, (), 2, to_files=False, loop=self.loop, before_attempt=note)


def told(simulation: Simulation) -> list[Entry]:
    entries = Journal(simulation.checkpoint, "q").entries()  # type: ignore[arg-type]
    return [entry for entry in entries if entry.event in ("placing", "placed")]


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", ["lose", "crash_after"])
@pytest.mark.parametrize("name", WAYS)
def test_a_driver_that_dies_at_any_put_tells_nothing_twice(name: str, kind: Any, part: Part) -> None:
    case = Case(name)
    with case.failing():
        whole = case.made()
        deaths = [left for left in whole.deaths(kind) if left.path.startswith(RECORDS)]
        deaths = [left for left in deaths if left.beside["done"] in range(3, 9)]
        undisturbed = [(entry.batch, entry.event, entry.text) for entry in told(whole)]
        assert len(undisturbed) == 2, "it goes, and it is there: or it stays, or goes back"
        journals = [left for left in deaths if "/journal/" in left.path]
        assert len(journals) >= 1
        for left in part.of(deaths):
            again = case.made()
            again.go_on(left)
            found = again.run()["q"]  # a decision that was told and not written may be lost
            assert not oracle.difference(found, oracle.expected(case.query, GIVEN, {})), str(left)
            entries = told(again)
            often = Counter((entry.batch, entry.event, entry.details["block"], entry.details["place"]) for entry in entries)
            assert set(often.values()) <= {1}, f"{left}: {often}"
            assert moves(again) <= Counter(entry.details["place"] for entry in entries if entry.event == "placed"), str(left)


def moves(simulation: Simulation) -> Counter[str]:
    """How often the block went where, by what batches ran."""
    (query,), ran = simulation.queries, [commit.queries["q"].execution for commit, _ in simulation.steps]
    there = [("q.x" in query.places or bool(each.woken)) and "q.x" not in each.home for each in ran]
    return Counter("duck" if then else "engine" for before, then in pairwise(there) if before != then)
