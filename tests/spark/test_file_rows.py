"""Which rows of a file are good, for each format; bad rows are set aside one by one, whatever else is in the file."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

from anabranch.errors import FilesError, SchemaMismatchError
from anabranch.plan.grid import Grid
from anabranch.plan.on_error import SKIP
from anabranch.plan.query import Stream
from anabranch.spark.file_list import FoundFile
from anabranch.spark.file_rows import DamagedFileError, Judged, converted, judge, read_rows
from anabranch.spark.reader import ASIDE, PASSED_OVER, FileOptions, FileSource, blobs
from anabranch.sql import parse_script
from tests.support.scenarios import properties

SCRIPT = """
    CREATE STREAM s (k BIGINT, i INT, x DOUBLE, name STRING, price DECIMAL(6,2), flag BOOLEAN, day DATE, ts TIMESTAMP)
        TIME ts;
    CREATE QUERY q AS SELECT a.k FROM s a, s b WHERE a.k = b.k WINDOW 1 SECOND;
"""
SOURCE = parse_script(SCRIPT).catalog.source("s")
assert isinstance(SOURCE, Stream)
ALL = tuple(f.name for f in SOURCE.fields)


def judged(path: Path, content: bytes, columns: tuple[str, ...] = ALL) -> Judged:
    path.write_bytes(content)
    format = path.name.split(".")[1]
    assert SOURCE is not None
    return judge(str(path), format, SOURCE, columns)


def told(found: Judged) -> list[tuple[int, str]]:
    return [(bad["row"], bad["reason"]) for bad in found.bad.to_pylist()]


# -- one format after the other --------------------------------------------------------------------------------------


def test_lines_of_csv(tmp_path: Path) -> None:
    lines = [
        b"k,i,x,name,price,flag,day,ts,more",
        b"1,2,0.5,a,1.25,true,2024-01-01,2024-01-01 00:00:00,z",
        b"",
        b"2,2,abc,a,1.25,true,2024-01-01,2024-01-01 00:00:00,z",
        b"3,2",
        b"4,99999999999,,,,,,,",
        b"5,,,,123456.5,,,,",
        b"6,,,,,,2024-13-01,,",
        b"7,,,,,,,soon,",
        b"8,,,\xff,,,,,",
        b'9,,,"open,,,,,',
        b'10,,,"a, ""b""",,,,2024-01-01T00:00:00.123456789Z,',
        b'11,,,"",,,,,',
        b"12,,,,,perhaps,,,",
        b"13,,,,,,,2024-01-01 00:00:00,",
    ]
    found = judged(tmp_path / "a.csv", b"\r\n".join(lines))
    assert [row["k"] for row in found.good.to_pylist()] == [1, 10, 11, 13]
    assert [row["name"] for row in found.good.to_pylist()] == ["a", 'a, "b"', "", None]
    assert found.good.column("ts").cast(pa.int64()).to_pylist() == [
        1704067200000000, 1704067200123456, None, 1704067200000000
    ]  # fmt: skip
    assert found.good.schema.types == [SOURCE.field(name).type for name in ALL]  # type: ignore[union-attr]
    assert told(found) == [
        (4, "column x: 'abc' is no DOUBLE"),
        (5, "CSV parse error: Expected 9 columns, got 2: 3,2"),
        (6, "column i: '99999999999' is no INT"),
        (7, "column price: '123456.5' is no DECIMAL(6,2)"),
        (8, "column day: '2024-13-01' is no DATE"),
        (9, "column ts: 'soon' is no TIMESTAMP"),
        (10, "column name: '\ufffd' is no STRING"),
        (11, 'CSV parse error: Expected 9 columns, got 4: 9,,,"open,,,,,'),
        (14, "column flag: 'perhaps' is no BOOLEAN"),
    ]
    assert found.bad.column("raw").to_pylist()[:2] == [lines[3].decode(), "3,2"]


