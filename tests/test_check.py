"""`anabranch check`, and what a start decides: without Spark, and without changing anything."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anabranch import session_start
from anabranch.cli import main
from anabranch.control.lease import Holder
from anabranch.control.ledger import commits_in, controls_in, deliveries_in
from anabranch.control.overload_notes import write_overload
from anabranch.control.pipelines import DroppedNote, write_dropped
from anabranch.control.records import Delivered
from anabranch.control.sink_notes import SinkNote, write_sink
from anabranch.drive.local import LocalPipeline
from anabranch.drive.restart import Fate, Outflow, Restart, _freshness, restart_of
from anabranch.errors import SessionError, StateError
from anabranch.plan.overload import Overload, Policy
from anabranch.plan.query import Query
from anabranch.sql import parse_script
from anabranch.storage.filesystem import LocalFilesystem
from anabranch.storage.location import Folder, remove_all
from anabranch.storage.record import FORMAT_VERSION

SOURCES = """
CREATE STREAM a (k BIGINT, v DOUBLE, g STRING, ts TIMESTAMP) TIME ts FROM '{folder}/a/*.parquet';
CREATE STREAM b (k BIGINT, w DOUBLE, ts TIMESTAMP) TIME ts FROM '{folder}/b/*.parquet';
"""
PAIRS = "CREATE QUERY pairs AS SELECT a.k, a.v, b.w FROM a, b WHERE a.k = b.k WINDOW 5 SECONDS;"
SUMS = "CREATE QUERY sums AS SELECT g, SUM(v) AS s, COUNT(*) AS n FROM a [RANGE 5 SECONDS] GROUP BY g;"
WITHOUT_SPARK = """
import sys

class NoSpark:
    def find_spec(self, name, *rest):
        if name.split(".")[0] in ("pyspark", "py4j"):
            raise ImportError(f"{name} is imported")

sys.meta_path.insert(0, NoSpark())
from anabranch.cli import main
sys.exit(main(sys.argv[1:]))
"""


class Ground:
    """A checkpoint in which two queries have run two batches, and files that declare queries."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.checkpoint = folder, LocalFilesystem(str(folder / "c"))
        for name in "ab":
            (folder / name).mkdir()
        disk = LocalFilesystem(str(folder / "c" / "pipeline-0"))
        pipeline = LocalPipeline([*self.queries(PAIRS + SUMS).values()], disk)
        for batch in range(2):
            times = pa.array([batch * 1_000_000], pa.timestamp("us"))
            rows = pa.table({"k": [1], "v": [0.5], "g": ["x"], "w": [1.5], "ts": times})
            pipeline.step(batch, {"a": rows.select(["k", "v", "g", "ts"]), "b": rows.select(["k", "w", "ts"])})
        shutil.copytree(folder / "c" / "pipeline-0" / "queries", folder / "c" / "queries")

    def text(self, queries: str) -> str:
        return SOURCES.format(folder=self.folder) + queries

    def queries(self, queries: str) -> dict[str, Query]:
        return {bound.query.name: bound.query for bound in parse_script(self.text(queries)).queries}

    def file(self, queries: str, sources: tuple[str, str] = ("", "")) -> str:
        path = self.folder / "q.sql"
        path.write_text(self.text(queries).replace(*sources) if sources[0] else self.text(queries))
        return str(path)

    def wait(self, name: str, has_own_files: bool = False) -> None:
        """Has results of a query wait."""
        commits = commits_in(LocalFilesystem(str(self.folder / "c" / "pipeline-0")))
        newest = commits.read(1)
        own = msgspec.structs.replace(newest.queries[name], slots=(0,), has_own_files=has_own_files)
        commits.write(1, msgspec.structs.replace(newest, queries={**newest.queries, name: own}))

    def publish(self, name: str, rows: pa.Table) -> str:
        """Has a parquet sink hold results."""
        folder = self.folder / "out" / name / "batch=0"
        folder.mkdir(parents=True)
        pq.write_table(rows, folder / "0.parquet")
        (folder / "_published").write_text(json.dumps({"token": "t", "files": ["0.parquet"]}))
        return str(folder.parent)

    def drop(self, name: str) -> None:
        """Has a query leave with the next start."""
        assert main(["drop", name, "--checkpoint", str(self.folder / "c")]) == 0

    def restart(self, declared: dict[str, Query], outflows: dict[str, Outflow], **options: list[str]) -> Restart:
        return restart_of(self.checkpoint, parse_script(self.text("")).catalog, declared, outflows, **options)

    def bytes(self) -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in sorted((self.folder / "c").rglob("*")) if p.is_file()}


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


