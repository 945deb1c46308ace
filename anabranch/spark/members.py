"""What a pipeline is made of: its queries, those that are to come into it, and what all pipelines of a session stand on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any

from pyspark.sql import SparkSession

from anabranch.control.lease import Holder
from anabranch.control.loop import Loop, Slicer
from anabranch.control.pipelines import ComingNote
from anabranch.drive.delivery import MOST_STAGED_BYTES
from anabranch.drive.limiting import Limiting
from anabranch.drive.patience import FAIL
from anabranch.plan.migration import Execution
from anabranch.plan.overload import Overload
from anabranch.plan.query import Query
from anabranch.spark.sinks import Sink
from anabranch.spark.sources import Sources
from anabranch.storage.cache import Cache
from anabranch.storage.location import Folder


def exact(overload: Overload, queries: Mapping[str, Query], slots: int) -> Limiting:
    """Nobody limits anything."""
    return Limiting(overload)


def no_slicer(queries: Sequence[str]) -> Slicer | None:
    """Rows are cut by the rule."""
    return None


@dataclass(frozen=True)
class Ground:
    """What all pipelines of a session stand on."""

    spark: SparkSession
    checkpoint: Folder
    checkpoint_id: str
    holder: Holder
    sources: Sources
    cache: Cache
    clock: Callable[[], float]
    spark_checkpoint: str | None = None
    results_per_batch: int | None = None
    idle_s: float | None = None
    """After so long without rows a batch without rows gives what the last ones have made final; None: it does not."""
    most_staged_bytes: int = MOST_STAGED_BYTES
    slicer: Callable[[Sequence[str]], Slicer | None] = no_slicer
    """Who decides how rows are cut into slices in a pipeline of some queries."""
    limiting: Callable[[Overload, Mapping[str, Query], int], Limiting] = exact
    """What some queries may lose under overload, over so many slots, and who decides about it."""
    lookup_failure: str = FAIL
    """What becomes of batches whose lookups fail because the database is gone."""
    calls: dict[str, Lock] = field(default_factory=dict)
    """Held, by query, while sinks are called: a call may outlast the pipeline that has made it."""


@dataclass(frozen=True)
class Member:
    """A query of a pipeline."""

    query: Query
    execution: Execution
    """What it starts with, if it has not run yet."""
    loop: Loop
    sink: Sink
    is_pinned: bool = False
    needs_approval: bool = False
    leaves: bool = False
    """Whether it leaves the pipeline when its sink fails for too long; else the pipeline stops."""
    budget_bytes: float | None = None
    """What its state may take; None: anything."""
    sharing: Mapping[str, Any] | None = None
    """For the journal, when its pipeline first starts: how its join is run that others have too, and what that saves."""

    def under(self, execution: Execution) -> Member:
        """The same query with another plan to start with."""
        return replace(self, execution=execution)


@dataclass(frozen=True)
class Arriving:
    """A query that is to come into a pipeline, or to take the place of one."""

    member: Member
    note: ComingNote