def test_a_quote_that_is_not_closed_takes_its_own_line_alone(tmp_path: Path) -> None:
    assert SOURCE is not None
    path = tmp_path / "a.csv"
    path.write_bytes(b'k,name\n1,a\n2,"b\n3,c\n4,"d"\n')
    found = judge(str(path), "csv", SOURCE, ("k", "name"))
    assert (found.good.to_pydict(), told(found)) == (
        {"k": [1, 3, 4], "name": ["a", "c", "d"]}, [(3, "a quote is not closed on its line")]
    )  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
def test_lines_of_json(tmp_path: Path, packed: bool) -> None:
    whole = {"k": 1, "i": 2, "x": 0.5, "name": "a", "price": "1.25", "flag": True, "day": "2024-01-01"}
    lines = [
        json.dumps({**whole, "ts": "2024-01-01 00:00:00"}).encode(), b"  ", b"null", b"[1]", b'{"k": 1', b"hello",
        b'{"k": 1}{"k": 2}', b'{"k": "x"}', b'{"i": 99999999999}', b'{"ts": "soon"}', b'{"day": "never"}', b'{"name": 5}',
        b'{"name": "\xff"}', b' {"k":\t5, "ts": "2024-01-01T00:00:00Z", "more": [1]} ', b"{}",
    ]  # fmt: skip
    content = b"\n".join(lines)
    found = judged(tmp_path / ("a.json.gz" if packed else "a.json"), gzip.compress(content) if packed else content)
    assert [row["k"] for row in found.good.to_pylist()] == [1, 5, None]
    assert [row["price"] for row in found.good.to_pylist()] == [Decimal("1.25"), None, None]
    assert told(found) == [
        (3, "there is no JSON object on the line"),
        (4, "there is no JSON object on the line"),
        (5, "there is no JSON object on the line"),
        (6, "there is no JSON object on the line"),
        (7, "there are several JSON objects on the line"),
        (8, "column k: 'x' is no BIGINT"),
        (9, "column i: 99999999999 is no INT"),
        (10, "column ts: 'soon' is no TIMESTAMP"),
        (11, "column day: 'never' is no DATE"),
        (12, "column name: 5 is no STRING"),
        (13, "Invalid UTF8 payload"),
    ]


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_rows_of_columns(tmp_path: Path, ending: str) -> None:
    assert SOURCE is not None
    rows = pa.table({
        "k": ["1", "two", None, "4"], "i": pa.array([1, 1, 1 << 40, 1], pa.int64()), "x": [1, 2, 3, 4],
        "ts": pa.array([1, 2, 3, 4], pa.timestamp("ns")),
    })  # fmt: skip
    path = tmp_path / f"a.{ending}"
    write(path, rows)
    found = judge(str(path), ending, SOURCE, ("k", "i", "x", "ts"))
    assert found.good.to_pydict()["k"] == [1, 4]
    assert told(found) == [(2, "column k: 'two' is no BIGINT"), (3, "column i: 1099511627776 is no INT")]
    assert found.bad.column("raw").null_count == 2


def write(path: Path, rows: pa.Table) -> None:
    if path.suffix == ".parquet":
        pq.write_table(rows, path)
    else:
        with pa.ipc.new_file(path, rows.schema) as writer:
            writer.write_table(rows)


@pytest.mark.parametrize("format", ["csv", "json"])
def test_an_empty_text_has_neither_good_nor_bad_rows(tmp_path: Path, format: str) -> None:
    found = judged(tmp_path / f"a.{format}", b"")
    assert (found.good.num_rows, found.bad.num_rows) == (0, 0)
    if format == "csv":
        found = judged(tmp_path / "b.csv", ",".join(ALL).encode())
        assert (found.good.num_rows, found.bad.num_rows) == (0, 0)


def test_a_file_without_a_declared_column_is_no_bad_row(tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatchError, match=r"a\.csv: the file has no column i \(int32\); it has k"):
        judged(tmp_path / "a.csv", b"k\nx\n")
    write(tmp_path / "a.parquet", pa.table({"k": [[1]]}))
    assert SOURCE is not None
    with pytest.raises(SchemaMismatchError, match=r"a\.parquet: column k is list<element: int64>, declared as int64"):
        judge(str(tmp_path / "a.parquet"), "parquet", SOURCE, ("k",))


