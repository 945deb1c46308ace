"""Which streams Spark counts in a pipeline, and whether others can be added."""

from __future__ import annotations

import pytest

from anabranch.control.spark_streams import (
    ADDED,
    BEFORE_NAMES,
    STREAMS,
    SparkStreams,
    add_streams,
    first_counted,
    forget_added,
    read_streams,
    write_streams,
)
from anabranch.errors import SessionError
from anabranch.storage.filesystem import MemoryFilesystem
from anabranch.storage.record import seal

NAMES = {"a": ("a",), "b": ("left", "right")}


def test_streams_are_added_where_all_sources_have_names() -> None:
    counted = first_counted(NAMES)
    assert counted == SparkStreams(("a", "b"), NAMES)
    assert counted.lacking({"c": 1, "a": 1}) == ["c"]
    assert counted.why_not_more({"c": ("c",)}) == ""
    more = counted.with_more({"b": NAMES["b"], "c": ("c",)})
    assert more == SparkStreams(("a", "b", "c"), {**NAMES, "c": ("c",)})
    assert more.with_more({"a": ("a",), "c": ("c",)}) == more


def test_files_of_others_are_passed_over_and_stay() -> None:
    disk, counted = MemoryFilesystem(), first_counted(NAMES)
    write_streams(disk, counted)
    disk.put(f"{ADDED}/.DS_Store", [b"not ours"])
    add_streams(disk, {"orders+customers.1a2b3c": ("orders",)})
    assert read_streams(disk) == counted.with_more({"orders+customers.1a2b3c": ("orders",)})
    forget_added(disk, counted)
    assert disk.list(ADDED) == [".DS_Store"]


@pytest.mark.parametrize(
    ("source", "why"),
    [((), "the source of c has no name in Spark"), (("c", "right"), "two sources of b and c have the name right in Spark"),
     (("c", "c"), "two sources of c have the name c in Spark")],
)  # fmt: skip
def test_a_stream_whose_source_cannot_be_told_by_its_name(source: tuple[str, ...], why: str) -> None:
    """It is not added to others, and a pipeline that starts with it has its streams fixed."""
    assert first_counted(NAMES).why_not_more({"c": source}) == why
    with pytest.raises(SessionError, match=f"c cannot be read in a pipeline whose streams are fixed: {why}"):
        first_counted(NAMES).with_more({"c": source})
    fixed = first_counted({**NAMES, "c": source})
    assert fixed == SparkStreams(("a", "b", "c"), {}, why)
    assert fixed.why_not_more({"d": ("d",)}) == why
    assert fixed.why_not_more({"c": source}) == "", "it is counted already"
    assert fixed.with_more({"c": source, "a": ("a",)}) == fixed
    fixed.require_same({"a": ("other",)})


def test_a_source_keeps_its_name() -> None:
    counted = first_counted(NAMES)
    counted.require_same({**NAMES, "c": ()})
    with pytest.raises(SessionError, match=r"the source of b as left, right, and it is left now: load .* \.name\('left'\)"):
        counted.require_same({"b": ("left",)})
    with pytest.raises(SessionError, match="the source of a as a, and it has no name now"):
        counted.require_same({"a": ()})


def test_records_of_releases_before_names_are_read() -> None:
    disk = MemoryFilesystem()
    assert read_streams(disk) is None
    disk.put(STREAMS, [seal(STREAMS, b'["a","b"]')])
    assert read_streams(disk) == SparkStreams(("a", "b"), {}, BEFORE_NAMES)
    write_streams(disk, first_counted(NAMES))
    assert read_streams(disk) == first_counted(NAMES)


def test_a_note_of_a_stream_that_is_torn_or_taken_back() -> None:
    """Spark counts a stream only when its note is whole: what is left of a torn one says nothing."""
    disk, counted = MemoryFilesystem(), first_counted(NAMES)
    write_streams(disk, counted)
    add_streams(disk, {"c": ("c",)})
    disk.put(f"{ADDED}/d", [seal(ADDED, b'["d"]')[:-2]])
    with_c = counted.with_more({"c": ("c",)})
    assert read_streams(disk) == with_c
    add_streams(disk, {"d": ("d",)})
    forget_added(disk, with_c)
    assert read_streams(disk) == with_c
    forget_added(disk, counted)
    assert read_streams(disk) == counted
