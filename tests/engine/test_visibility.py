"""What is wrong with who sees what is noticed: each test breaks the state, or what a lookup knows of it, in one way."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from anabranch.drive.local import LocalPipeline
from anabranch.engine.box import Box
from anabranch.engine.combination import Combination
from anabranch.engine.slot import Slot
from anabranch.engine.view import Combined
from anabranch.plan.query import BEGINNING_US
from anabranch.plan.routes import Stage
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem

CREATE = "".join(f"CREATE STREAM {s} (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "abc")
CHAIN = "CREATE QUERY q AS SELECT a.x FROM a, b, c WHERE a.k = b.k AND b.x = c.x WINDOW 4 SECONDS;"
PLAN = "((a b) c)"
PAIR = "CREATE QUERY p AS SELECT a.x FROM a, b WHERE a.k = b.x WINDOW 4 SECONDS;"


def rows(number: int, until_us: int = 1_000_000) -> pa.Table:
    """Rows of the second before and of the one that a batch brings."""
    rng = np.random.default_rng(number + 9)
    times = number * 1_000_000 + np.sort(rng.integers(-900_000, until_us, 30))
    return pa.table({"k": rng.integers(0, 4, 30), "x": rng.integers(0, 4, 30), "ts": pa.array(times, pa.timestamp("us"))})


def run(*queries: str, batches: int = 6, behind: str = "", later: str = "") -> Slot:
    """The slot of a pipeline after some batches. The rows of a stream that is `behind` are three seconds older; a query may
    come `later`, in batch 3."""
    made = [declared.query for declared in parse_script(CREATE + "".join(queries) + later).queries]
    plans = {"q": PLAN} if any("CREATE QUERY q" in query for query in queries) else {}
    pipeline = LocalPipeline(made[: len(queries)], MemoryFilesystem(), plans)
    for number in range(batches):
        if later and number == 3:
            pipeline.add(made[-1])
        if later == CHAIN and number == 4:
            pipeline.change("q", PLAN)
        read = {source.name for query in pipeline.driver.queries.values() for source in query.query.base_sources}
        pipeline.step(number, {s: rows(number - 3 * (s == behind)) for s in sorted(read)})
        pipeline.verify()
    found = pipeline.slot()
    assert found is not None
    return found


def test_rows_of_a_batch_before_the_range_of_a_reader() -> None:
    slot = run(CHAIN, later=PAIR)
    watch = slot.boxes["p"].reader.watches["a"]
    assert watch.suspects
    watch.suspects.clear()
    with pytest.raises(AssertionError, match=r"p finds \d+ rows by a by \(a.k\) that are none of its a"):
        slot.verify()


@pytest.mark.parametrize("by_us", [None, 500_000], ids=["none known", "another"])
def test_rows_that_were_late_for_one_of_two_readers(by_us: int | None) -> None:
    """Rows of c are behind, so that q takes rows of a and b that are late for p. They are among those of p, who knows its
    watermark of each batch; if that is wrong, verify knows better."""
    slot = run(CHAIN, PAIR, behind="c")
    late = slot.boxes["p"].reader.watches["b"].watermarks
    newest = max(late)
    slot.verify()
    late[newest] = BEGINNING_US if by_us is None else late[newest] - by_us
    with pytest.raises(AssertionError, match=r"p finds \d+ rows by b by \(b.x\) that are none of its b"):
        slot.verify()


def test_a_row_that_an_index_lacks() -> None:
    slot = run(CHAIN)
    index = next(index for key, index in slot.store.indexes.items() if str(key) == "a by (a.k)")
    (spine,) = index.spines.values()
    spine.runs = spine.runs[:-1]
    spine.moved()
    with pytest.raises(AssertionError, match=r"q does not find \d+ rows of its a by a by \(a.k\)"):
        slot.verify()


def test_combinations_that_a_view_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of those that a lookup finds is not kept: the index over the view lacks it as well."""
    keep = Box.keep

    def keep_most(box: Box, batch: int, stage: Stage, found: Combination) -> None:
        keep(box, batch, stage, found.slice(0, len(found) - 1))

    monkeypatch.setattr(Box, "keep", keep_most)
    with pytest.raises(AssertionError, match=r"the view .* lacks \d+ of \d+ rows"):
        run(CHAIN)


def test_rows_of_a_view_that_are_no_combinations() -> None:
    slot = run(CHAIN)
    (view,) = slot.store.views.values()
    for batch, segment in view.segments.items():
        parts = segment.parts.copy()
        parts[0] = np.roll(parts[0], 1)
        view.add(batch, Combined(parts, segment.end_max_us))
    with pytest.raises(AssertionError, match="are no combinations that q wants"):
        slot.verify()


def test_rows_that_a_view_has_twice() -> None:
    slot = run(CHAIN)
    (view,) = slot.store.views.values()
    batch = max(view.segments)
    parts = view.segments[batch].parts
    view.append(batch, [part[:1] for part in parts], view.segments[batch].end_max_us)
    with pytest.raises(AssertionError, match="has rows twice"):
        slot.verify()


def with_another_row(slot: Slot, in_batch: int, row: int) -> Slot:
    """Has the view say a row of `a` too that its first combination of a batch does not have."""
    (view,) = slot.store.views.values()
    (order,) = slot.boxes["q"].reader.orders.values()
    segment = view.segments[in_batch]
    parts = np.concatenate([segment.parts, segment.parts[:, :1]], axis=1)
    parts[order.index("a"), -1] = row
    view.add(in_batch, Combined(parts, segment.end_max_us))
    return slot


def test_rows_of_a_view_that_a_select_turns_away() -> None:
    """In an earlier batch the select may have stood above a join, so that the row is in the view; not in the last one."""
    slot = run(CHAIN.replace("WHERE", "WHERE a.x <> 2 AND"), PAIR)
    turned_away = (4 << 32) + slot.store.logs["a"].segments[4].rows["x"].to_pylist().index(2)
    with_another_row(slot, 4, turned_away).verify()
    with_another_row(slot, 5, turned_away)
    with pytest.raises(AssertionError, match=r"1 rows of the view .* have parts that are none of q"):
        slot.verify()


def test_rows_of_a_view_from_before_the_range_of_its_reader() -> None:
    slot = with_another_row(run(PAIR, later=CHAIN), 4, 2 << 32)
    with pytest.raises(AssertionError, match=r"1 rows of the view .* have parts that are none of q"):
        slot.verify()
