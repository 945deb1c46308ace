"""The command line: what it prints where, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anabranch.cli import main
from anabranch.control.journal import Journal
from anabranch.control.lease import Holder
from anabranch.control.ledger import commits_in
from anabranch.control.records import Commit, ExecutionRecord, Layout, QueryCommit
from anabranch.storage.filesystem import LocalFilesystem
from tests.support.stream_files import write_batch

ROOT = Path(__file__).parents[1]
WAIT_S = 300.0

on_spark = pytest.mark.usefixtures("spark")

SCRIPT = """
CREATE STREAM a (k BIGINT, ts TIMESTAMP) TIME ts FROM '{folder}/a/*.parquet';
CREATE STREAM b (k BIGINT, name STRING, ts TIMESTAMP) TIME ts FROM '{folder}/b/*.parquet';
CREATE QUERY pairs PLAN '(b a)' AS
SELECT a.k, b.name FROM a [RANGE 5 SECONDS], b [RANGE 5 SECONDS] WHERE a.k = b.k;
"""
SECOND = "CREATE QUERY same AS SELECT x.k FROM a [NOW] AS x, a [NOW] AS y WHERE x.k = y.k;"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    write_batch(tmp_path, 0)
    path = tmp_path / "queries.sql"
    path.write_text(SCRIPT.format(folder=tmp_path))
    return path


# explain


def test_explain(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(script.read_text() + SECOND)
    assert main(["explain", str(script)]) == 0
    told = capsys.readouterr()
    assert "pairs" in told.out
    assert "same" in told.out
    assert not told.err


def test_explain_for_programs(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(script.read_text() + SECOND)
    assert main(["explain", "--json", str(script)]) == 0
    plans = json.loads(capsys.readouterr().out)
    assert len(plans) == 2
    assert "(b a)" in json.dumps(plans[0])


NO_SPARK = """
import sys
from anabranch.cli import main

class NoSpark:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] in ("pyspark", "py4j"):
            raise ImportError(f"{name} is not to be loaded")

