"""Checkpoints and results on an object store, over a socket: sessions, restarts elsewhere, the command line, machines."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from anabranch.cli import main
from anabranch.control.journal import journals_in
from anabranch.errors import LocationError, SinkError
from anabranch.spark import sinks
from anabranch.spark.create import use_java
from anabranch.storage.cache import Cache
from anabranch.storage.location import located
from tests.spark.alone import run_alone
from tests.support.collector import Collector
from tests.support.feeding import Feed, assert_same, finish
from tests.support.fixed_scenarios import many_batches, scenario_of
from tests.support.s3 import Bucket
from tests.support.stream_files import write_batch

WAIT_S = 600.0
"""Longer than a driver of its own takes, on a busy machine."""


def feed_of(bucket: Bucket, folder: Path, scenario: Any, route: str) -> Feed:
    """Files on this machine, the checkpoint on the store, and folders of this machine that may get lost."""
    local = {"cache": Cache(str(folder / "cache")), "spark_checkpoint": str(folder / "spark")}
    return Feed(scenario, str(folder), route, checkpoint=bucket.uri("checkpoint"), settings=local)


def elsewhere(folder: Path) -> None:
    """Goes over to another machine: what is local there is empty."""
    for name in ("cache", "spark"):
        shutil.rmtree(folder / name, ignore_errors=True)


def test_a_run_goes_on_elsewhere(spark: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    """Checkpoint and results are on the store alone: another machine goes on with them. The sink of a second query fails, so
    that a batch is committed and not delivered: that machine delivers it from the files that tasks staged."""
    scenario = many_batches(4)
    feed, out = feed_of(bucket, tmp_path, scenario, "mixed"), bucket.uri("out")
    sink = Collector(scenario, {0: "after", 3: "before"})  # batch 2 is the closing step of the first run

    def run() -> None:
        session = feed.session(spark, sinks.parquet(out))
        session.query("called", scenario.script.partition("CREATE QUERY q AS ")[2], sink)
        finish(session.start(availableNow=True))

    for batches in (range(2), range(2, 4)):
        feed.write(batches)
        with pytest.raises(SinkError, match="the sink is broken"):
            run()
        assert os.listdir(tmp_path / "spark") == ["pipeline-0"]
        sink.mend()
        elsewhere(tmp_path)
    run()
    sink.assert_right()
    assert_same(sinks.read(out).to_table().select(scenario.query.output_schema.names), scenario)
    assert not (tmp_path / "checkpoint").exists()
    parts = {path.split("/")[0] for path in bucket.paths("checkpoint")}
    assert parts >= {"epochs", "id", "journal", "pipeline-0", "queries"}
    parts = {path.split("/")[0] for path in bucket.paths("checkpoint/pipeline-0")}
    assert parts >= {"commit", "control", "spark", "state"}
    entries = journals_in(located(bucket.uri("checkpoint")))["q"].entries()
    assert [e.event for e in entries] == ["started", "failed", "resumed", "failed", "resumed", "ended"]


LONG_SCENARIOS = (1, 10, *range(4000, 4030))


def check_scenario(spark: SparkSession, bucket: Bucket, folder: Path, seed: int) -> None:
    """Tables, groups and whatever else a random scenario has, with a restart elsewhere after each batch."""
    scenario = scenario_of(seed)
    feed = feed_of(bucket, folder, scenario, ("mixed", "frames", "files")[seed % 3])
    out = bucket.uri("out")
    for batch in range(len(scenario.batches)):
        feed.write([batch])
        feed.run(spark, sinks.parquet(out), plan=seed + batch)
        elsewhere(folder)
    found = sinks.read(out).to_table()
    assert_same(found.select(scenario.query.output_schema.names) if found.num_columns else found, scenario)


@pytest.mark.long
@pytest.mark.parametrize("seed", LONG_SCENARIOS)
def test_scenarios_long(spark: SparkSession, bucket: Bucket, tmp_path: Path, seed: int) -> None:
    check_scenario(spark, bucket, tmp_path, seed)


def test_a_bucket_that_is_not_there(bucket: Bucket, tmp_path: Path) -> None:
    """It is refused before any Spark is started."""
    feed = Feed(many_batches(1), str(tmp_path), "files", checkpoint=bucket.uri("x").replace(bucket.name, "no-such-bucket"))
    feed.write(range(1))
    session = feed.session(None, sinks.memory())  # type: ignore[arg-type]
    with pytest.raises(LocationError, match=r"s3://no-such-bucket/x cannot be used"):
        session.start(availableNow=True)
    assert session._spark is None


# The command line

SCRIPT = """
CREATE STREAM a (k BIGINT, ts TIMESTAMP) TIME ts FROM '{folder}/a/*.parquet';
CREATE STREAM b (k BIGINT, name STRING, ts TIMESTAMP) TIME ts FROM '{folder}/b/*.parquet';
CREATE QUERY pairs PLAN '(b a)' AS
SELECT a.k, b.name FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS] WHERE a.k = b.k;
"""


def test_the_command_line(
    spark: SparkSession, bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is local, Spark's log and the cache, is below a temporary folder, and lost between two runs."""
    script = tmp_path / "queries.sql"
    script.write_text(SCRIPT.format(folder=tmp_path))
    command = ["run", str(script), "--once", "--master", "local[2]"]
    command += ["--checkpoint", bucket.uri("state"), "--output", bucket.uri("out")]
    for number in range(2):
        write_batch(tmp_path, number)
        (tmp_path / "temporary").mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
        assert main(command) == 0
        told = capsys.readouterr()
        assert "secret" not in told.out + told.err
        assert os.listdir(tmp_path / "temporary")
        shutil.rmtree(tmp_path / "temporary")
    found = sinks.read(bucket.uri("out/pairs")).to_table()
    pairs = sorted(zip(found["k"].to_pylist(), found["name"].to_pylist(), strict=True))
    assert pairs == [(0, "n0"), (1, "n1"), (1, "n1"), (1, "n1"), (1, "n1"), (2, "n2")]
    assert main(["journal", "--checkpoint", bucket.uri("state"), "--json"]) == 0
    events = [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()]
    assert events == ["started", "ended", "resumed", "ended"]
    assert main(["run", str(script), "--checkpoint", "s4://x/y"]) == 65
    refused = capsys.readouterr().err
    assert "s4://x/y: there is no filesystem for s4" in refused
    assert "Traceback" not in refused
    assert "starting Spark" not in refused, "refused before anything is started"


