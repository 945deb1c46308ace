"""Files of all formats give the same rows, in the declared types; errors name the file and the column. No Spark."""

from __future__ import annotations

import datetime as dt
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from anabranch.errors import FilesError, SchemaMismatchError
from anabranch.plan.formats import COMPRESSIONS, format_of
from anabranch.plan.query import Field, Stream, Table
from anabranch.spark.file_rows import read_rows
from anabranch.spark.reader import (
    infer_fields,
    read_table,
)
from tests.support.reading import (
    arrow_bytes,
    multiset,
    put,
    query_of,
    random_rows,
)


def write(path: Path, rows: pa.Table) -> None:
    if path.suffix == ".parquet":
        pq.write_table(rows, path)
    elif path.suffix == ".csv":
        pyarrow.csv.write_csv(rows, path)
    elif path.suffix == ".json":
        lines = [json.dumps({k: v for k, v in row.items() if v is not None}, default=str) for row in rows.to_pylist()]
        path.write_text("".join(f"{line}\n" for line in lines))
    else:
        new = pa.ipc.new_file if path.suffix == ".arrow" else pa.ipc.new_stream
        options = pa.ipc.IpcWriteOptions(compression="lz4") if path.suffix == ".lz4" else None
        with new(path, rows.schema, options=options) as writer:
            for batch in rows.to_batches(max_chunksize=40):
                writer.write_batch(batch)


@pytest.mark.parametrize("ending", ["parquet", "csv", "json", "arrow", "arrows", "lz4"])
def test_every_format_gives_the_same_rows(tmp_path: Path, ending: str) -> None:
    _, source = query_of("one key")
    rows = pa.Table.from_batches([random_rows(100)])
    columns = tuple(rows.column_names)
    path = tmp_path / f"a.{ending}"
    write(path, rows)
    format = ending if ending in ("parquet", "csv", "json") else "arrow"
    read = read_rows(str(path), format, source, columns)
    assert read.schema == pa.schema([(f.name, f.type) for f in source.fields])
    assert multiset(read) == multiset(rows)
    some = read_rows(str(path), format, source, ("ts", "k"))
    assert multiset(some) == multiset(rows.select(["ts", "k"]))


@pytest.mark.parametrize("packed", [*COMPRESSIONS, ".GZ"])
@pytest.mark.parametrize("ending", ["csv", "json"])
def test_compressed_text(tmp_path: Path, ending: str, packed: str) -> None:
    _, source = query_of("one key")
    rows = pa.Table.from_batches([random_rows(100)])
    plain, path = tmp_path / f"a.{ending}", tmp_path / f"a.{ending}{packed}"
    write(plain, rows)
    compression = COMPRESSIONS[packed.lower()]
    with pa.output_stream(path, compression=compression) as file:
        file.write(plain.read_bytes())
    assert path.read_bytes() != plain.read_bytes()
    assert multiset(read_rows(str(path), ending, source, ("k", "ts"))) == multiset(rows.select(["k", "ts"]))
    put(path, path.read_bytes())
    assert {f.name for f in infer_fields(str(path), format_of(str(path)))} == set(rows.column_names)
    with pa.output_stream(path, compression=compression):
        pass
    assert read_rows(str(path), ending, source, ("k", "ts")).num_rows == 0


def test_several_members_of_a_compressed_file(tmp_path: Path) -> None:
    _, source = query_of("one key")
    path = put(tmp_path / "a.csv.gz", gzip.compress(b"k,ts\n1,\n") + gzip.compress(b"2,\n"))
    assert read_rows(str(path), "csv", source, ("k",)).column(0).to_pylist() == [1, 2]


@pytest.mark.parametrize("name", ["a.tsv", "a.TSV.gz"])
def test_tabs_between_columns(tmp_path: Path, name: str) -> None:
    _, source = query_of("one key")
    content = b"name\tk\na,b\t7\n"
    path = str(put(tmp_path / name, gzip.compress(content) if name.endswith("gz") else content))
    assert read_rows(path, format_of(path), source, ("name", "k")).to_pylist() == [{"name": "a,b", "k": 7}]
    assert [f.name for f in infer_fields(path, format_of(path))] == ["name", "k"]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("2024-03-01 12:00:00", (12, 0)),
        ("2024-03-01T12:00:00.000001", (12, 1)),
        ("2024-03-01T12:00:00.000001Z", (12, 1)),
        ("2024-03-01 14:00:00+02:00", (12, 0)),
        ("2024-03-01 12:00:00.000001999", (12, 1)),
    ],
)
@pytest.mark.parametrize("format", ["csv", "json"])
def test_times_in_text(tmp_path: Path, format: str, written: str, expected: tuple[int, int]) -> None:
    source = Stream("s", (Field("k", pa.int64()), Field("ts", pa.timestamp("us"))), "ts")
    path = put(
        tmp_path / "a", (f"k,ts\n1,{written}\n" if format == "csv" else f'{{"k":1,"ts":"{written}"}}\n').encode()
    )
    hour, microsecond = expected
    rows = read_rows(str(path), format, source, ("k", "ts"))
    assert rows.column(1).to_pylist() == [dt.datetime(2024, 3, 1, hour, 0, 0, microsecond)]
    assert infer_fields(str(tmp_path), format) == source.fields


