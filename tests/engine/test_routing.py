"""Whose a result is, told by sets and age slices, is what one comparison of it with each member tells.

A combination of rows with equal keys is a member's if its own filters and predicates hold for it, and if, for each of the
member's streams s, `max(start) - start_s` is less than the member's window of s. The slow way asks each member just that, of
each combination there is. It knows no sets, no slices and no order of results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from unittest import mock

import pyarrow as pa
from hypothesis import strategies as st

from anabranch.drive.local import LocalPipeline
from anabranch.engine import bounds, lineage
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support.scenarios import properties

STREAMS = "abc"
NOW, UNBOUNDED = 0, None
FILTERS: Mapping[str, Callable[[int], bool]] = {
    "{}.x > 3": lambda x: x > 3, "{}.x > 5": lambda x: x > 5, "{}.x < 7": lambda x: x < 7,
    "{}.x % 2 = 0": lambda x: x % 2 == 0,
}  # fmt: skip
RESIDUALS: Mapping[str, Callable[[int, int], bool]] = {
    "a.x < b.x": lambda a, b: a < b, "a.x <> b.x": lambda a, b: a != b, "a.x + b.x > 8": lambda a, b: a + b > 8,
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A row of a stream; its number tells it from others of the stream."""

    number: int
    batch: int
    time_s: int
    key: int
    x: int | None


@dataclass(frozen=True)
class Member:
    """A query over the first two streams, or all three."""

    windows_s: tuple[int | None, ...]
    filters: tuple[frozenset[str], ...]
    residuals: frozenset[str]
    computes: bool
    """Whether it selects what must be computed; else columns."""

    def sql(self, name: str) -> str:
        aliases = STREAMS[: len(self.windows_s)]
        select = ", ".join(f"{alias}.n{' + 0' if self.computes else ''} AS {alias}" for alias in aliases)
        inputs = ", ".join(f"{s} [{window(us)}] AS {s}" for s, us in zip(aliases, self.windows_s, strict=True))
        where = [f"{left}.k = {right}.k" for left, right in pairwise(aliases)]
        where += [text.format(s) for s, texts in zip(aliases, self.filters, strict=False) for text in sorted(texts)]
        where += sorted(self.residuals)
        return f"CREATE QUERY {name} AS SELECT {select} FROM {inputs} WHERE {' AND '.join(where)};"

    def wants(self, rows: Sequence[Row]) -> bool:
        """One comparison with each of its windows and predicates."""
        if len({row.key for row in rows}) > 1:
            return False
        newest_s = max(row.time_s for row in rows)
        for row, window_s, texts in zip(rows, self.windows_s, self.filters, strict=False):
            if window_s is not UNBOUNDED and newest_s - row.time_s >= (window_s or 1e-6):
                return False
            if any(row.x is None or not FILTERS[text](row.x) for text in texts):
                return False
        a, b = rows[0].x, rows[1].x
        return all(a is not None and b is not None and RESIDUALS[text](a, b) for text in self.residuals)


def window(window_s: int | None) -> str:
    if window_s is UNBOUNDED:
        return "UNBOUNDED"
    return f"RANGE {window_s} SECONDS" if window_s else "NOW"


WINDOWS = st.sampled_from([NOW, 1, 2, 3, 5, 8, UNBOUNDED])


def members(streams: int, most_residuals: int = 1) -> st.SearchStrategy[Member]:
    own = st.frozensets(st.sampled_from(sorted(FILTERS)), max_size=2)
    return st.builds(
        Member, st.tuples(*[WINDOWS] * streams), st.tuples(*[own] * streams),
        st.frozensets(st.sampled_from(sorted(RESIDUALS)), max_size=most_residuals), st.booleans(),
    )  # fmt: skip


def rows(most: int) -> st.SearchStrategy[list[tuple[int, int, int, int | None]]]:
    """Batch, second, key and x: times are whole seconds, so that rows are often exactly as old as a window."""
    x = st.one_of(st.none(), st.integers(0, 9), st.integers(0, 9))
    return st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 1), x), max_size=most)


def routed(own: Mapping[str, Member], given: Mapping[str, Sequence[Row]]) -> dict[str, Counter[tuple[int, ...]]]:
    """What each member gets of a join that they run together, in three batches."""
    script = "".join(
        f"CREATE STREAM {s} (k BIGINT, x BIGINT, n BIGINT, ts TIMESTAMP) TIME ts LATENESS 1 HOUR;" for s in STREAMS
    )
    script += "".join(member.sql(name) for name, member in own.items())
    pipeline = LocalPipeline([each.query for each in parse_script(script).queries], MemoryFilesystem())
    found: dict[str, Counter[tuple[int, ...]]] = {name: Counter() for name in own}
    read = STREAMS[: max(len(member.windows_s) for member in own.values())]
    for number in range(3):
        batch = {s: [row for row in given[s] if row.batch == number] for s in read}
        steps = pipeline.step(number, {s: table(several) for s, several in batch.items()})
        for name, step in steps.items():
            found[name].update(tuple(row.values()) for row in step.results.to_pylist())
    slot = pipeline.slot()
    assert slot is None or not any(given.values()) or set(slot.sharing) == set(own), "they run one join"
    return found


def table(several: Sequence[Row]) -> pa.Table:
    times = pa.array([row.time_s * 1_000_000 for row in several], pa.timestamp("us"))
    return pa.table({
        "k": pa.array([row.key for row in several], pa.int64()), "x": pa.array([row.x for row in several], pa.int64()),
        "n": pa.array([row.number for row in several], pa.int64()), "ts": times,
    })  # fmt: skip


def check_routing(
    lead: Member, others: Sequence[Member], drawn: Sequence[Sequence[tuple[int, int, int, int | None]]], most_sets: int,
    piece_rows: int,
) -> None:
    """The lead has no predicate over several streams, so that the others' are none that the join would have to give up.
    `most_sets` have numbers, then combinations carry bits; results are handed out `piece_rows` at a time."""
    own = {f"q{place}": member for place, member in enumerate([lead, *others])}
    given = {s: [Row(n, *each) for n, each in enumerate(several)] for s, several in zip(STREAMS, drawn, strict=True)}
    with mock.patch.object(lineage, "MOST_TABLE", most_sets), mock.patch.object(bounds, "RESULT_ROWS", piece_rows):
        found = routed(own, given)
    for name, member in own.items():
        combinations = product(*(given[s] for s in STREAMS[: len(member.windows_s)]))
        expected = Counter(tuple(row.number for row in each) for each in combinations if member.wants(each))
        assert found[name] == expected, f"{name}: {member}"


test_routing, test_routing_long = properties(
    check_routing, 40, 3_000, lead=members(3, 0), others=st.lists(st.one_of(members(3), members(2)), min_size=1, max_size=9),
    drawn=st.tuples(rows(9), rows(9), rows(7)), most_sets=st.sampled_from([2048, 2048, 4]),
    piece_rows=st.sampled_from([1_000_000, 7]),
)  # fmt: skip

test_routing_of_pairs, test_routing_of_pairs_long = properties(
    check_routing, 40, 3_000, lead=members(2, 0), others=st.lists(members(2), min_size=1, max_size=11),
    drawn=st.tuples(rows(14), rows(14), st.just([])), most_sets=st.sampled_from([2048, 2048, 4]),
    piece_rows=st.sampled_from([1_000_000, 7]),
)  # fmt: skip
