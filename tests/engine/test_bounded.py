"""What is kept is bounded: by who wants it, and by what queries keep alone."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import strategies as st

from anabranch.drive.local import LocalPipeline
from anabranch.engine.expressions import predicate_mask
from anabranch.plan.identity import ViewKey
from anabranch.plan.query import Query
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support.scenarios import properties

SECOND_US = 1_000_000
CREATE = "".join(f"CREATE STREAM {s} (k BIGINT, j BIGINT, i BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "abcd")
IDLE = CREATE.replace("TIME ts", "TIME ts IDLE 5 SECONDS")
BATCHES = 40


OVER = ("abc", "abd", "abcd", "ab", "bc", "bcd")


def random_queries(seed: int, create: str = CREATE) -> list[Query]:
    """Queries over some of four streams each, with windows and filters of their own."""
    rng, selects = np.random.default_rng(seed), list[str]()
    for place in range(int(rng.integers(2, 6))):
        over = OVER[int(rng.integers(len(OVER) if place else 3))]
        inputs = ", ".join(f"{s} [RANGE {rng.choice([1, 2, 3, 5])} SECONDS]" for s in over)
        where = [f"{s}.k = {t}.k" for s, t in pairwise(over)]
        where += [f"{s}.x {rng.choice(['< 2', '< 5', '> 4', '> 7'])}" for s in over if rng.integers(2)]
        selects.append(f"SELECT {', '.join(f'{s}.x AS x{s}' for s in over)} FROM {inputs} WHERE {' AND '.join(where)}")
    script = create + "".join(f"CREATE QUERY q{n} AS {select};" for n, select in enumerate(selects))
    return [declared.query for declared in parse_script(script).queries]


def unwanted_rows(run: LocalPipeline, made: list[Query], came: dict[str, pa.Table], watermarks: dict[str, int]) -> int:
    """How many more rows logs have than somebody wants by the watermark of its own; never fewer."""
    slot, found = run.slot(), 0
    assert slot is not None
    for name, rows in came.items():
        log, wanted = slot.store.logs[name], np.zeros(len(rows), np.bool_)
        for query in made:
            for i in (i for i in query.inputs if i.source.name == name):
                ends = rows["ts"].cast(pa.int64()).to_numpy() + i.window.length_us
                mask = predicate_mask(i.filters, lambda c, rows=rows: rows[c.name].combine_chunks(), len(ends))
                wanted |= (ends > watermarks[query.name]) & (True if mask is None else mask)
        assert log.rows >= wanted.sum(), f"rows of {name} are gone that somebody wants"
        found += log.rows - int(wanted.sum())
    return found


def check_bounded(seed: int) -> None:
    """Some streams fall silent, for some batches or for ever. Rows that wait for somebody who wants them are kept; of others
    there are no more after sixty batches than when the last stream had fallen silent, but for those of a few batches."""
    made, rng = random_queries(seed), np.random.default_rng(seed)
    silent = {s: (int(rng.integers(0, 12)), int(rng.choice([9, 1_000, 1_000]))) for s in "abcd" if rng.random() < 0.4}
    run, read = LocalPipeline(made, MemoryFilesystem()), {s.name for query in made for s in query.base_sources}
    came, extra = dict[str, pa.Table](), list[int]()
    for number in range(60):
        batch = {}
        for s in sorted(read):
            begin, length = silent.get(s, (0, 0))
            if begin <= number < begin + length:
                continue
            times = number * SECOND_US + np.sort(rng.integers(0, SECOND_US, 4))
            columns = {"k": rng.integers(0, 40, 4), "j": rng.integers(0, 9, 4), "i": rng.integers(0, 9, 4)}
            columns |= {"x": rng.integers(0, 10, 4), "ts": pa.array(times, pa.timestamp("us"))}
            batch[s] = pa.table(columns)
            came[s] = pa.concat_tables([came[s], batch[s]]) if s in came else batch[s]
        steps = run.step(number, batch)
        extra.append(unwanted_rows(run, made, came, {name: step.watermark_us for name, step in steps.items()}))
    assert max(extra[25:]) <= max(extra[:25]) + 4 * 3 * len(read), extra


test_bounded, test_bounded_long = properties(check_bounded, 12, 400, seed=st.integers(0, 2**32 - 1))


def batches_of(seed: int, read: set[str]) -> list[dict[str, pa.Table]]:
    """Rows of streams some of which fall silent, for some batches or for ever."""
    rng, found = np.random.default_rng(seed), []
    silent = {s: (int(rng.integers(0, 12)), int(rng.choice([9, 1_000, 1_000]))) for s in "abcd" if rng.random() < 0.4}
    for number in range(BATCHES):
        batch = {}
        for s in "abcd":
            times = pa.array(number * SECOND_US + np.sort(rng.integers(0, SECOND_US, 4)), pa.timestamp("us"))
            columns = {"k": rng.integers(0, 8, 4), "j": rng.integers(0, 9, 4), "i": rng.integers(0, 9, 4)}
            begin, length = silent.get(s, (0, 0))
            if s in read and not begin <= number < begin + length:
                batch[s] = pa.table({**columns, "x": rng.integers(0, 10, 4), "ts": times})
        found.append(batch)
    return found


def kept_by(run: LocalPipeline, slots: int) -> Counter[str]:
    """How many rows all slots keep: in logs, in indexes over these, and in views and the indexes over those."""
    found = Counter[str]()
    for number in range(slots):
        slot = run.slot(number)
        if slot is None:
            continue
        found["logs"] += sum(log.rows for log in slot.store.logs.values())
        found["views"] += sum(view.rows for view in slot.store.views.values())
        for key, index in slot.store.indexes.items():
            found["views" if isinstance(key.rows, ViewKey) else "indexes"] += index.rows
    return found


def kept(
    made: list[Query], seed: int, slots: int, *, is_idle: bool = False, starts: int = 0, restarts: bool = False
) -> Counter[str]:
    """How many rows queries keep after all batches, the first `starts` of which (all, if none) are there from the beginning,
    while the others come one by one."""
    now, disk, read = 0, MemoryFilesystem(), {s.name for query in made for s in query.base_sources}
    there = made[:starts] if starts else list(made)

    def started() -> LocalPipeline:
        return LocalPipeline(there, disk, slots=slots, clock=lambda: float(now), sweep_grace_s=0.0, release_every=1)

    run = started()
    for number, batch in enumerate(batches_of(seed, read)):
        now = number if is_idle else 0
        if len(there) < len(made) and number % 3 == 2:
            there.append(made[len(there)])
            run.add(there[-1])
        if restarts and number % 11 == 10:
            run = started()
        own = {s.name for query in there for s in query.base_sources}
        run.step(number, {name: rows for name, rows in batch.items() if name in own})
    return kept_by(run, slots)


def check_beside_alone(seed: int, slots: int, is_idle: bool, starts: int, restarts: bool) -> None:
    """Together queries keep hardly more than they do one by one: whatever stream falls silent or is idle, whoever comes
    late, and in however many slots. What has ended may go a few batches later."""
    made = random_queries(seed, IDLE if is_idle else CREATE)
    together = kept(made, seed, slots, is_idle=is_idle, starts=starts, restarts=restarts)
    alone = sum((kept([query], seed, 1, is_idle=is_idle) for query in made), Counter[str]())
    for what, most in together.items():
        assert most <= 1.2 * alone[what] + 60, (what, together, alone)


test_beside_alone, test_beside_alone_long = properties(
    check_beside_alone, 6, 400, seed=st.integers(0, 2**32 - 1), slots=st.sampled_from([1, 2, 4]), is_idle=st.booleans(),
    starts=st.sampled_from([0, 1]), restarts=st.booleans(),
)  # fmt: skip


@pytest.mark.parametrize("seed", [2, 52])
def test_members_with_longer_windows_do_not_make_views_larger(seed: int) -> None:
    check_beside_alone(seed, 1, False, 0, False)
