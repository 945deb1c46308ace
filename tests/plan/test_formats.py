"""Endings of paths, and the formats they name."""

from __future__ import annotations

import pytest

from anabranch.errors import UnknownFormatError
from anabranch.plan.formats import COMPRESSIONS, ENDINGS, FORMATS, compression_of, format_of


@pytest.mark.parametrize(
    ("path", "format"),
    [
        ("a/*.jsonl", "json"),
        ("a.ndjson", "json"),
        ("a/*.ipc", "arrow"),
        ("a.feather", "arrow"),
        ("a/b.csv.gz", "csv"),
        ("a/*.jsonl.zst", "json"),
        ("A.CSV.LZ4", "csv"),
        ("file:///data/x.tsv.bz2", "csv"),
        ("trades", "parquet"),
        ("trades/", "parquet"),
        ("trades/*", "parquet"),
        ("trades.csv/*", "parquet"),
        ("trades/**", "parquet"),
        ("/data/day-1.5/", "parquet"),
        (".", "parquet"),
        ("..", "parquet"),
        ("a/.hidden", "parquet"),
        ("trades/part.0001.parquet", "parquet"),
    ],
)
def test_known_endings(path: str, format: str) -> None:
    assert format_of(path) == format


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("a/*.txt", r"the ending \.txt of 'a/\*\.txt' names no format"),
        ("a.json.bak", r"the ending \.bak"),
        ("a.gz", r"the ending \.gz"),
        ("a.dat.gz", r"the ending \.dat\.gz"),
        ("*.*", r"the ending \.\*"),
        ("a.parquet.gz", "parquet files that are compressed as a whole are not read"),
        ("a.arrow.lz4", "arrow files that are compressed as a whole are not read"),
    ],
)
def test_unknown_endings(path: str, told: str) -> None:
    with pytest.raises(UnknownFormatError, match=told):
        format_of(path)


def test_the_error_says_what_to_write() -> None:
    with pytest.raises(UnknownFormatError) as caught:
        format_of("a.txt")
    for word in (*FORMATS, *(f".{e}" for e in ENDINGS), *COMPRESSIONS, "FORMAT csv", 'format="csv"'):
        assert word in str(caught.value)


def test_compression() -> None:
    assert [compression_of(p) for p in ("a.csv", "a.csv.GZ", "a.zst")] == [None, "gzip", "zstd"]
