"""Queries that come and go while others run: what the batches take in which they do, beside the others.

Twelve queries run in one pipeline. Every few batches one comes, is altered, or goes. Most that come need nothing but the
next control record. The last one reads a column that nobody has read: then Spark's streaming query is started anew between
two batches, and what that takes from the call to the first commit is told apart.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bench.many.case import WARM, Case, wait
from bench.many.pipelines import declared
from bench.many.queries import Asked, asked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from anabranch.run import Run

RUNNING, EVERY = 12, 4
"""So many queries run at first, and one comes or goes every so many batches."""
CHANGES = ("add", "drop", "alter", "add with history", "drop", "add to files")
"""What happens, in turn."""
RESTARTS = ("add a column",)
"""What happens at the end: the streaming query is started anew for it."""
MOST, MOST_RESTART_S = 1.5, 6.0


@dataclass
class Changes:
    """Asks a run for changes, and notes with which batches they came."""

    run: Run
    case: Case
    work: Path
    found: list[dict[str, Any]] = field(default_factory=list)
    came: int = 0

    @property
    def done(self) -> int:
        """The batches that are committed."""
        return self.run.pipelines[0].host.driver.standing.batch + 1

    def reach(self, batches: int) -> None:
        wait(lambda: self.done >= batches, lambda: self.run.await_termination(0))

    def query(self) -> Asked:
        """One that has not been there, with windows and filters as the others have."""
        self.came += 1
        every = asked(RUNNING + 24)
        return replace(every[1 + (self.came * 5) % (len(every) - 1)], name=f"more{self.came}")

    def make(self, what: str) -> None:
        """Asks for a change, and waits until it is committed."""
        names, began = list(self.run.queries), perf_counter()
        before = set(names)
        if what == "drop":
            self.run.drop_query(names[-1])
        elif what == "alter":
            self.run.alter_query(names[-1], self.query().sql(self.case.workload))
        else:
            self.add(what)
        asked_s, first = perf_counter() - began, self.done
        self.reach(first + 1)
        commit_s = perf_counter() - began
        self.found.append({"change": what, "asked in": asked_s, "committed in": commit_s, "queries": len(before)})

    def add(self, what: str) -> None:
        from anabranch.spark import sinks

        query = self.query()
        sql = query.sql(self.case.workload)
        to_files = what == "add to files"
        sink = sinks.parquet(str(self.work / "out" / query.name)) if to_files else sinks.arrow(_take)
        if what == "add a column":
            sql = sql.replace("SELECT ", "SELECT a.k3 AS a_k3, ", 1)
        self.run.add_query(query.name, sql, sink, history=what == "add with history")


def _take(results: pa.Table, batch: int) -> None:
    """A sink that costs nothing."""


def run(case: Case, spark: SparkSession, work: Path) -> dict[str, Any]:
    """Runs the case; what batches took with changes and without."""
    from anabranch.control.journal import journals_in
    from anabranch.storage.filesystem import LocalFilesystem

    for place in range(case.warm_ups):
        folder = work / f"warm-up-{place}"
        declared(case, spark, folder, case.folder, asked(1)).start(availableNow=True).await_termination()
        shutil.rmtree(folder)
    case.link(range(case.batches), work / "in" / "first")
    case.link(range(case.batches, case.batches + EVERY), work / "rest")
    session = declared(case, spark, work, f"{work}/in/*", asked(RUNNING))
    started = session.start(processingTime="0 seconds")
    try:
        changes = Changes(started, case, work)
        for place, what in enumerate(wanted(case)):
            changes.reach(WARM + place * EVERY)
            changes.make(what)
        changes.reach(case.batches)
        steps = {step.batch: step.seconds for step in started.progress["q0"]}
        journals = journals_in(LocalFilesystem(str(work / "checkpoint"))).values()
        came = [entry for journal in journals for entry in journal.entries() if entry.event in ("added", "altered")]
        ended = started.failures.values()
        with_change = {entry.batch + 1 for entry in came} | {each.batch for each in ended}
        (work / "rest").rename(work / "in" / "rest")
        restarts = []
        for what in RESTARTS:
            changes.make(what)
            restarts.append(changes.found[-1]["committed in"])
    finally:
        started.stop()
    usual = [s for batch, s in steps.items() if batch >= WARM and batch not in with_change]
    changed = [s for batch, s in steps.items() if batch >= WARM and batch in with_change]
    return {"usual_s": usual, "changed_s": changed, "restarts_s": restarts, "changes": changes.found}


def wanted(case: Case) -> Iterator[str]:
    """The changes that there are batches for."""
    for place in range((case.batches - WARM - 2 * EVERY) // EVERY):
        yield CHANGES[place % len(CHANGES)]


def rows_of(found: dict[str, Any]) -> list[dict[str, Any]]:
    """What is found as rows of a table, with the goals."""
    usual, changed = median(found["usual_s"]), median(found["changed_s"])
    ratio, restart_s = changed / usual, max(found["restarts_s"])
    return [
        {"what": "batches without a change, median s", "measured": usual, "at most": "", "of": len(found["usual_s"])},
        {"what": "batches with one, median s", "measured": changed, "at most": "", "of": len(found["changed_s"])},
        {"what": "one by the other", "measured": ratio, "at most": MOST, "kept": "yes" if ratio <= MOST else "no"},
        {
            "what": "a restart, from the call to the first commit, s", "measured": restart_s, "at most": MOST_RESTART_S,
            "of": len(found["restarts_s"]), "kept": "yes" if restart_s <= MOST_RESTART_S else "no",
        },
    ]  # fmt: skip