def told(ground: Ground, queries: str, capsys: pytest.CaptureFixture[str], *options: str, code: int) -> str:
    before = ground.bytes()
    assert main(["check", ground.file(queries), "--checkpoint", str(ground.folder / "c"), *options]) == code
    assert ground.bytes() == before, "nothing is changed"
    return capsys.readouterr().out.replace(str(ground.folder), "…")


def test_queries_that_go_on(ground: Ground, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(ground, PAIRS + SUMS, capsys, code=0) == (
        f"checkpoint …/c: 2 queries in 1 pipeline, format version {FORMAT_VERSION}\n"
        "pairs goes on with its state, after batch 1, watermark 1970-01-01 00:00:00\n"
        "sums goes on with its state, after batch 1, watermark 1970-01-01 00:00:00\n"
    )


def test_another_select_list(ground: Ground, capsys: pytest.CaptureFixture[str]) -> None:
    having = SUMS.replace("g, SUM(v) AS s, COUNT(*) AS n", "COUNT(*) AS n, g").replace("BY g", "BY g HAVING SUM(v) > 1")
    text = told(ground, PAIRS.replace("a.v, b.w", "b.w + a.v AS x") + having, capsys, code=0)
    assert "pairs goes on with its state, and selects something else of it, after batch 1" in text
    assert "\n  columns k, x, instead of k, v, w\n  a parquet sink must be another folder than before" in text
    assert "\n  columns n, g, instead of g, s, n\n" in text
    text = told(ground, PAIRS + SUMS.replace("BY g", "BY g HAVING SUM(v) > 1"), capsys, code=0)
    assert "\n  columns g, s, n\n" in text
    more = told(ground, PAIRS.replace("a.v, b.w", "b.w") + SUMS, capsys, "--output", str(ground.folder / "out"), code=0)
    assert "\n  into …/out/pairs, which holds no results with other columns" in more


def test_other_queries(ground: Ground, capsys: pytest.CaptureFixture[str]) -> None:
    """New ones, those that are gone, and those that cannot go on."""
    text = told(ground, PAIRS.replace("5 SECONDS", "9 SECONDS") + SUMS.replace("sums", "other"), capsys, code=65)
    assert "pairs is refused, after batch 1" in text
    assert "\n  -input a: a by ts [RANGE 5000000 us]\n  +input a: a by ts [RANGE 9000000 us]\n" in text
    assert "--fresh pairs" in text
    assert "\nother is new: it starts from the beginning of its streams\n" in text
    assert "\nsums is not declared, and runs on, after batch 1" in text
    assert text.endswith("\n  to have it leave: anabranch drop sums\n")
    text = told(ground, PAIRS.replace("5 SECONDS", "9 SECONDS"), capsys, "--fresh", "pairs", code=0)
    assert "pairs starts anew, from the beginning of its streams, in a pipeline of its own" in text
    assert "sums is not declared, and runs on" in text
    ground.drop("sums")
    assert "sums is dropped, as was asked for: its state is given up" in told(ground, PAIRS, capsys, code=0)
    assert "column g of a is not in the state" in told(ground, PAIRS.replace("a.v", "a.g") + SUMS, capsys, code=65)
    assert "start it with the same number of slots" in told(ground, PAIRS + SUMS, capsys, "--slots", "3", code=65)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--fresh", "pears"), "pears cannot start anew: the checkpoint runs no such query; it runs pairs, sums; did you "
         "mean pairs?"),
        (("--fresh", "other"), "other cannot start anew: the checkpoint does not run it, so it is new there; leave out"),
        (("--fresh", "sums"), "sums cannot start anew: it is not declared; to have it leave: anabranch drop sums"),
    ],
)  # fmt: skip
def test_names_that_cannot_be(
    ground: Ground, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], problem: str
) -> None:
    assert f"refused: {problem}" in told(ground, PAIRS + SUMS.replace("sums", "other"), capsys, *options, code=65)