def test_damaged_files_and_files_that_cannot_be_reached_are_told_apart(tmp_path: Path) -> None:
    assert SOURCE is not None
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"k": list(range(10_000))}), path)
    whole = path.read_bytes()
    path.write_bytes(whole[:100] + bytes(200) + whole[300:])
    with pytest.raises(DamagedFileError, match=r"a\.parquet cannot be read as parquet"):
        judge(str(path), "parquet", SOURCE, ("k",))
    packed = gzip.compress(b"k\n" + os.urandom(1000).hex().encode())
    for content in (packed[:-200], b"k\n1\n"):
        with pytest.raises(DamagedFileError, match=r"a\.csv\.gz cannot be read as csv"):
            judged(tmp_path / "a.csv.gz", content, ("k",))
    with pytest.raises(DamagedFileError, match=r"a\.arrow cannot be read as arrow"):
        judged(tmp_path / "a.arrow", b"ARROW1\0\0nothing", ("k",))
    (tmp_path / "folder.parquet").mkdir()
    with pytest.raises(FilesError, match="was found earlier and is gone"):
        judge(str(tmp_path / "gone.parquet"), "parquet", SOURCE, ("k",))


@pytest.mark.parametrize(
    ("offsets", "values", "why"),
    [((0, 2, 4), b"\xff\xffab", "UTF8"), ((0, 10**9, 4), b"abcd", "out of bounds"), ((0, -5, 4), b"abcd", "non-monotonic")],
)
def test_arrow_files_are_not_taken_as_they_are(tmp_path: Path, offsets: tuple[int, ...], values: bytes, why: str) -> None:
    """Text that is none, and offsets that lead elsewhere: whether bad rows are left out or are errors."""
    assert SOURCE is not None
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32)), pa.py_buffer(values)]
    path = tmp_path / "a.arrow"
    write(path, pa.table({"k": [1, 2], "name": pa.Array.from_buffers(pa.string(), 2, buffers)}))
    with pytest.raises(DamagedFileError, match=rf"a\.arrow cannot be read as arrow: .*{why}"):
        judge(str(path), "arrow", SOURCE, ("k", "name"))
    with pytest.raises(FilesError, match=rf"a\.arrow cannot be read as arrow: .*{why}.*ON ERROR SKIP"):
        read_rows(str(path), "arrow", SOURCE, ("k", "name"))
    assert read_rows(str(path), "arrow", SOURCE, ("k",)).column("k").to_pylist() == [1, 2]


# -- FAIL ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"k,ts\n1,\n2x,\n", r"a\.csv, line 3: column k: '2x' is no BIGINT: have bad rows left out \("),
        ("a.csv", b"k,ts\n1,\n2\n", r"a\.csv, line 3: CSV parse error: Expected 2 columns, got 1: 2: .*ON ERROR INTO"),
        ("a.csv", b'k,ts,name\n1,,"a\nb"\n2x,,\n', r"a\.csv, line 4: column k: '2x' is no BIGINT: "),
        ("a.json", b'{"k": 1}\nnull\n', r"a\.json, line 2: there is no JSON object on the line: .*ON ERROR SKIP"),
        ("a.json", b'{"k": 1}\n{"k": 1.5}\n', r"a\.json, line 2: column k: 1\.5 is no BIGINT: .*ON ERROR SKIP"),
    ],
)
def test_an_error_names_the_row_and_what_to_do(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    assert SOURCE is not None
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SchemaMismatchError, match=message):
        read_rows(str(tmp_path / name), name.split(".")[1], SOURCE, ("k", "ts"))


def test_only_columns_that_are_read_fail(tmp_path: Path) -> None:
    assert SOURCE is not None
    (tmp_path / "a.csv").write_bytes(b"k,i,ts\n1,bad,\n")
    assert read_rows(str(tmp_path / "a.csv"), "csv", SOURCE, ("k", "ts")).num_rows == 1


# -- any files -------------------------------------------------------------------------------------------------------

