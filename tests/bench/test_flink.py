"""What the benchmark beside Flink gives Flink: its SQL, its files and its settings (nothing here starts Flink or Spark)."""

import os
import re
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.parquet as pq
import pytest

from bench import flink
from bench.data import FIRST_EVENT_US
from bench.flink import checksum
from bench.rivals.flink_sql import FlinkSpec, check_plan, join, settings, statements, summary
from bench.text_data import columns_read, rows_of, write_text
from bench.workload import Workload
from tests.support.oracle import joined

SMALL = {shape: Workload(shape, rate_per_s=40, window_s=2, batch_s=1, matches=4) for shape in ("2-way", "3-way chain")}
SPEC = FlinkSpec("3-way chain", 40, 2, 1, 5, "/data/text", checkpoint_s=1.0)


def in_duckdb(sql: str) -> str:
    """Flink's query, whose times are TIMESTAMP columns here too."""
    return re.sub(r"INTERVAL '([\d.]+)' SECOND", r"INTERVAL '\1 seconds'", sql)


@pytest.mark.parametrize("shape", SMALL)
def test_flinks_query_gives_what_the_oracle_gives(shape: str) -> None:
    workload = SMALL[shape]
    rng = np.random.default_rng(3)
    rows: dict[str, pa.Table] = {}
    for stream in workload.streams:  # many pairs at a distance of a window exactly, of a millisecond less and of one more
        ms = rng.choice([0, 1, 999, 1000, 1999, 2000, 2001, 3999, 4000, 4001], 60)
        columns: dict[str, object] = {key: rng.integers(0, 3, 60) for key in workload.keys}
        rows[stream] = pa.table({**columns, "v": rng.random(60), "ts": pa.array(ms * 1000, pa.timestamp("us"))})
    expected = joined(workload.query, rows)
    connection = duckdb.connect()
    for stream, table in rows.items():
        connection.register(f"{stream}_rows", table)
        connection.execute(f"CREATE VIEW {stream} AS SELECT *, epoch_ms(ts) AS ms FROM {stream}_rows")
    found = Counter(connection.execute(in_duckdb(join(workload))).fetchall())
    assert found == expected
    assert found
    wider = in_duckdb(join(workload)).replace(" > ", " >= ").replace(" < ", " <= ")
    assert Counter(connection.execute(wider).fetchall()) != expected


@pytest.mark.parametrize("shape", SMALL)
def test_every_pair_of_streams_has_a_condition_on_time(shape: str) -> None:
    text = join(SMALL[shape])
    for one, other in combinations(SMALL[shape].streams, 2):
        assert len(re.findall(rf"\b{one}\.(ts|ms) [<>] {other}\.\1 [+-]", text)) == 2
    for line in text.splitlines()[1:]:
        assert line.startswith("  AND") == (".ms" in line)
        assert line.startswith("JOIN") == (".ts" in line)


def test_all_cuts_have_the_same_rows(tmp_path: Path) -> None:
    workload = SMALL["3-way chain"]
    write_text(workload, str(tmp_path), 3, 2)
    for stream in workload.streams:
        names = [*columns_read(workload, stream), "ts"]
        expected = pa.concat_tables([rows_of(workload, number)[stream] for number in range(3)])
        times = [t + FIRST_EVENT_US for t in expected.column("ts").cast(pa.int64()).to_pylist()]
        assert all(time % 1000 == 0 for time in times)
        columns = [expected.column(name).to_pylist() for name in names[:-1]]
        rows = Counter(zip(*columns, times, strict=True))
        for format, read in (("parquet", pq.read_table), ("csv", pv.read_csv)):
            files = sorted((tmp_path / format / stream).glob(f"*.{format}"))
            assert [f.name for f in files] == [f"00000{number}.{format}" for number in range(3)]
            mtimes = [os.stat(f).st_mtime for f in files]
            assert mtimes == sorted(set(mtimes))
            found = pa.concat_tables([read(f) for f in files])
            instants = found.column("ts").cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
            assert Counter(zip(*(found.column(n).to_pylist() for n in names[:-1]), instants, strict=True)) == rows
        taken: Counter[tuple[object, ...]] = Counter()
        for reader in range(2):
            path = tmp_path / "readers" / stream / f"{reader}.csv"
            part = pv.read_csv(path, pv.ReadOptions(column_names=[*names[:-1], "ms"]))
            ms = part.column("ms").to_pylist()
            assert ms == sorted(ms)
            taken += Counter(zip(*(part.column(n).to_pylist() for n in names[:-1]), [m * 1000 for m in ms], strict=True))
        assert taken == rows
    names = ["origin", "k1", "k2", "v", "ms"]
    shares = [pv.read_csv(tmp_path / "together" / f"{n}.csv", pv.ReadOptions(column_names=names)) for n in range(2)]
    for share in shares:
        assert share.column("ms").to_pylist() == sorted(share.column("ms").to_pylist())
    for place, stream in enumerate(workload.streams):
        own = [*columns_read(workload, stream), "ms"]
        apart = [tmp_path / "readers" / stream / f"{reader}.csv" for reader in range(2)]
        split = pa.concat_tables([pv.read_csv(path, pv.ReadOptions(column_names=own)) for path in apart])
        together = pa.concat_tables(shares)
        found = together.filter(pa.compute.equal(together.column("origin"), place)).select(own)
        assert Counter(map(tuple, map(dict.values, found.to_pylist()))) == Counter(
            map(tuple, map(dict.values, split.to_pylist()))
        )


