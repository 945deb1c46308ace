"""What holds state back is told: which query's watermark lags, because of which stream, and what waits for it."""

from __future__ import annotations

import pyarrow as pa

from anabranch.control.holding import QUIET_BATCHES, Holding, Told, held_back
from anabranch.control.progress import progress_of
from anabranch.drive.local import LocalPipeline
from anabranch.plan.query import Query
from anabranch.show.chains import ShownSharing, sharing_json, sharing_lines, sharing_text
from anabranch.show.progress import logfmt_line
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem

SECOND_US = 1_000_000
SCRIPT = "".join(f"CREATE STREAM {s} (k BIGINT, x BIGINT, ts TIMESTAMP) TIME ts;" for s in "abc") + """
    CREATE QUERY part AS SELECT a.x, b.x AS y FROM a, b WHERE a.k = b.k WINDOW 2 SECONDS;
    CREATE QUERY whole AS SELECT a.x, c.x AS y FROM a, b, c WHERE a.k = b.k AND b.k = c.k AND a.x < 1 WINDOW 2 SECONDS"""


def queries() -> list[Query]:
    return [declared.query for declared in parse_script(SCRIPT).queries]


def rows(second: int, names: str) -> dict[str, pa.Table]:
    """Four rows of each stream, of which one has an x of 0."""
    ts = pa.array([second * SECOND_US + n for n in range(4)], pa.timestamp("us"))
    return {s: pa.table({"k": [second * 4 + n for n in range(4)], "x": [0, 1, 2, 3], "ts": ts}) for s in names}


def run_of(silent: range, batches: int) -> LocalPipeline:
    run = LocalPipeline(queries(), MemoryFilesystem())
    for number in range(batches):
        run.step(number, rows(number, "ab" if number in silent else "abc"))
    return run


def told(run: LocalPipeline, query: str) -> list[tuple[int, str]]:
    entries = run.driver.queries[query].journal.entries()
    return [(entry.batch, entry.event) for entry in entries if entry.event in ("held back", "released")]


def test_it_is_told_which_query_holds_rows_back_and_because_of_which_stream() -> None:
    run = run_of(range(4, 1_000), 40)
    commit = run.driver.newest
    assert commit is not None
    held = {each.source: each for each in run.driver.holding.now}
    assert held.keys() == {"a", "b"}
    for each in held.values():
        assert (each.queries, each.stream) == (["whole"], "c")
        assert each.behind_us == 35 * SECOND_US, "the watermark of whole is that of c, at second 3"
    slot = run.slot()
    assert slot is not None
    log = slot.store.logs["a"]
    starts = [us for _, stored in log for us in stored.rows["ts"].cast(pa.int64()).to_pylist()]
    over = sum(us + 2 * SECOND_US <= 38 * SECOND_US + 3 for us in starts)
    assert held["a"].rows + held["a"].free_rows >= over > 30
    assert held["a"].rows <= over, "those that would go if c came"
    assert 0 < held["a"].free_rows <= 4 * 3, "they go by the watermark of part"
    assert held["b"].free_rows == 0, "whole wants all rows of b"
    assert held["a"].bytes == round(held["a"].rows * log.bytes / log.rows)


def test_progress_has_it_of_all_who_read_the_stream() -> None:
    run = run_of(range(4, 1_000), 30)
    commit = run.driver.newest
    assert commit is not None
    for query in queries():
        made = progress_of(query, commit, "(a b)", {})
        made.held_back = held_back(queries(), commit)
        line = logfmt_line(query.name, made)
        assert f"held_rows={sum(each.rows for each in made.held_back)} held_by=whole" in line
        assert "wait for whole, as c is behind, the watermark by 25 seconds" in made._repr_html_()


def test_the_journal_tells_when_rows_begin_to_wait_and_when_none_does_any_more() -> None:
    """In that of the query that holds them back, and in that of the first that reads the stream."""
    run = run_of(range(4, 20), 20 + QUIET_BATCHES + 2)
    assert run.driver.holding.now == []
    for query in ("part", "whole"):
        (began, first), (also, second), (end, last), (ended, end_event) = told(run, query)
        assert (began, first, second) == (also, "held back", "held back"), "of a and b"
        assert 6 <= began <= 12
        assert (end, last, end_event) == (ended, "released", "released")
        assert end >= 20 + QUIET_BATCHES


def test_nothing_is_told_while_watermarks_go_together() -> None:
    run = run_of(range(0), 12)
    assert run.driver.holding.now == []
    assert told(run, "part") == told(run, "whole") == []


def test_what_waits_now_and_then_is_told_once() -> None:
    noted, holding = Told(), Holding("a", ["whole"], "c", 10, 100)
    said = [noted.after([holding] if number % 3 == 0 else []) for number in range(60)]
    assert [len(each) for each in said] == [1, *[0] * 59]


def test_a_drawing_and_explain_show_what_waits() -> None:
    held = Holding("a", ["whole"], "c", 1_200, 4_096, 30, 90 * SECOND_US)
    shown = ShownSharing((), (), None, (), (held,))
    assert sharing_lines(shown).slices == {"a": ["1,200 rows, 4 KiB, wait for whole: c is behind", "30 rows do not"]}
    expected = "1,200 rows of a (4,096 bytes) wait for whole, as c is behind, the watermark by 90 seconds; 30 others do not"
    assert expected in sharing_text(shown, False)
    found = sharing_json(shown)
    assert found is not None
    assert found["held_back"][0]["rows"] == 1_200