def test_sinks_that_hold_results(ground: Ground, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder has results of one kind; a query that starts anew wants an empty one."""
    rows = pa.table({"k": [1], "v": [0.5], "w": [1.5]})
    folder, options = ground.publish("pairs", rows), ("--output", str(ground.folder / "out"))
    told(ground, PAIRS + SUMS, capsys, *options, code=0)
    text = told(ground, PAIRS.replace("a.v,", "a.v AS u,") + SUMS, capsys, *options, code=65)
    assert (
        "\n  results of pairs have the columns k int64, u double, w double, and …/out/pairs holds results with k int64, v "
        "double, w double: write to another folder, or move that one away\n" in text
    )
    text = told(ground, PAIRS + SUMS, capsys, *options, "--fresh", "pairs", code=65)
    assert "pairs cannot start anew: …/out/pairs holds results of it; name an empty sink, or move them away" in text
    shutil.rmtree(folder)
    told(ground, PAIRS + SUMS, capsys, *options, "--fresh", "pairs", code=0)


def test_results_that_wait(ground: Ground) -> None:
    ground.wait("pairs")
    other = ground.queries(PAIRS.replace("a.v,", "") + SUMS)
    files, function = {"pairs": Outflow(True, "out", lambda: None)}, {"pairs": Outflow()}
    wait = r"results of pairs from batch 1 on wait, with the columns k int64, v double, w double: start the query as it was"
    with pytest.raises(SessionError, match=wait):
        ground.restart(other, files).require()
    restart = ground.restart(other, function)
    restart.require()
    assert restart.outcomes["pairs"].fate is Fate.REWRITTEN, "a function gets them with the columns that they have"
    ground.restart(ground.queries(PAIRS + SUMS), files).require()
    with pytest.raises(SessionError, match="pairs cannot start anew: its results of batch 1 wait for its sink"):
        ground.restart(other, function, fresh=["pairs"]).require()
    ground.wait("pairs", has_own_files=True)
    with pytest.raises(SessionError, match=wait):
        ground.restart(other, function).require()
    ground.drop("pairs")
    told = "pairs has left, and results of it from batch 1 on wait for its sink, which cannot be made again .*: declare it"
    for note in (None, SinkNote("function")):
        if note is not None:
            write_sink(ground.checkpoint, "pairs", note)
        with pytest.raises(SessionError, match=told):
            ground.restart(ground.queries(SUMS), {}).require()
    restart = ground.restart(ground.queries(PAIRS.replace("5 SECONDS", "9 SECONDS") + SUMS), files)
    restart.require()
    assert restart.leavers["pipeline-0"]["pairs"].sql == ground.queries(PAIRS)["pairs"].sql, "as it ran, not as declared"
    write_sink(ground.checkpoint, "pairs", SinkNote("parquet", "out"))
    restart = ground.restart(ground.queries(SUMS), {})
    restart.require()
    assert restart.leavers["pipeline-0"].keys() == {"pairs"}, "a sink that is data needs no declaration"
    assert restart.outcomes["pairs"].fate is Fate.DROPPED
    ground.drop("sums")
    with pytest.raises(SessionError, match="pairs cannot be dropped: its results of batch 1 wait for its sink"):
        ground.restart(ground.queries(SUMS), {}).require()


def test_a_query_that_has_left_cannot_start_anew_while_results_of_it_wait(ground: Ground) -> None:
    """That is all that is told: nothing of what is asked of those who leave."""
    ground.wait("pairs")
    write_dropped(ground.checkpoint.below("pipeline-0"), [DroppedNote("pairs")])
    (error,) = ground.restart(ground.queries(PAIRS + SUMS), {}, fresh=["pairs"]).errors()
    assert str(error).startswith("pairs cannot start anew: its results of batch 1 wait for its sink")


def test_a_checkpoint_that_is_in_use_or_damaged(ground: Ground, capsys: pytest.CaptureFixture[str]) -> None:
    holder = Holder(ground.checkpoint)
    holder.acquire()
    try:
        assert "refused: the checkpoint is in use by process" in told(ground, PAIRS + SUMS, capsys, code=65)
    finally:
        holder.release()
    told(ground, PAIRS + SUMS, capsys, code=0)
    path = ground.folder / "c" / "pipeline-0" / controls_in(ground.checkpoint).path(1)
    path.write_bytes(path.read_bytes()[:20])
    assert "damaged: pipeline-0/control/" in told(ground, PAIRS + SUMS, capsys, code=0)
    commit = ground.folder / "c" / "pipeline-0" / commits_in(ground.checkpoint).path(1)
    commit.write_bytes(commit.read_bytes().replace(b" %d " % FORMAT_VERSION, b" 3 ", 1))
    assert f"format version 3, this program reads {FORMAT_VERSION}" in told(ground, PAIRS + SUMS, capsys, code=65)


def test_a_file_alone(ground: Ground, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", ground.file(PAIRS + SUMS)]) == 0
    assert capsys.readouterr().out == "pairs can be started: it reads a, b\nsums can be started: it reads a\n"
    assert main(["check", ground.file(PAIRS.replace("a.v", "a.nothing"))]) == 65
    assert "line 4, column 37: " in capsys.readouterr().out
    assert main(["check", ground.file(PAIRS, ("/b/*", "/gone/*"))]) == 65
    assert "there is no folder " in capsys.readouterr().out
    assert main(["check", ground.file(PAIRS), "--checkpoint", str(ground.folder / "other")]) == 0
    assert capsys.readouterr().out.endswith("other: empty\npairs is new: it starts from the beginning of its streams\n")


def test_check_needs_no_spark(ground: Ground) -> None:
    places = ["--checkpoint", str(ground.folder / "c"), "--output", str(ground.folder)]
    arguments = ["check", ground.file(PAIRS + SUMS), *places]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "a: no file matches" in done.stderr
    assert "pairs goes on with its state" in done.stdout


def test_another_policy_and_another_freshness(ground: Ground, capsys: pytest.CaptureFixture[str]) -> None:
    """What a changed policy does is told; so is what another freshness means for rows that were turned away."""
    fresh = PAIRS.replace("5 SECONDS", "5 SECONDS FRESHNESS 6 SECONDS")
    text = told(ground, fresh + SUMS, capsys, code=0)
    assert "pairs goes on with its state, after batch 1" in text
    assert "\n  freshness of a: 6 seconds instead of any\n  freshness of b: 6 seconds instead of any\n" in text
    adapting = PAIRS.replace("pairs AS", "pairs OVERLOAD 'adapt joins' AS")
    text = told(ground, adapting, capsys, code=0)
    assert "\n  overload policy adapt joins instead of fall behind: results may be missing from now on" in text
    write_overload(ground.checkpoint.below("pipeline-0"), Overload(Policy.SHED, cpu=1.5))
    assert "overload policy adapt joins instead of shed, cpu 1.5\n" in told(ground, adapting, capsys, code=0)
    text = told(ground, PAIRS, capsys, code=0)
    assert "overload policy fall behind instead of shed, cpu 1.5: nothing is lost from now on; what was lost" in text
    text = told(ground, PAIRS + SUMS, capsys, "--overload", "shed", code=65)
    assert "refused: query sums cannot run under the policy \"shed\": a group over a part of the rows is wrong" in text


def test_a_longer_freshness_lacks_rows(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    queries = {s: ground.queries(PAIRS.replace("5 SECONDS", f"5 SECONDS FRESHNESS {s} SECONDS"))["pairs"] for s in (6, 9)}
    assert _freshness(queries[6], queries[9]) == (
        "freshness of a: 9 seconds instead of 6 seconds; rows that were too old so far are not there",
        "freshness of b: 9 seconds instead of 6 seconds; rows that were too old so far are not there",
    )
    assert _freshness(queries[9], queries[6])[0] == "freshness of a: 6 seconds instead of 9 seconds"
    assert _freshness(queries[6], ground.queries(PAIRS)["pairs"])[0].endswith("too old so far are not there")
    assert _freshness(queries[6], queries[6]) == ()


@pytest.mark.parametrize(
    ("gone", "told"),
    [
        ("commit", r"pipeline-0: batch 1 was begun \(control/.*\), but there is no whole commit: .* do not belong together"),
        ("commit control", r"pipeline-0: results of pairs have arrived \(delivered/pairs\), but there is no whole commit"),
        ("commit control delivered", None),
    ],
)
def test_a_pipeline_whose_commits_are_gone(ground: Ground, gone: str, told: str | None) -> None:
    """Its query does not start from the beginning in silence; it does if nothing tells that there ever was a commit."""
    pipeline = ground.folder / "c" / "pipeline-0"
    deliveries_in(LocalFilesystem(str(pipeline)), "pairs").write(1, Delivered(1, "t"))
    (pipeline / "control" / f"{0:020d}-0000000000").unlink(missing_ok=True)
    for name in gone.split():
        shutil.rmtree(pipeline / name)
    found = ground.restart(ground.queries(PAIRS), {})
    if told is None:
        found.require()
    else:
        with pytest.raises(StateError, match=told):
            found.require()


@pytest.mark.parametrize("parts", [0, 1, 2, 3])
def test_a_pipeline_that_was_deleted_half_way(ground: Ground, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as its commits are there it is as it was; then it is one that nobody takes up."""
    pipeline = ground.folder / "c" / "pipeline-0"
    deliveries_in(LocalFilesystem(str(pipeline)), "pairs").write(1, Delivered(1, "t"))
    calls, before = list[Folder](), set(os.listdir(pipeline))

    def dying(folder: Folder) -> None:
        if len(calls) == parts:
            raise KeyboardInterrupt
        calls.append(folder)
        remove_all(folder)

    monkeypatch.setattr(session_start, "remove_all", dying)
    with pytest.raises(KeyboardInterrupt):
        session_start._remove(ground.checkpoint.below("pipeline-0"))
    there = set(os.listdir(pipeline))
    assert "state" in there
    assert len(before - there) == parts
    found = ground.restart(ground.queries(PAIRS), {})
    found.require()
    assert found.outcomes["pairs"].fate is (Fate.GOES_ON if "commit" in there else Fate.NEW)