# Machines that share no disk

PRIVATE = 'mount --make-rprivate / && mount -t tmpfs none "$0" && exec "$@"'
"""Has a process see an empty folder of its own in the place of one."""


def can_unshare() -> bool:
    command = ["unshare", "--mount", "sh", "-c", PRIVATE, "/mnt", "true"]
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


@contextlib.contextmanager
def two_machines(folder: Path, private: Path) -> Iterator[str]:
    """A master and two workers with one core each; what is in the private folder of one, none of the others sees."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    use_java()
    spark_class = os.path.join(pyspark.__path__[0], "bin", "spark-class")
    url, deploy = f"spark://127.0.0.1:{port}", "org.apache.spark.deploy"
    master = [spark_class, f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    worker = [
        "unshare", "--mount", "sh", "-c", PRIVATE, str(private), spark_class, f"{deploy}.worker.Worker",
        "--host", "127.0.0.1", "--cores", "1", "--memory", "1500m", "--webui-port", "0",
        "--work-dir", str(private / "work"), url,
    ]  # fmt: skip
    environment = {**os.environ, "SPARK_LOCAL_DIRS": str(private / "spark"), "TMPDIR": str(private)}
    started = []
    try:
        for place, command in enumerate([master, worker, worker]):
            log = open(folder / f"{place}.log", "w")  # noqa: SIM115
            env = os.environ if place == 0 else environment
            started.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=env))
        yield url
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.spark
@pytest.mark.skipif(not can_unshare(), reason="mount namespaces need root")
def test_machines_that_share_no_disk(bucket: Bucket, tmp_path: Path) -> None:
    private, data = tmp_path / "private", tmp_path / "data"
    private.mkdir()
    data.mkdir()
    with two_machines(tmp_path, private) as master:
        places = [str(data), master, str(private), bucket.uri("checkpoint"), bucket.uri("out")]
        said = run_alone("machines", *places, timeout_s=2 * WAIT_S)
    assert "machines: 3" in said, said
    assert "NotVisibleError" in said, said
    assert "backup" not in said, said
    assert f"does not see {private}/checkpoint" in said, said
    assert f"does not see {private}/out" in said, said
    assert said.count("batches before: 0") == 2, said
    assert ": right" in said, said
