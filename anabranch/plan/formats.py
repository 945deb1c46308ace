"""Which format and which compression the name of a file tells: the one place that reads endings.

A path of files is written by a user, with `*` in it or without; its last part decides for all files that match.
"""

from __future__ import annotations

from anabranch.errors import UnknownFormatError

FORMATS = ("parquet", "csv", "json", "arrow")
"""What the reader reads."""

DEFAULT_FORMAT = "parquet"
"""The format of a path without an ending: a folder, or `folder/*`."""

ENDINGS = {
    "parquet": "parquet",
    "csv": "csv",
    "tsv": "csv",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "arrow": "arrow",
    "arrows": "arrow",
    "ipc": "arrow",
    "feather": "arrow",
}

TEXT = ("csv", "json")
"""Formats whose files may be compressed as a whole."""

COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
"""Endings of CSV and JSON files that are decompressed while they are read, and what pyarrow calls them."""


def format_of(path: str) -> str:
    """The format of the files of a path, by its ending; UnknownFormatError if that names none.

    >>> [format_of(p) for p in ("trades/*.ndjson", "trades.CSV.gz", "trades/*", "day-1.5/trades")]
    ['json', 'csv', 'parquet', 'parquet']
    """
    name = path.rpartition("/")[2]
    compressed = next((ending for ending in COMPRESSIONS if name.lower().endswith(ending)), "")
    stem, dot, ending = name[: len(name) - len(compressed)].rpartition(".")
    if not compressed and not stem.strip("."):
        return DEFAULT_FORMAT
    format = ENDINGS.get(ending.lower()) if dot else None
    if format is None:
        shown = f"{dot}{ending if dot else ''}{compressed}"
        raise UnknownFormatError(f"the ending {shown} of {path!r} names no format", _hint())
    if compressed and format not in TEXT:
        raise UnknownFormatError(
            f"{path!r}: {format} files that are compressed as a whole are not read",
            f"decompress them; {format} compresses its columns itself",
        )
    return format


def compression_of(path: str) -> str | None:
    """What the files of a text format are compressed with, in pyarrow's words; None: nothing."""
    lower = path.lower()
    return next((name for ending, name in COMPRESSIONS.items() if lower.endswith(ending)), None)


def has_tabs(path: str) -> bool:
    """Whether the columns of a CSV file are separated by tabs.

    >>> has_tabs("a.tsv.gz"), has_tabs("a.csv")
    (True, False)
    """
    lower = path.lower()
    return next((lower.removesuffix(e) for e in COMPRESSIONS if lower.endswith(e)), lower).endswith(".tsv")


def _hint() -> str:
    known = ", ".join(f".{ending}" for ending in ENDINGS)
    packed = ", ".join(COMPRESSIONS)
    return (
        f"known are {known}, and {packed} after those of csv and json; else name one of {', '.join(FORMATS)}: "
        'FORMAT csv in SQL, format="csv" in Python'
    )