sys.meta_path.insert(0, NoSpark())
sys.exit(main(["--debug", *sys.argv[1:]]))
"""


@pytest.mark.parametrize("options", [[], ["--json", "--slots", "3"], ["--draw", "plan.svg"]])
def test_explain_needs_no_spark(script: Path, options: list[str]) -> None:
    script.write_text(script.read_text() + SECOND)
    arguments = [sys.executable, "-c", NO_SPARK, "explain", str(script), *options]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(arguments, cwd=script.parent, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "spread" in done.stdout


def test_explain_says_whose_slots_it_takes(
    script: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(script.parent)
    assert main(["explain", str(script)]) == 0
    assert "(this machine's cores)" in capsys.readouterr().out
    assert main(["explain", str(script), "--slots", "3"]) == 0
    assert "over 3 slots (as asked)" in capsys.readouterr().out
    layout = Layout(("a.k = b.k",), (5,), tuple(range(5)))
    for checkpoint, arguments in (("checkpoint", []), ("other", ["--checkpoint", "other"])):
        folder = LocalFilesystem(str(script.parent / checkpoint / "pipeline-0"))
        own = QueryCommit("", "", 0, ExecutionRecord("(a b)"), layout)
        commits_in(folder, 1).write(0, Commit(0, 0, {"pairs": own}))
        assert main(["explain", str(script), *arguments]) == 0
        assert "over 5 slots (as the checkpoint has)" in capsys.readouterr().out
    assert main(["explain", str(script), "--slots", "0"]) == 2
    assert_told(capsys.readouterr().err, "slots is a number of tasks, 1 or more: not 0")


def test_explain_tells_costs_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, drawn = tmp_path / "q.sql", tmp_path / "plan.svg"
    streams = "".join(f"CREATE STREAM {s} (k BIGINT, ts TIMESTAMP) TIME ts;" for s in "abc")
    where = "WHERE a.k = b.k AND b.k = c.k WINDOW 5 SECONDS"
    file.write_text(f"{streams} CREATE QUERY q AS SELECT a.k FROM a, b, c {where}")
    arguments = ["--rate", "a=5000", "--distinct", "a.k=100000", "--cpu", "2", "--memory", "1GiB", "--draw", str(drawn)]
    assert main(["explain", str(file), *arguments]) == 0
    told = capsys.readouterr().out
    assert "cores of 2" in told
    assert "5,000" in told
    assert drawn.read_text().startswith("<svg")
    assert main(["explain", str(file), "--cpu", "0", "--strict"]) == 2
    assert_told(capsys.readouterr().err, "query q: no plan within the budget", "CPU")
    assert main(["explain", str(file), "--rate", "a=fast"]) == 2
    assert_told(capsys.readouterr().err, "--rate a=fast", "number")
    assert main(["explain", str(file), "--rate", "A=5"]) == 2
    assert_told(capsys.readouterr().err, "--rate A: there is no such stream; there are: a, b, c")
    assert main(["explain", str(file), "--cpu", "-1"]) == 2
    assert_told(capsys.readouterr().err, "a budget cannot be negative")
    assert main(["explain", str(file), "--draw", str(tmp_path / "none" / "plan.svg")]) == 2
    assert_told(capsys.readouterr().err, "cannot write", "No such file")


def test_pinned_plans_are_not_drawn(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(script.read_text() + SECOND)
    assert main(["explain", str(script), "--draw", str(script.parent / "plan.svg")]) == 0
    assert "pairs is not drawn: its plan is pinned" in capsys.readouterr().err
    assert [path.name for path in script.parent.glob("*.svg")] == ["plan-same.svg"]


# The journal


def test_the_journal_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["journal", "--checkpoint", str(tmp_path / "none")]) == 2
    assert_told(capsys.readouterr().err, "there is no checkpoint")
    assert main(["journal", "--checkpoint", str(tmp_path)]) == 2
    assert_told(capsys.readouterr().err, "holds no query's journal")


def test_a_damaged_journal_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = Journal(LocalFilesystem(str(tmp_path)), "pairs")
    for event in ("started", "migrated", "ended"):
        journal.note(0, event, f"{event} once")
    (tmp_path / "journal" / "pairs" / f"{1:020d}-{0:010d}").write_bytes(b"anabranch")
    assert main(["journal", "--checkpoint", str(tmp_path)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[6] for line in shown] == ["started", "damaged", "ended"]
    assert "entry 1 cannot be read" in shown[1]
    assert main(["journal", "--json", "--checkpoint", str(tmp_path)]) == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(e["event"], e["details"]) for e in entries[1:2]] == [("damaged", {"number": 1})]


# Errors before anything runs


def assert_told(told: str, *parts: str) -> None:
    """A few lines, no stack trace."""
    assert told.startswith("anabranch: ")
    assert all(part in told for part in parts), told
    assert_no_trace(told)


def assert_no_trace(told: str) -> None:
    for trace in ("Traceback", 'File "', "\tat ", "Py4J", "StackOverflow"):
        assert trace not in told, told[:3000]


@pytest.mark.parametrize("command", ["explain", "run"])
def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main([command, str(tmp_path / "none.sql")]) == 2
    assert_told(capsys.readouterr().err, "cannot read", "none.sql", "No such file")
    assert main([command, str(tmp_path)]) == 2
    assert_told(capsys.readouterr().err, "cannot read")
    (tmp_path / "binary.sql").write_bytes(b"\xff\xfe\x00")
    assert main([command, str(tmp_path / "binary.sql")]) == 2
    assert_told(capsys.readouterr().err, "is not a text file in UTF-8")


@pytest.mark.parametrize("command", ["explain", "run"])
def test_wrong_sql_is_shown_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    path = tmp_path / "wrong.sql"
    path.write_text("CREATE STREAM a (k BIGINT, ts TIMESTAMP) TIME ts;\nSELECT a.q FROM a [NOW];")
    assert main([command, str(path)]) == 2
    assert_told(capsys.readouterr().err, "line 2, column", "SELECT a.q FROM a [NOW]", "^")


def test_wrong_plans_are_told(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(script.read_text().replace("'(b a)'", "'(b c)'"))
    assert main(["explain", str(script)]) == 2
    assert_told(capsys.readouterr().err, "c")


def test_debug_shows_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--debug", "explain", str(tmp_path / "none.sql")]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0.parquet", "=0.parquet", "a="])
def test_files_to_skip_are_named_with_their_stream(
    script: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    assert main(["run", "--skip", text, str(script)]) == 2
    assert_told(capsys.readouterr().err, f"--skip {text}: write it as the name of a stream, = and the path of a file")


@pytest.mark.parametrize("arguments", [[], ["dance"], ["run"], ["run", "x.sql", "--slots", "many"]])
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: anabranch" in capsys.readouterr().err


# run


def run_once(script: Path, *options: str) -> int:
    checkpoint = str(script.parent / "checkpoint")
    return main(["run", "--once", "--master", "local[2]", "--checkpoint", checkpoint, *options, str(script)])


@on_spark
def test_run_once(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is there is processed, once, however often it is run."""
    out = script.parent / "out"
    assert run_once(script, "--output", str(out)) == 0
    told = capsys.readouterr().err
    assert "preparing kernels" in told
    assert "pairs: batch 0, 4 rows" in told
    assert "2 results" in told
    write_batch(script.parent, 1)
    for _ in range(2):
        assert run_once(script, "--output", str(out), "--files-per-batch", "1") == 0
    pairs = pq.read_table(out / "pairs").select(["k", "name"]).to_pylist()
    assert sorted((p["k"], p["name"]) for p in pairs) == [(0, "n0"), *[(1, "n1")] * 4, (2, "n2")]