GOOD = st.fixed_dictionaries({
    "k": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
    "i": st.none() | st.integers(-(1 << 31), (1 << 31) - 1),
    "x": st.none() | st.floats(allow_nan=False, allow_infinity=False, width=32),
    "name": st.none() | st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=6),
    "flag": st.none() | st.booleans(),
    "ts": st.none() | st.sampled_from(["2024-01-01 00:00:00", "2024-01-01T00:00:01Z", "2024-01-01T00:00:02.123456789"]),
})  # fmt: skip
BAD = {
    "csv": ["1", "x,,,,,", ",9999999999,,,,", ',,,"open,,', ",,,,maybe,", ",,,,,soon", ",,,,,,,,,", '"",,,,,'],
    "json": ["null", "[]", "{", '{"k": "x"}', '{"i": 9999999999}', '{"ts": "soon"}', '{"name": 1}', '{"k": 1} {}', '"', "1"],
}
COLUMNS = ("k", "i", "x", "name", "flag", "ts")


@st.composite
def files(draw: st.DrawFn) -> tuple[str, list[list[Any]]]:
    """A format, and files of it: rows, or texts that are none."""
    format = draw(st.sampled_from(["csv", "json"]))
    return format, draw(st.lists(st.lists(GOOD | st.sampled_from(BAD[format]), max_size=12), min_size=1, max_size=3))


def line(format: str, row: Any) -> str:
    if isinstance(row, str):
        return row
    if format == "json":
        return json.dumps({name: value for name, value in row.items() if value is not None}, ensure_ascii=False)
    values = [row[name] for name in COLUMNS]
    texts = ["" if v is None else json.dumps(v) if not isinstance(v, str) else v.replace('"', '""') for v in values]
    return ",".join(f'"{t}"' if isinstance(v, str) else t for t, v in zip(texts, values, strict=True))


def check_good_rows_alone(drawn: tuple[str, list[list[Any]]], read: tuple[str, ...]) -> None:
    """What the reader gives of files with bad rows is what it gives of files without them, each of them counted, whatever
    columns are read."""
    format, contents = drawn
    assert isinstance(SOURCE, Stream)
    query = parse_script(SCRIPT).queries[0].query
    stream = Stream("s", tuple(f for f in SOURCE.fields if f.name in COLUMNS), "ts")

    def taken(folder: str, kept: list[list[Any]]) -> tuple[Counter[str], int]:
        for number, rows in enumerate(kept):
            header = [",".join(COLUMNS)] if format == "csv" else []
            texts = [*header, *(line(format, row) for row in rows)]
            Path(folder, f"{number}.{format}").write_text("".join(f"{text}\n" for text in texts))

        def found(name: str) -> FoundFile:
            status = os.stat(path := os.path.join(folder, name))
            return FoundFile(path, status.st_mtime_ns, status.st_size)

        given = FileSource(stream, folder, format, ((query, Grid()),), read, FileOptions(log_path="-", on_error=SKIP))
        good, aside = Counter[str](), 0
        for batch in blobs(given, [found(name) for name in os.listdir(folder)]):
            for blob in batch.column("blob"):
                opened = pa.ipc.open_stream(blob.as_buffer())
                rows = opened.read_all()
                assert PASSED_OVER not in (opened.schema.metadata or {})
                if ASIDE in (opened.schema.metadata or {}):
                    aside += rows.num_rows
                else:
                    good += Counter(map(repr, rows.to_pylist()))
        return good, aside

    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        with_bad = taken(one, contents)
        without = taken(other, [[row for row in rows if isinstance(row, dict)] for rows in contents])
    assert with_bad[0] == without[0]
    assert sum(without[0].values()) == sum(isinstance(row, dict) for rows in contents for row in rows)
    assert (with_bad[1], without[1]) == (sum(isinstance(row, str) for rows in contents for row in rows), 0)


test_good_rows_alone, test_good_rows_alone_long = properties(
    check_good_rows_alone, 60, 2_000, drawn=files(), read=st.sampled_from([("k", "ts"), COLUMNS, ("k", "name", "ts")])
)


def test_halves_find_what_one_by_one_finds() -> None:
    values = pa.array([str(n) if n % 7 else f"x{n}" for n in range(100)])
    found, bad = converted(values, lambda v: v.cast(pa.int64()), pa.int64())
    assert found.to_pylist() == [n if n % 7 else None for n in range(100)]
    assert sorted(bad) == list(range(0, 100, 7))
