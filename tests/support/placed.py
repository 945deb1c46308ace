"""Queries with blocks in the words of DuckDB, and random rows for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from anabranch.place.databases.embedded import open_embedded
from anabranch.plan.query import Query
from anabranch.sql import Catalog, parse_script

SOURCES = """
    CREATE STREAM s (k BIGINT, v BIGINT, note STRING, ts TIMESTAMP) TIME ts LATENESS {late} SECONDS;
    CREATE STREAM t (k BIGINT, w BIGINT, ts TIMESTAMP) TIME ts LATENESS 1 SECOND;
    CREATE TABLE names (k BIGINT, name STRING);
"""

QUERIES = {
    "medians, spread": """SELECT x.*, RESULT_TIME AS at FROM DATABASE duck (
        SELECT k, median(v) AS m, count(*) AS n FROM s [RANGE {a} SECONDS] GROUP BY k
        SLIDE {slide} SECONDS PARTITION BY k) x""",
    "all rows together": """SELECT n, texts FROM DATABASE duck (
        SELECT count(*) AS n, string_agg(note, '|' ORDER BY v, note) AS texts FROM s [RANGE {a} SECONDS]
        SLIDE {slide} SECONDS) x WHERE n > 1""",
    "joined with a stream": """SELECT t.w, x.k, x.m FROM t [RANGE {b} SECONDS],
        DATABASE duck (SELECT k, quantile_cont(v, 0.25) AS m FROM s [RANGE {a} SECONDS] GROUP BY k SLIDE {slide} SECONDS) x
        WHERE t.k = x.k""",
    "joined with a stream, spread": """SELECT t.w, x.k, x.m FROM t [NOW],
        DATABASE duck (SELECT k, mode(v ORDER BY v) AS m FROM s [RANGE {a} SECONDS] GROUP BY k
        SLIDE {slide} SECONDS PARTITION BY k) x WHERE t.k = x.k AND t.w > x.m""",
    "two streams and a table": """SELECT x.* FROM DATABASE duck (
        SELECT s.k, any_value(names.name) AS name, count(t.w) AS n FROM s [RANGE {a} SECONDS]
        LEFT JOIN t [RANGE {b} SECONDS] ON s.k = t.k LEFT JOIN names ON names.k = s.k GROUP BY ALL
        SLIDE {slide} SECONDS PARTITION BY k) x""",
    "two windows of a stream": """SELECT k, n, of FROM DATABASE duck (
        WITH long AS (SELECT k, count(*) AS of FROM s AS wide [RANGE {b} SECONDS] GROUP BY k)
        SELECT k, count(*) AS n, any_value(long.of) AS of FROM s [RANGE {a} SECONDS] JOIN long USING (k) GROUP BY k
        SLIDE {slide} SECONDS) x""",
    "rows, not groups": """SELECT x.k, x.v, x.place FROM DATABASE duck (
        SELECT k, v, row_number() OVER (PARTITION BY k ORDER BY v, ts, note) AS place FROM s [RANGE {a} SECONDS]
        QUALIFY place <= 2 SLIDE {slide} SECONDS PARTITION BY k) x""",
    "all that was": """SELECT n FROM DATABASE duck (
        SELECT count(DISTINCT k) AS n FROM s [UNBOUNDED] SLIDE {slide} SECONDS) x""",
    "grouped above": """SELECT k, COUNT(*) AS medians, MAX(m) AS m FROM DATABASE duck (
        SELECT k, v % 2 AS parity, max(v) AS m FROM s [RANGE {a} SECONDS] GROUP BY ALL SLIDE 1 SECOND PARTITION BY k) x
        GROUP BY k SLIDE 1 SECOND""",
}  # fmt: skip


NOTES = ("", "it's", "é\n", None)


@dataclass(frozen=True)
class Shape:
    """What a case is made from."""

    query: str
    seed: int
    batches: int
    rows: int
    a: int
    b: int
    slide: int
    late: int
    gap: bool
    """Whether time leaps ahead once."""


@dataclass(frozen=True)
class Placed:
    """A query over blocks of DuckDB, and the rows of its streams."""

    shape: Shape

    @cached_property
    def sql(self) -> str:
        shape = self.shape
        return QUERIES[shape.query].format(a=shape.a, b=shape.b, slide=shape.slide)

    @cached_property
    def query(self) -> Query:
        script = SOURCES.format(late=self.shape.late) + f"CREATE QUERY q AS {self.sql}"
        return parse_script(script, Catalog(databases=open_embedded)).queries[0].query

    @cached_property
    def tables(self) -> dict[str, pa.Table]:
        rows = pa.table({"k": pa.array([0, 1, None], pa.int64()), "name": ["nought", None, "nobody"]})
        return {"names": rows} if any(source.name == "names" for source in self.query.base_sources) else {}

    @cached_property
    def batches(self) -> Sequence[Mapping[str, pa.Table]]:
        rng, found = np.random.default_rng(self.shape.seed), []
        read = {source.name for source in self.query.base_sources}
        for number in range(self.shape.batches):
            leap = 200 if self.shape.gap and number >= self.shape.batches // 2 else 0
            batch = {}
            for name, value in (("s", "v"), ("t", "w")):
                count = int(rng.integers(0, self.shape.rows + 1))
                halves = rng.integers(2 * number - 5, 2 * number + 4, count) + leap
                columns = {
                    "k": pa.array([None if k == 3 else int(k) for k in rng.integers(0, 4, count)], pa.int64()),
                    value: pa.array([None if v == 9 else int(v) for v in rng.integers(0, 10, count)], pa.int64()),
                }
                if name == "s":
                    notes = [NOTES[n] for n in rng.integers(0, len(NOTES), count)]
                    columns["note"] = pa.array(notes, pa.string())
                columns["ts"] = pa.array(halves * 500_000, pa.timestamp("us"))
                batch[name] = pa.table(columns)
            found.append({name: rows for name, rows in batch.items() if rng.random() < 0.9 and name in read})
        return found


def shapes(queries: Sequence[str] = tuple(QUERIES)) -> st.SearchStrategy[Shape]:
    return st.builds(
        Shape, query=st.sampled_from(list(queries)), seed=st.integers(0, 10_000), batches=st.integers(1, 8),
        rows=st.integers(0, 8), a=st.integers(1, 6), b=st.integers(1, 8), slide=st.integers(1, 3), late=st.integers(0, 3),
        gap=st.booleans(),
    )  # fmt: skip