@on_spark
def test_results_are_printed_without_output(script: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_once(script) == 0
    assert "|0  |n0  |" in capfd.readouterr().out


@on_spark
def test_a_busy_checkpoint_is_told(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    holder = Holder(LocalFilesystem(str(script.parent / "checkpoint")))
    holder.acquire()
    try:
        assert run_once(script) == 2
    finally:
        holder.release()
    told = capsys.readouterr().err
    assert_told(told[told.index("anabranch: ") :], f"in use by process {os.getpid()}")


@on_spark
def test_bad_rows_while_running(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error comes from a worker, through Spark: it is told like any other."""
    path = script.parent / "a" / "1.parquet"
    pq.write_table(pa.table({"other": [1]}), path)
    os.utime(path, (1001, 1001))
    assert run_once(script, "--files-per-batch", "1", "--output", str(script.parent / "out")) == 2
    told = capsys.readouterr().err
    assert_told(told[told.index("anabranch: ") :], "a/1.parquet", "no column k")


@on_spark
def test_files_that_are_not_complete_or_skipped(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, torn = script.parent / "out", script.parent / "a" / "1.parquet"
    write_batch(script.parent, 1)
    whole = torn.read_bytes()
    torn.write_bytes(whole[:-1])
    os.utime(torn, (1001, 1001))
    assert run_once(script, "--output", str(out), "--skip", "b=0.parquet") == 0
    told = capsys.readouterr().err
    assert "1 files wait" in told
    assert f"pairs: a: 1 file waits to be complete: {torn}" in told
    torn.write_bytes(whole)
    os.utime(torn, (1001, 1001))
    assert run_once(script, "--output", str(out)) == 0
    assert "wait" not in capsys.readouterr().err
    pairs = pq.read_table(out / "pairs").select(["k", "name"]).to_pylist()
    assert sorted((p["k"], p["name"]) for p in pairs) == [(0, "n0"), *[(1, "n1")] * 4, (2, "n2")]
    assert run_once(script, "--skip", "c=0.parquet") == 2
    assert "files of c cannot be skipped: the script creates no such stream; it creates a, b" in capsys.readouterr().err


@on_spark
def test_no_files(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(script.read_text().replace("/b/", "/nowhere/"))
    assert run_once(script) == 2
    told = capsys.readouterr().err
    assert_told(told[told.index("anabranch: ") :], "nowhere")


@on_spark
def test_interrupted(script: Path) -> None:
    """Ctrl-C in the middle of a batch: a word, no trace, and nothing is lost."""
    script.write_text(script.read_text() + SECOND)
    folder = script.parent
    for number in range(1, 40):
        write_batch(folder, number)
    out = folder / "out"
    options = ("--output", str(out), "--files-per-batch", "1")
    told = interrupted_run(script, lambda told: (out / "pairs" / "batch=2").exists(), *options)
    assert "batch 1," in told
    assert run_once(script, "--output", str(out)) == 0
    assert len(pq.read_table(out / "same")) == 80


@on_spark
def test_interrupted_at_start(script: Path) -> None:
    assert "batch" not in interrupted_run(script, lambda told: "Spark log level" in told)


def interrupted_run(script: Path, is_time: Callable[[str], bool], *options: str) -> str:
    """Runs a script, interrupts it when it is time, and returns what it has told."""
    command = [sys.executable, "-m", "anabranch.cli", "run", "--master", "local[2]", *options]
    command += ["--checkpoint", str(script.parent / "checkpoint"), str(script)]
    path = script.parent / "stderr"
    with open(path, "wb") as errors:
        process = subprocess.Popen(command, cwd=ROOT, stdout=errors, stderr=errors)
        try:
            deadline = time.monotonic() + WAIT_S
            while not is_time(path.read_text()) and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            assert is_time(path.read_text()), "the run has ended, or hangs"
            process.send_signal(signal.SIGINT)
            assert process.wait(WAIT_S) == 130
        finally:
            process.kill()
            process.wait()
    told = path.read_text()
    assert told.rstrip().endswith("stopped"), told[-2000:]
    assert_no_trace(told)
    return told


# demo


@on_spark
def test_demo(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--seconds", "3", "--rate", "60"]) == 0
    told = capsys.readouterr()
    assert "replication" in told.out
    assert "what was decided:" in told.out
    assert "the last results:" in told.out
    assert "fulfilled: batch 2" in told.err
    results, in_parquet = (
        int(told.out.split(word)[0].split()[-1].replace(",", "")) for word in (" results, ", " of them")
    )
    assert results == in_parquet > 0
