"""Watermarks of queries in the batch after a commit."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from anabranch.control.ledger import commits_in
from anabranch.control.watermark import next_watermark
from anabranch.drive.local import LocalPipeline
from anabranch.sql import parse_script
from anabranch.storage.filesystem import MemoryFilesystem

SCRIPT = """CREATE STREAM a (k BIGINT, ts TIMESTAMP) TIME ts; CREATE STREAM b (k BIGINT, ts TIMESTAMP) TIME ts;
CREATE QUERY q AS SELECT a.k FROM a, b WHERE a.k = b.k WINDOW 2 SECONDS"""


def test_who_comes_has_the_watermark_of_those_over_the_same_streams() -> None:
    """Theirs may be beyond what the streams say now: one of them was idle, and shows older rows since."""
    query, disk = parse_script(SCRIPT).queries[0].query, MemoryFilesystem()
    rows = pa.table({"k": [1], "ts": pa.array([5], pa.timestamp("us"))})
    LocalPipeline([query], disk).step(0, {"a": rows, "b": rows})
    commit = commits_in(disk).read(0)
    ahead = msgspec.structs.replace(commit.queries["q"], watermark_us=9)
    commit = msgspec.structs.replace(commit, queries={"q": ahead})
    later = parse_script(SCRIPT.replace("QUERY q", "QUERY later")).queries[0].query
    assert next_watermark(later, commit, 0, {"q", "later"}) == 9
    assert next_watermark(later, commit, 0, {"later"}) == 5
