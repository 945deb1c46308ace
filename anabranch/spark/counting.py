"""The streams that Spark counts in a pipeline, as they are loaded: those that it has counted so far, also for queries that
are gone, and those that are new with a query that is to come (`anabranch.control.spark_streams`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame, SparkSession

from anabranch.control.spark_streams import (
    STREAMS,
    SparkStreams,
    add_streams,
    first_counted,
    read_streams,
    write_streams,
)
from anabranch.errors import DamagedStateError
from anabranch.plan.demand import Asked
from anabranch.plan.distribution import QueryGrids
from anabranch.plan.workload import Workload
from anabranch.spark.file_list import Lists
from anabranch.spark.pack import Packing
from anabranch.spark.sources import Sources
from anabranch.storage.filesystem import Filesystem
from anabranch.storage.record import damaged


@dataclass(frozen=True)
class Counting:
    """The streams that Spark is to count, beside those that it has counted."""

    sources: Sources
    noted: SparkStreams | None
    """Those that Spark has counted; None if it has not started."""
    counted: SparkStreams
    """Those that it is to count."""

    def note(self, filesystem: Filesystem) -> None:
        """Notes the streams that are new, before Spark counts them."""
        if self.noted is None:
            write_streams(filesystem, self.counted)
        else:
            add_streams(filesystem, {n: own for n, own in self.counted.names.items() if n not in self.noted.streams})

    def rows(
        self,
        spark: SparkSession,
        workload: Workload,
        ways: QueryGrids,
        columns: Mapping[str, tuple[str, ...]],
        filters: Mapping[str, tuple[Asked, ...]],
        packing: Packing,
        lists: Lists,
    ) -> DataFrame:
        """The rows of all streams, in the order in which Spark counts them; none of a stream that nobody reads any more.
        `lists` is where readers keep their lists of files."""
        packed = []
        for name in self.counted.streams:
            if (stream := workload.streams.get(name)) is None:
                packed.append(self.sources.passed_by(spark, name, packing, lists))
                continue
            asked = filters.get(name, ())
            packed.append(self.sources.packed(spark, stream, ways, columns[name], asked, packing, lists))
        return reduce(DataFrame.unionByName, packed)


def counting_of(filesystem: Filesystem, sources: Sources, streams: Iterable[str], is_committed: bool) -> Counting:
    """The streams that Spark is to count in a pipeline whose queries read some."""
    noted = _noted_streams(filesystem, is_committed)
    if noted is None:
        return Counting(sources, None, first_counted(sources.names(streams)))
    names = sources.names(dict.fromkeys((*noted.streams, *streams)))
    noted.require_same(names)
    return Counting(sources, noted, noted.with_more(names))


def _noted_streams(filesystem: Filesystem, is_committed: bool) -> SparkStreams | None:
    """The streams that Spark has counted; None if it has not started."""
    try:
        found = read_streams(filesystem)
    except DamagedStateError:
        if is_committed:
            raise
        return None
    if found is None and is_committed:
        raise damaged(STREAMS, "it is missing although the pipeline has run")
    return found
