"""The files of a workload, and the queries of Spark's own join over them (nothing here starts Spark)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.data import FIRST_EVENT_US, is_written, write_files
from bench.processes import process_tree, tree_cpu_s, tree_rss_bytes
from bench.rivals.spark_native import Spec, cascade, read_progress, settings, summary, written_rows
from bench.workload import SHAPES, Workload

TINY = Workload("3-way chain", rate_per_s=10, window_s=2, batch_s=0.5)


def spec(**changes: object) -> Spec:
    given = {"shape": "3-way chain", "rate_per_s": 10, "window_s": 2, "batch_s": 1, "batches": 3, "folder": "files"}
    return Spec.from_json(json.dumps({**given, **changes}))


def test_files_hold_the_batches_in_order(tmp_path: Path) -> None:
    write_files(TINY, str(tmp_path), 3)
    for stream in TINY.streams:
        files = sorted((tmp_path / stream).iterdir())
        assert [f.name for f in files] == ["000000.parquet", "000001.parquet", "000002.parquet"]
        mtimes = [f.stat().st_mtime for f in files]
        assert mtimes == sorted(set(mtimes))
        for number, file in enumerate(files):
            rows, expected = pq.ParquetFile(file).read(), TINY.batch(number)[stream]
            assert rows.schema.field("ts").type == pa.timestamp("us", tz="UTC")
            assert rows.drop(["ts"]) == expected.drop(["ts"])
            times = rows.column("ts").cast(pa.int64()).to_pylist()
            assert times == [FIRST_EVENT_US + t for t in expected.column("ts").cast(pa.int64()).to_pylist()]


def test_files_are_written_once_and_replaced_when_they_should_differ(tmp_path: Path) -> None:
    folder = str(tmp_path)
    write_files(TINY, folder, 3)
    file = tmp_path / "a" / "000000.parquet"
    os.utime(file, (1, 1))
    write_files(TINY, folder, 3)
    assert file.stat().st_mtime == 1
    assert not is_written(TINY, folder, 2)
    write_files(TINY, folder, 2)
    assert is_written(TINY, folder, 2)
    assert file.stat().st_mtime > 1
    assert len(list((tmp_path / "a").iterdir())) == 2
    write_files(Workload("2-way", 10, 2, 0.5), folder, 2)
    assert not list((tmp_path / "c").iterdir())


def test_spec_round_trip() -> None:
    given = spec(store="rocksdb", sink="noop", timeout_s=7, wide=True)
    assert Spec.from_json(given.to_json()) == given
    assert given.workload == Workload("3-way chain", 10, 2, 1, wide=True)


@pytest.mark.parametrize("wrong", [{"store": "disk"}, {"shape": "9-way"}, {"sink": "x"}, {"times": "x"}, {"spped": 1}])
def test_spec_refuses_what_it_does_not_know(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        spec(**wrong)


def test_settings_follow_the_spec() -> None:
    multiple = "spark.sql.streaming.statefulOperator.allowMultiple"
    assert settings(spec())[multiple] == "false"
    assert multiple not in settings(spec(shape="2-way"))
    assert multiple not in settings(spec(times="first"))
    assert settings(spec(cores=3))["spark.sql.shuffle.partitions"] == "3"


def test_conditions_of_a_chain() -> None:
    window = "INTERVAL 2000000 MICROSECONDS"
    first, second, third = cascade(TINY)
    assert (first.columns, first.condition) == (("k1", "v", "ts"), "")
    assert second.columns == ("v", "k1", "k2", "ts")
    assert second.condition == f"a_k1 = b_k1 AND b_ts < a_ts + {window} AND a_ts < b_ts + {window}"
    times = ("least(a_ts, b_ts) AS earliest", "greatest(a_ts, b_ts) AS latest")
    assert second.output == ("a_k1", "a_v", "b_v", "b_k2", *times)
    assert second.watermark == "latest"
    assert third.condition == f"b_k2 = c_k2 AND c_ts < earliest + {window} AND latest < c_ts + {window}"
    assert third.output == ("a_k1", "a_v", "b_v", "c_v")
    assert third.watermark == ""


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("times", ["latest", "first"])
def test_every_key_is_compared_once_and_at_hand(shape: str, times: str) -> None:
    workload = Workload(shape, 10, 2, 1, wide=True)
    steps = cascade(workload, times)
    compared = [c for s in steps for c in s.condition.split(" AND ") if " = " in c]
    assert sorted(compared) == sorted(f"{a} = {b}".replace(".", "_") for a, b in SHAPES[shape])
    available: set[str] = set()
    for step in steps:
        available |= {f"{step.stream}_{c}" for c in step.columns}
        named = " ".join((step.condition, *(o.split(" AS ")[0] for o in step.output)))
        for sign in "(),<+=":
            named = named.replace(sign, " ")
        words = {w for w in named.split() if not w.isdigit()}
        assert words - {"AND", "INTERVAL", "MICROSECONDS", "least", "greatest"} <= available
        available = {o.split(" AS ")[-1] for o in step.output}


def test_progress_and_results_of_a_parquet_sink(tmp_path: Path) -> None:
    results = tmp_path / "results"
    (results / "_spark_metadata").mkdir(parents=True)
    lines = []
    for number, rows in enumerate((2, 0, 5)):
        file = results / f"part {number}.parquet"
        pq.write_table(pa.table({"v": list(range(rows))}), file)
        entry = json.dumps({"path": file.as_uri(), "action": "add"})
        lines.append(entry)
        compact = number == 2  # repeats what came before
        name = f"{number}.compact" if compact else str(number)
        (results / "_spark_metadata" / name).write_text("\n".join(["v1", *(lines if compact else [entry])]))
    assert written_rows(results) == {0: 2, 1: 0, 2: 5}
    state = [{"numRowsTotal": 4, "memoryUsedBytes": 100}, {"numRowsTotal": 6, "memoryUsedBytes": 200}]
    batch = {"numInputRows": 30, "durationMs": {"triggerExecution": 500}, "stateOperators": state, "sink": {}}
    events = [json.dumps({**batch, "batchId": n}) for n in range(3)]
    (tmp_path / "progress").write_text("\n".join(events))
    found = summary(read_progress(tmp_path, "parquet"), warm_batches=2)
    assert (found["results"], found["measured_results"], found["rows_per_s"]) == (7, 5, 60)
    assert (found["state_rows"], found["state_memory_bytes"]) == (10, 300)
    assert summary([], warm_batches=2)["rows_per_s"] is None


def test_memory_of_a_process() -> None:
    assert tree_rss_bytes(os.getpid())[os.getpid()] > 1_000_000


def test_cpu_of_a_process_and_of_those_that_it_started() -> None:
    def of_all() -> float:
        return sum(tree_cpu_s(os.getpid()).values())

    before = of_all()
    busy = "import time\nwhile time.process_time() < 0.3: pass\nprint('', flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        assert process_tree(os.getpid()) >= {os.getpid(), child.pid}
        running = of_all()
        child.stdin.write(b"\n")
    assert running >= before + 0.2
    assert of_all() >= running
