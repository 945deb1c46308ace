"""Probation: a block whose database has failed is run by the engine for a while, and then the database is asked again.

With `database_failure="engine"` the engine makes what a statement that failed was to give (`anabranch.engine.mig_box`). A
database that fails once may well fail again, and each time somebody waits for it: so the block comes home with the next
batch, and goes back after a pause. If its database fails again soon, the pause is twice as long, up to a bound.

What is decided follows from the execution and from what its commit counted, so whoever goes on from a commit decides the
same: nothing is lost if a driver dies in between. Results never depend on it.

Example: DuckDB fails in batch 7. The engine runs the block in batches 8 to 23, DuckDB from batch 24 on. If DuckDB fails
up to batch 40, say in batch 30, that is the second time: the engine runs the block for the next 32 batches. If DuckDB fails
later than that, it is the first time again.
"""

from __future__ import annotations

from anabranch.control.records import QueryCommit
from anabranch.drive.waking import places
from anabranch.plan.actions import PlaceBlock
from anabranch.plan.migration import Execution, Probation
from anabranch.plan.query import ENGINE, Query

FIRST_PAUSE_BATCHES = 16
"""For so many batches the engine runs a block whose database has failed for the first time."""

LONGEST_PAUSE_BATCHES = 1024
"""No pause is longer, however often a database has failed in a row."""


def pause_batches(times: int) -> int:
    """For how many batches the engine runs a block whose database has failed so many times in a row.

    >>> [pause_batches(times) for times in (1, 2, 3, 7, 8, 100)]
    [16, 32, 64, 1024, 1024, 1024]
    """
    return min(FIRST_PAUSE_BATCHES << min(times - 1, 20), LONGEST_PAUSE_BATCHES)


def on_probation(query: Query, execution: Execution, commit: QueryCommit, batch: int) -> tuple[PlaceBlock, str] | None:
    """What follows from a commit of a batch for a block whose database has failed in it, or some time ago: where it goes,
    and why."""
    for block, database in places(query, execution).items():
        known, border = execution.probation_of(block), commit.statistics.borders.get(block)
        if block not in execution.home:
            if border is not None and border.failed:
                times = known.times + 1 if known is not None and batch <= known.until else 1
                return _moved(execution, block, ENGINE, Probation(block, times, batch + 1 + pause_batches(times)), database)
        elif known is not None and batch + 1 >= known.until:
            until = batch + 1 + pause_batches(known.times)
            return _moved(execution, block, database, Probation(block, known.times, until), database)
    return None


def _moved(execution: Execution, block: str, place: str, noted: Probation, database: str) -> tuple[PlaceBlock, str]:
    pause, often = pause_batches(noted.times), "" if noted.times == 1 else f", {noted.times} times in a row"
    text = f"{database} has failed{often}; it is asked again from batch {noted.until} on"
    if place != ENGINE:
        text = f"{database} had failed{often}, and the engine has run the block for {pause} batches"
    return PlaceBlock(block, place, execution.plan, probation=noted), text
