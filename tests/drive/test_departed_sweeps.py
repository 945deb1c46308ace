"""What a start deletes of queries that have left: what a driver that died was about to delete, and nothing that is used."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from anabranch.control.journal import FOLDER as JOURNALS
from anabranch.control.ledger import DELIVERED, commits_in
from anabranch.control.pipelines import ComingNote, KnownPipeline, write_coming
from anabranch.control.query_texts import QueryTexts, text_of
from anabranch.control.records import Commit, Ended
from anabranch.control.sink_notes import SinkNote, read_sink, write_sink
from anabranch.drive.departed import sweep_checkpoint, sweep_pipeline, trim_journals
from anabranch.drive.local import LocalPipeline
from anabranch.plan.query import Query
from anabranch.sql import parse_script
from anabranch.storage.filesystem import Filesystem, LocalFilesystem, MemoryFilesystem

SCRIPT = "CREATE STREAM a (k BIGINT, ts TIMESTAMP) TIME ts; CREATE QUERY {name} AS SELECT k FROM a [NOW] WHERE k > {least}"


def query(name: str, least: int = 0) -> Query:
    return parse_script(SCRIPT.format(name=name, least=least)).queries[0].query


def run_two_batches(disk: Filesystem, *names: str) -> None:
    pipeline = LocalPipeline([query(name) for name in names], disk)
    for batch in range(2):
        pipeline.step(batch, {"a": pa.table({"k": [1], "ts": pa.array([batch], pa.timestamp("us"))})})


def without(commit: Commit, name: str) -> Commit:
    return msgspec.structs.replace(commit, queries={n: own for n, own in commit.queries.items() if n != name})


def test_what_was_delivered_of_who_left_is_known_for_as_long_as_a_commit_has_results_of_it() -> None:
    """Else they would be delivered again."""
    disk = MemoryFilesystem()
    run_two_batches(disk, "stays", "gone")
    commits = commits_in(disk)
    commits.write(1, without(commits.read(1), "gone"))
    for name in ("stays", "gone"):
        disk.put(f"{DELIVERED}/{name}/0", [b"arrived"])
    sweep_pipeline(disk, commits, commits.read(1))
    assert set(disk.folders(DELIVERED)) == {"stays", "gone"}
    commits.prune(1)
    disk.put(commits.path(2), [b"anabranch"])
    sweep_pipeline(disk, commits, commits.read(1))
    assert set(disk.folders(DELIVERED)) == {"stays", "gone"}, "a commit that cannot be read may be restored"
    commits.drop(2)
    sweep_pipeline(disk, commits, commits.read(1))
    assert set(disk.folders(DELIVERED)) == {"stays"}


def test_texts_and_sinks_of_who_has_gone_go(tmp_path: Path) -> None:
    """Those of a query that is to come stay, though no commit names it."""
    checkpoint = LocalFilesystem(str(tmp_path))
    folder, texts = checkpoint.below("pipeline-0"), QueryTexts(checkpoint)
    run_two_batches(folder, "stays")
    queries = {name: query(name, least) for least, name in enumerate(("stays", "later", "gone"))}
    for name, each in queries.items():
        texts.keep(text_of(each))
        write_sink(checkpoint, name, SinkNote("function"))
    checkpoint.put("sinks/notes.txt", [b"mine"])
    write_coming(folder, ComingNote("later", text_of(queries["later"]).digest))
    sweep_checkpoint(checkpoint)
    assert set(texts.digests()) == {text_of(queries[name]).digest for name in ("stays", "later")}
    assert [name for name in queries if read_sink(checkpoint, name) is not None] == ["stays", "later"]
    assert checkpoint.list("sinks") == ["later", "notes.txt", "stays"]


@pytest.mark.parametrize(("most", "kept"), [(3, ["first", "last", "unknown"]), (2, ["first", "last"]), (1, ["last"])])
def test_journals_of_those_who_left_last_stay(most: int, kept: list[str]) -> None:
    disk, left = MemoryFilesystem(), {name: Ended(batch, "by request") for batch, name in enumerate(("first", "last"))}
    for name in ("unknown", "last", "first", "runs"):
        disk.put(f"{JOURNALS}/{name}/0", [b""])
    known = KnownPipeline("pipeline-0", {"runs": None}, True, left=left)  # type: ignore[dict-item]
    trim_journals(disk, [known], most)
    assert sorted(disk.folders(JOURNALS)) == sorted([*kept, "runs"])
