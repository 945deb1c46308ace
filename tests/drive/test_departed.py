"""Queries that come and go for ever: records, notes and files do not grow with them, and no result is lost or repeated."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from anabranch.control.journal import MOST_GONE
from anabranch.control.ledger import DELIVERED
from anabranch.control.left import FOLDER as LEFT
from anabranch.control.left import LeftQueries
from anabranch.control.pipelines import COMING, DROPPED
from anabranch.control.query_texts import FOLDER as TEXTS
from anabranch.control.query_texts import QueryTexts, text_of
from anabranch.control.records import Ended
from anabranch.drive.departed import TextsInUse
from anabranch.drive.local import LocalPipeline
from anabranch.drive.retain import RELEASE_EVERY
from anabranch.errors import SessionError
from anabranch.plan.query import Query
from anabranch.run import Run
from anabranch.sql import bind_query
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.cases import Part
from tests.support.faulty import Crash, Fault, FaultyFilesystem
from tests.support.growing import JOIN, OTHER, Growing, query_of
from tests.support.pairs import CATALOG, rows
from tests.support.simulation import Broken, left_of
from tests.support.workloads import Workload

PAIRS = "SELECT a.x, b.x AS y FROM a, b WHERE a.k = b.k AND a.x >= {least} WINDOW {seconds} SECONDS"
STAYS = 3
"""Each query of the rounds runs for so many batches."""


def pairs(name: str, least: int, seconds: int = 2) -> Query:
    return bind_query(name, PAIRS.format(least=least, seconds=seconds), CATALOG)


class Rounds:
    """A query runs for ever. With each batch another one comes, and the one that came `STAYS` batches before it goes."""

    def __init__(self) -> None:
        self.disk, self.number, self.batches = MemoryFilesystem(), 0, list[dict[str, pa.Table]]()
        self.pipeline = LocalPipeline([pairs("first", 0, 3)], self.disk)
        self.pipeline.driver.left._most = 32
        self.found: dict[str, Counter[Any]] = {}

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            if self.number:
                self.pipeline.add(pairs(f"q{self.number}", self.number % 5))
            if self.number > STAYS:
                self.pipeline.drop(f"q{self.number - STAYS}")
            self.batches.append(rows(self.number))
            for name, step in self.pipeline.step(self.number, self.batches[-1]).items():
                self.found.setdefault(name, Counter()).update(oracle.bag(step.results))
            self.number += 1

    def sizes(self) -> dict[str, int]:
        """How many files there are in each folder, how large the newest commit is, and what a worker has in memory."""
        folders = Counter(path.rpartition("/")[0].split("/")[0] for path in self.disk._files)
        newest, worker = self.pipeline.commits.path_of(self.number - 1), self.pipeline.worker
        return {**folders, "journals": len(self.pipeline._notes.folders("journal")),
                "commit bytes": self.disk.size_bytes(newest) // 1_000,
                "forms": sum(len(run.forms) for run in worker.runs.values()),
                "executions": sum(len(run.executions) for run in worker.runs.values())}  # fmt: skip

    def require(self, name: str, came: int, went: int | None) -> None:
        query = pairs(name, came % 5) if name != "first" else pairs("first", 0, 3)
        wanted = oracle.expected_of_stay(query, self.batches[:went], {}, came, came, False)
        assert wanted
        assert not (wrong := oracle.difference(self.found[name], wanted)), f"{name}: {wrong}"


def test_nothing_grows_with_queries_that_come_and_go() -> None:
    """Sizes are the same after 192 rounds as after 96, when as many have left as are remembered; results are exact."""
    case, rounds = Rounds(), 96
    assert rounds > MOST_GONE + 2 * RELEASE_EVERY + STAYS
    case.run(rounds)
    sizes = case.sizes()
    case.run(rounds)
    assert case.sizes() == sizes
    driver = case.pipeline.driver
    most = 2 * RELEASE_EVERY + STAYS
    assert len(driver.ended) <= most
    assert len(case.disk.list(TEXTS)) <= most + 1
    assert sizes["journals"] <= MOST_GONE + most
    assert len(case.disk.list(LEFT)) == 1
    assert len(driver.left.queries) == 32
    for came in (1, 2, 77, 100, 180):
        case.require(f"q{came}", came, came + STAYS)
    case.require("first", 0, None)


def test_a_name_comes_back() -> None:
    """When nothing of the old query is in the records: until then its name is taken."""
    case = Rounds()
    case.run(STAYS + 2)
    driver, tried = case.pipeline.driver, 0
    assert "q1" in driver.ended
    while not driver.is_free("q1"):
        with pytest.raises(SessionError, match="there is, or was, a query q1 already: give this one another name"):
            case.pipeline.add(pairs("q1", 1))
        case.run(1)
        tried += 1
    assert RELEASE_EVERY <= tried <= 2 * RELEASE_EVERY + 1
    assert driver.left.queries["q1"].reason == "by request"
    before, came = case.found.pop("q1"), case.number
    assert before
    case.pipeline.add(pairs("q1", came % 5))
    case.run(2)
    assert "q1" not in driver.left.queries
    case.require("q1", came, None)


def test_texts_that_queries_had_before_they_were_altered_go() -> None:
    case = Rounds()
    case.pipeline.step(0, rows(0))
    for number in range(1, 100):
        case.pipeline.add(pairs("first", number))
        case.pipeline.step(number, rows(number))
    assert len(case.disk.list(TEXTS)) <= 2 * RELEASE_EVERY + 1
    assert text_of(case.pipeline.driver.queries["first"].query).digest in case.disk.list(TEXTS)


def test_a_query_that_takes_its_own_place_begins_anew() -> None:
    """It is the very same, as a worker finds it that reads each text once; still it lacks rows that came before."""
    query, batches = pairs("q", 0, 3), [rows(number) for number in range(6)]
    pipeline, found = LocalPipeline([query], MemoryFilesystem()), Counter[Any]()
    for number, batch in enumerate(batches):
        if number == 3:
            pipeline.add(query)
        found.update(oracle.bag(pipeline.step(number, batch)["q"].results))
    wanted = oracle.expected_of_stay(query, batches[:3], {}, 0, 0, False)
    wanted += oracle.expected_of_stay(query, batches, {}, 3, 3, False)
    assert not (wrong := oracle.difference(found, wanted)), wrong


# Drivers that die.


def coming_back() -> Growing:
    """One query stays; another comes, goes, is forgotten, and another one of its name comes and goes."""
    drawn = Workload(35, 0, batches=11)
    batches = [drawn.batch(number) for number in range(drawn.batches)]
    case = Growing([query_of(drawn, "q0", JOIN)], batches, {}, slots=2, release_every=2)

    def drop(run: Run) -> None:
        if "later" in run.queries:
            run.pipelines[0].host.runner.drop("later")

    case.before = {1: case.asking(query_of(drawn, "later", OTHER), False), 2: drop, 9: drop}
    again = case.asking(query_of(drawn, "later", OTHER + " AND p.x > 1"), False)
    for trigger in (6, 7, 8):  # a driver that died may have been about to forget the first
        case.before[trigger] = again
    return case


def check_coming_back(case: Growing, what: str) -> None:
    case.check(what)
    if "later" in case.steps[-1][0].queries:
        assert "tear" in what, "whoever noted that it is to go died, and has told nobody"
        return
    assert not case.checkpoint.list(DROPPED)
    assert not case.checkpoint.list(COMING)
    assert left_of(case.checkpoint)["later"].reason == "by request"
    assert len(case.checkpoint.list(LEFT)) <= 2 + case.lives
    stays = {own.text for control in case.begun.values() for name, own in control.queries.items() if name == "later"}
    assert len(stays) == 2, "it came back"


def test_a_query_goes_and_one_of_its_name_comes() -> None:
    case = coming_back()
    seen: list[Run] = []
    case.before[10] = seen.append
    check_coming_back(case, "")
    delivery = seen[0].pipelines[0].host.delivery
    assert case.checkpoint.list(TEXTS)
    assert not delivery.left
    assert not delivery.leaving
    assert case.found()["later"]


def test_a_driver_dies_at_any_put_while_a_query_is_forgotten(part: Part) -> None:
    calm = coming_back()
    deaths, puts = calm.deaths("tear", "crash_after"), calm.world.puts
    first = next(n for n, path in enumerate(puts) if path.startswith("checkpoint/dropped/"))
    last = max(n for n, path in enumerate(puts) if path.startswith(f"checkpoint/control/{10:020d}"))
    assert any(path.startswith(f"checkpoint/{LEFT}/") for path in puts[first:last])
    # Between two puts of state or results nothing is different for whoever comes next.
    records = [n for n in range(first, last + 1) if puts[n].split("/")[1] not in ("state", "staged", "progress", "journal")]
    told: dict[Any, oracle.Bag] = {}
    for ordinal in part.of(records):
        case, left = coming_back(), deaths[2 * ordinal + ordinal % 2]
        case.told = told
        case.go_on(left)
        check_coming_back(case, str(left))


def never_coming() -> Growing:
    """A query is asked to come, and to go before its first batch."""
    drawn = Workload(35, 0, batches=3)
    case = Growing(
        [query_of(drawn, "q0", JOIN)], [drawn.batch(n) for n in range(3)], {}, slots=2
    )  # fmt: skip

    def ask(run: Run) -> None:
        case.asking(query_of(drawn, "later", OTHER), False)(run)
        run.pipelines[0].host.runner.drop("later")

    case.before = {1: ask}
    return case


def test_a_query_is_dropped_before_it_has_come(part: Part) -> None:
    """Whoever dies when both are noted: it does not come."""
    deaths = never_coming().deaths("crash_after")
    first = next(each.ordinal for each in deaths if each.path == "checkpoint/dropped/later")
    records = [each for each in deaths if each.path.split("/")[1] not in ("state", "staged", "progress")]
    for left in part.of([each for each in records if each.ordinal >= first]):
        case = never_coming()
        case.go_on(left)
        case.check(str(left))
        assert not case.found().get("later")
        assert not case.checkpoint.list(DROPPED)


def test_results_that_wait_keep_a_query_in_the_records() -> None:
    """The sink of the query that left is broken: it is not forgotten, and when the sink works, all arrives."""
    drawn = Workload(35, 0, batches=12)
    batches = [drawn.batch(number) for number in range(drawn.batches)]
    case = Growing([query_of(drawn, "q0", JOIN)], batches, {}, slots=2, release_every=2)
    later = query_of(drawn, "later", OTHER)
    seen = []

    def broken(run: Run) -> None:
        case.asking(later, False)(run)
        case.outlets["later"].fails = Broken()  # type: ignore[union-attr]

    def mended(run: Run) -> None:
        host = run.pipelines[0].host
        seen.append(("later" in host.driver.ended, host.delivery.waiting["later"]))
        case.outlets["later"].fails = {}  # type: ignore[union-attr]

    case.before = {1: broken, 3: lambda run: run.pipelines[0].host.runner.drop("later"), 9: mended}
    case.check()
    assert seen == [(True, 2)]
    assert "later" in LeftQueries(case.checkpoint).queries, "it is forgotten when its results have arrived"  # type: ignore[arg-type]
    assert DELIVERED not in [path.split("/")[1] for path in case.world.inner._files if "/later/" in path]  # type: ignore[attr-defined]


# The record of who has left.


@pytest.mark.parametrize("kind", ["lose", "tear", "crash_after"])
def test_a_torn_record_of_who_has_left(kind: str) -> None:
    """What was noted before stays."""
    disk = MemoryFilesystem()
    LeftQueries(disk).note({"q": Ended(3, "by request")})
    with pytest.raises(Crash):
        LeftQueries(FaultyFilesystem(disk, {0: Fault(kind)})).note({"p": Ended(4, "by request")})  # type: ignore[arg-type]
    known = LeftQueries(disk, epoch=2)
    assert set(known.queries) == ({"q", "p"} if kind == "crash_after" else {"q"})
    known.note({"p": Ended(4, "by request")})
    assert list(LeftQueries(disk).queries) == ["q", "p"]


def test_the_oldest_of_many_who_have_left_go() -> None:
    known = LeftQueries(MemoryFilesystem(), most=3)
    for number in range(5):
        known.note({f"q{number}": Ended(number, "by request")})
    assert list(known.queries) == ["q2", "q3", "q4"]
    known.note({"q2": Ended(9, "by request")})
    assert list(known.queries) == ["q3", "q4", "q2"]


def test_a_text_that_comes_back_stays() -> None:
    """A query left, and one of the same text is to come: no commit that is kept names the text any more."""
    texts, query, in_use = QueryTexts(MemoryFilesystem()), pairs("q", 1), TextsInUse()
    in_use.keep(texts, text_of(query))
    in_use.name(4, [(texts, text_of(query))])
    in_use.keep(texts, text_of(query))
    in_use.release(9)
    assert [*texts.digests()] == [text_of(query).digest]
    in_use.name(10, [(texts, text_of(query))])
    in_use.release(11)
    assert not [*texts.digests()]


def test_a_text_stays_while_a_query_goes_on_with_its_state() -> None:
    texts, base, in_use = QueryTexts(MemoryFilesystem()), text_of(pairs("q", 1)), TextsInUse()
    written = msgspec.structs.replace(base, sql="SELECT b.x FROM a, b WHERE a.k = b.k", base=base.digest)
    for text in (base, written):
        in_use.keep(texts, text)
    in_use.name(4, [(texts, base)])
    in_use.name(5, [(texts, written)])
    in_use.release(5)
    assert set(texts.digests()) == {base.digest, written.digest}
    in_use.release(6)
    assert not [*texts.digests()]