def test_files_are_written_anew_only_if_they_should_differ(tmp_path: Path) -> None:
    workload, file = SMALL["2-way"], tmp_path / "readers" / "a" / "0.csv"
    write_text(workload, str(tmp_path), 2, 2)
    once = file.read_bytes()
    file.write_text("touched")
    write_text(workload, str(tmp_path), 2, 2)
    assert file.read_text() == "touched"
    write_text(workload, str(tmp_path), 3, 2)
    assert file.read_bytes().startswith(once)
    write_text(workload, str(tmp_path), 2, 1)
    assert not (tmp_path / "readers" / "a" / "1.csv").exists()


def test_statements_read_what_the_files_have() -> None:
    *streams, sink, insert = statements(SPEC, "/results")
    for stream, statement in zip("abc", streams, strict=True):
        fields = "".join(f"{name} {SPEC.workload.columns[name]}, " for name in columns_read(SPEC.workload, stream))
        assert statement.startswith(f"CREATE TABLE {stream} ({fields}ms BIGINT, ts AS")
        assert f"'file:///data/text/readers/{stream}'" in statement
    assert "(a_k1 BIGINT, a_v DOUBLE, b_v DOUBLE, c_v DOUBLE)" in sink
    assert "'file:///results'" in sink
    assert "'blackhole'" in statements(replace(SPEC, sink="blackhole"), "/results")[-2]
    assert insert == f"INSERT INTO results\n{join(SPEC.workload)}"


def test_streams_may_be_views_of_one_table() -> None:
    table, *views, _, insert = statements(replace(SPEC, sources="one"), "/results")
    assert table.startswith("CREATE TABLE everything (origin BIGINT, k1 BIGINT, k2 BIGINT, v DOUBLE, ms BIGINT, ts AS")
    assert "'file:///data/text/together'" in table
    assert views[1:] == [
        "CREATE VIEW b AS SELECT k1, k2, v, ms, ts FROM everything WHERE origin = 1",
        "CREATE VIEW c AS SELECT k2, v, ms, ts FROM everything WHERE origin = 2",
    ]
    assert insert == statements(SPEC, "/results")[-1]


def test_settings_follow_the_spec() -> None:
    heap, rocksdb = settings(SPEC, "/work"), settings(replace(SPEC, backend="rocksdb"), "/work")
    assert heap["state.backend.type"] == "hashmap"
    assert heap["execution.checkpointing.interval"] == "1000 ms"
    assert heap["execution.checkpointing.incremental"] == "false"
    assert rocksdb["execution.checkpointing.incremental"] == "true"
    assert not [n for n in settings(replace(SPEC, checkpoint_s=None), "/work") if n.startswith("execution.checkpointing")]


@pytest.mark.parametrize("wrong", [{"backend": "heap"}, {"sink": "parquet"}, {"sources": "none"}, {"shape": "7-way"}])
def test_a_spec_refuses_what_it_does_not_know(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="must be one of"):
        replace(SPEC, **wrong)  # type: ignore[arg-type]


def test_a_plan_with_another_join_is_refused() -> None:
    begin = "Join(written)\n== Optimized Execution Plan ==\n"
    check_plan(f"{begin}+- IntervalJoin(one)\n   +- IntervalJoin(other)", SPEC.workload)
    for other in ("+- Join(one)\n   +- IntervalJoin(other)", "+- IntervalJoin(one)", ""):
        with pytest.raises(SystemExit, match="did not make interval joins"):
            check_plan(begin + other, SPEC.workload)


def test_figures_of_a_run_that_was_cancelled_are_of_what_was_done() -> None:
    cpu = [(0.0, 0.0), (100.0, 200.0)]
    passed = [(11.0, 100), (15.0, 400), (30.0, 500)]
    found = {
        "state": "timeout", "began_s": 10.0, "ended_s": 30.0, "passed": passed, "cpu_by_time": cpu,
        "peak_rss_bytes": 1, "checkpoints": 2, "state_bytes": 77,
    }  # fmt: skip
    figures = summary(found, 1000)
    assert (figures["whole"], figures["rows"], figures["rows_per_s"]) == (False, 500, 25.0)
    assert figures["steady_rows_per_s"] == 100 / 15
    assert figures["cpu_s_per_million_rows"] == pytest.approx(40 / 500 * 1e6)
    assert figures["state_bytes"] == 77
    assert summary({**found, "checkpoints": 0}, 1000)["state_bytes"] is None


def test_a_checksum_notices_one_value_and_one_row() -> None:
    def of(*rows: str) -> tuple[int, str]:
        return checksum(f"(VALUES {', '.join(rows)}) AS t(a_k1, a_v, b_v)", SMALL["2-way"])

    assert of("(1, 0.5, 0.25)", "(2, 0.5, 0.25)") != of("(1, 0.5, 0.25)", "(2, 0.5, 0.5)")
    assert of("(1, 0.5, 0.25)", "(1, 0.5, 0.25)") != of("(1, 0.5, 0.25)")


def test_without_flink_it_says_so_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(flink, "PYTHON", tmp_path / "bin" / "python")
    monkeypatch.setattr("sys.argv", ["bench.flink", "--data", str(tmp_path / "data")])
    flink.main()
    assert "SKIPPED: Flink is not installed" in capsys.readouterr().out
    assert not (tmp_path / "data").exists()