def test_types_are_widened_and_times_are_microseconds(tmp_path: Path) -> None:
    instant = dt.datetime(2024, 3, 1, 12)
    rows = pa.table(
        {
            "small": pa.array([1], pa.uint16()),
            "name": pa.array(["a"]).dictionary_encode(),
            "long": pa.array(["a"], pa.large_string()),
            "zoned": pa.array([instant], pa.timestamp("ns")).cast(pa.timestamp("ns", "America/New_York")),
            "ts": pa.array([1_709_294_400_000_000_999]).view(pa.timestamp("ns")),
        }
    )
    write(tmp_path / "a.arrow", rows)
    fields = infer_fields(f"{tmp_path}/*.arrow", "arrow")
    assert [f.type for f in fields] == [pa.int32(), pa.string(), pa.string(), pa.timestamp("us"), pa.timestamp("us")]
    (row,) = read_rows(
        str(tmp_path / "a.arrow"), "arrow", Stream("s", fields, "ts"), tuple(f.name for f in fields)
    ).to_pylist()
    assert row == {"small": 1, "name": "a", "long": "a", "zoned": instant, "ts": instant}


def test_errors_name_the_file_and_the_column(tmp_path: Path) -> None:
    _, source = query_of("one key")
    for format in ("parquet", "csv", "arrow"):
        path = tmp_path / f"a.{format}"
        write(path, pa.table({"other": [1], "ts": ["2024-01-01"]}))
        with pytest.raises(SchemaMismatchError, match=rf"a\.{format}: .* no column k \(int64\); it has other, ts"):
            read_rows(str(path), format, source, ("k", "ts"))
    write(tmp_path / "text.parquet", pa.table({"k": ["one"], "ts": [dt.datetime(2024, 1, 1)]}))
    with pytest.raises(SchemaMismatchError, match=r"text\.parquet, row 1: column k: 'one' is no BIGINT"):
        read_rows(str(tmp_path / "text.parquet"), "parquet", source, ("k", "ts"))
    with pytest.raises(SchemaMismatchError, match=r"bad\.csv, line 2: column k: 'one' is no BIGINT: .* ON ERROR SKIP"):
        read_rows(str(put(tmp_path / "bad.csv", b"k,ts\none,\n")), "csv", source, ("k", "ts"))
    with pytest.raises(FilesError, match=r"torn\.parquet cannot be read as parquet"):
        read_rows(str(put(tmp_path / "torn.parquet")), "parquet", source, ("k", "ts"))
    with pytest.raises(FilesError, match=r"gone\.csv was found earlier and is gone"):
        read_rows(str(tmp_path / "gone.csv"), "csv", source, ("k", "ts"))


def test_an_empty_text_file_has_no_rows(tmp_path: Path) -> None:
    _, source = query_of("one key")
    for format in ("csv", "json"):
        assert read_rows(str(put(tmp_path / "a", b"")), format, source, ("k", "ts")).num_rows == 0


def test_nothing_to_infer_from(tmp_path: Path) -> None:
    with pytest.raises(FilesError, match=r"no csv file with rows matches .*\*\.csv: .* declare the columns"):
        infer_fields(f"{tmp_path}/*.csv", "csv")
    with pytest.raises(FilesError, match="no reader for orc files; there are: parquet, csv, json, arrow"):
        infer_fields(str(tmp_path), "orc")
    with pytest.raises(FilesError, match=r"use spark\.readStream for s3"):
        infer_fields("s3://bucket/a", "csv")
    write(tmp_path / "a.arrow", pa.table({"t": pa.array([1], pa.time64("us"))}))
    with pytest.raises(SchemaMismatchError, match="column t is time64"):
        infer_fields(str(tmp_path), "arrow")


def test_a_file_that_is_not_complete_gives_no_columns_and_no_table(tmp_path: Path) -> None:
    put(tmp_path / "torn.parquet", b"PAR1")
    with pytest.raises(FilesError, match=r"no parquet file with rows.*; 1 file waits to be complete: .*torn\.parquet"):
        infer_fields(str(tmp_path), "parquet")
    put(tmp_path / "whole.parquet", arrow_bytes("parquet"))
    assert [f.name for f in infer_fields(str(tmp_path), "parquet")] == ["k", "e"]
    table = Table("t", (Field("k", pa.int64()),))
    with pytest.raises(FilesError, match=r"the table t cannot be read .* 1 file waits to be complete: .*torn\.parquet"):
        read_table(str(tmp_path), "parquet", table, ("k",))
    (tmp_path / "torn.parquet").unlink()
    assert read_table(str(tmp_path), "parquet", table, ("k",)).num_rows == 2
