"""The command line: what it prints where, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import anabranch as ab
from anabranch.cli import COMMANDS, main
from anabranch.cli.paths import check_sources
from anabranch.control.journal import Journal
from anabranch.control.lease import Holder
from anabranch.control.ledger import commits_in
from anabranch.control.records import Commit, ExecutionRecord, Layout, QueryCommit
from anabranch.errors import SourcePathError
from anabranch.spark.published import read
from anabranch.sql import parse_script
from anabranch.storage.filesystem import LocalFilesystem
from tests.support.feeding import wait_until
from tests.support.simulation import Simulation
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


@pytest.mark.few(1)
@pytest.mark.parametrize("options", [[], ["--json", "--slots", "3"], ["--draw", "plan.svg"]])
def test_explain_needs_no_spark(script: Path, options: list[str]) -> None:
    script.write_text(script.read_text() + SECOND)
    arguments = [sys.executable, "-c", NO_SPARK, "explain", str(script), *options]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(arguments, cwd=script.parent, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "spread" in done.stdout if "--json" in options else "Why this plan" in done.stdout


def test_explain_says_whose_slots_it_takes(
    script: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(script.parent)
    assert main(["explain", "--verbose", str(script)]) == 0
    assert "(this machine's cores)" in capsys.readouterr().out
    assert main(["explain", "--verbose", str(script), "--slots", "3"]) == 0
    assert "over 3 slots (as asked)" in capsys.readouterr().out
    layout = Layout(("a.k = b.k",), (5,), tuple(range(5)))
    for checkpoint, arguments in (("checkpoint", []), ("other", ["--checkpoint", "other"])):
        folder = LocalFilesystem(str(script.parent / checkpoint / "pipeline-0"))
        own = QueryCommit("", "", 0, ExecutionRecord("(a b)"), layout)
        commits_in(folder, 1).write(0, Commit(0, 0, {"pairs": own}))
        assert main(["explain", "--verbose", str(script), *arguments]) == 0
        assert "over 5 slots (as the checkpoint has)" in capsys.readouterr().out


def test_explain_tells_costs_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, drawn = tmp_path / "q.sql", tmp_path / "plan.svg"
    streams = "".join(f"CREATE STREAM {s} (k BIGINT, ts TIMESTAMP) TIME ts;" for s in "abc")
    where = "WHERE a.k = b.k AND b.k = c.k WINDOW 5 SECONDS"
    file.write_text(f"{streams} CREATE QUERY q AS SELECT a.k FROM a, b, c {where}")
    arguments = ["--rate", "a=5000", "--distinct", "a.k=100000", "--cpu", "2", "--memory", "1GiB", "--draw", str(drawn)]
    assert main(["explain", str(file), *arguments]) == 0
    told = capsys.readouterr().out
    assert "of 2 cores" in told
    assert "5,000" in told
    assert drawn.read_text().startswith("<svg")
    assert main(["explain", str(file), "--cpu", "1e-9", "--strict"]) == 65
    assert_told(capsys.readouterr().err, "query q: no plan within the budget", "CPU")
    assert main(["explain", str(file), "--rate", "a=fast"]) == 2
    assert_told(capsys.readouterr().err, "--rate a=fast", "number")
    assert main(["explain", str(file), "--rate", "A=5"]) == 65
    assert_told(capsys.readouterr().err, "--rate A: there is no such stream; there are: a, b, c; did you mean a?")
    assert main(["explain", str(file), "--draw", str(tmp_path / "none" / "plan.svg")]) == 65
    assert_told(capsys.readouterr().err, "cannot write", "No such file")


def test_each_plan_is_drawn_to_a_file_of_its_own(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(script.read_text() + SECOND)
    assert main(["explain", str(script), "--draw", str(script.parent / "plan.svg")]) == 0
    assert capsys.readouterr().err.count("drawn to") == 2
    assert sorted(path.name for path in script.parent.glob("*.svg")) == ["plan-pairs.svg", "plan-same.svg"]


# The journal


def test_the_journal_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["journal", "--checkpoint", str(tmp_path / "none")]) == 65
    assert_told(capsys.readouterr().err, "there is no checkpoint")
    assert main(["journal", "--checkpoint", str(tmp_path)]) == 65
    assert_told(capsys.readouterr().err, "holds no query's journal")


def test_a_damaged_journal_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = Journal(LocalFilesystem(str(tmp_path)), "pairs")
    for event in ("started", "migrated", "ended"):
        journal.note(0, event, f"{event} once")
    (tmp_path / "journal" / "pairs" / f"{1:020d}-{0:010d}").write_bytes(b"anabranch")
    assert main(["journal", "--checkpoint", str(tmp_path)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[6] for line in shown] == ["Started:", "Damaged:", "Ended:"]
    assert "entry 1 cannot be read" in shown[1]
    assert main(["journal", "--json", "--checkpoint", str(tmp_path)]) == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(e["event"], e["details"]) for e in entries[1:2]] == [("damaged", {"number": 1})]


def test_the_last_entries_of_a_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = Journal(LocalFilesystem(str(tmp_path)), "pairs")
    journal.note(-1, "started", "", plan="(b a)", names={"a": "orders", "b": "bills"})
    journal.note(3, "migrating", "to (a b): by request", target="(a b)", strategy="gradual")
    journal.note(4, "migrated", "", batches=2, waited_s=0.0)
    journal.note(5, "ended", "all input there was is processed")
    for last, expected in ((1, ["Ended:"]), (3, ["By", "Ended:"]), (0, []), (9, ["Started", "By", "Ended:"])):
        assert main(["journal", "--last", str(last), "--checkpoint", str(tmp_path)]) == 0
        shown = capsys.readouterr().out.splitlines()
        assert [line.split()[6] for line in shown] == expected
        if last == 3:
            assert "Joining orders with bills, from now on." in shown[0], "names come from entries that are not shown"
            assert shown[0].endswith("Went over in batches 3 to 4.")
    assert main(["journal", "--last", "2", "--json", "--checkpoint", str(tmp_path)]) == 0
    entries = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(e["query"], e["event"]) for e in entries] == [("pairs", "migrated"), ("pairs", "ended")]
    assert main(["journal", "--last", "-1", "--checkpoint", str(tmp_path)]) == 2
    assert_told(capsys.readouterr().err, "--last -1: give the number of entries, 0 or more")


def test_a_journal_is_followed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, slept = Journal(LocalFilesystem(str(tmp_path)), "pairs"), [0]
    journal.note(-1, "started", "once")

    def sleep(seconds: float) -> None:
        slept[0] += 1
        if slept[0] == 3:
            raise KeyboardInterrupt
        journal.note(slept[0], "kept", f"look {slept[0]}")

    monkeypatch.setattr("anabranch.cli.journal.time.sleep", sleep)
    assert main(["journal", "--follow", "--checkpoint", str(tmp_path)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[-1] for line in told] == ["Started: once.", "Kept: look 1.", "Kept: look 2."]


# top


def ran_locally(folder: Path) -> None:
    """A checkpoint of a query that ran two batches, by the driver that ships, and whose run has ended."""
    text = """
        CREATE STREAM orders (k BIGINT, ts TIMESTAMP) TIME ts;
        CREATE STREAM bills (k BIGINT, ts TIMESTAMP) TIME ts;
        CREATE QUERY pairs AS SELECT a.k FROM orders [RANGE 1 SECOND] AS a, bills [RANGE 1 SECOND] AS b WHERE a.k = b.k"""
    query, rows = parse_script(text).queries[0].query, []
    for batch in range(2):
        times = pa.array([batch * 1_000_000, None], pa.timestamp("us"))
        rows.append(dict.fromkeys(("orders", "bills"), pa.table({"k": [1, 2], "ts": times})))
    simulation = Simulation([query], rows, {})
    simulation.run()
    memory = simulation.world.inner
    root, prefix = LocalFilesystem(str(folder)), "checkpoint/"
    for path in memory._files:
        if path.startswith(prefix):
            below = path.removeprefix(prefix)
            root.put(below if below.startswith("journal/") else f"pipeline-0/{below}", [memory.get(path)])
    Journal(root, "pairs").note(2, "ended", "all input there was is processed")


def test_top_shows_a_run_of_another_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran_locally(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert main(["top", "--checkpoint", str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for part in ("pairs batch 2", "4 without a time", "in 3 batches", "orders ⋈ bills", "ended: all input there was"):
        assert part in shown, (part, shown)
    assert main(["top", "--json", "--query", "pairs", "--checkpoint", str(tmp_path)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    made = json.loads(line)
    assert (made["query"], made["batch"], made["plan"], made["is_closing"]) == ("pairs", 2, "(a b)", True)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}, "it writes nothing"


def test_top_needs_no_spark(tmp_path: Path) -> None:
    ran_locally(tmp_path)
    arguments = [sys.executable, "-c", NO_SPARK, "top", "--checkpoint", str(tmp_path)]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "pairs" in done.stdout


def test_top_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--checkpoint", str(tmp_path / "none")]) == 65
    assert_told(capsys.readouterr().err, "there is no checkpoint", "name what was given as checkpoint")
    ran_locally(tmp_path)
    assert main(["top", "--query", "pair", "--checkpoint", str(tmp_path)]) == 2
    assert_told(capsys.readouterr().err, "no query pair in", "there are: pairs")
    assert main(["top", "--every", "0", "--checkpoint", str(tmp_path)]) == 2
    assert_told(capsys.readouterr().err, "--every 0: give more than 0 seconds")


# Errors before anything runs


def assert_told(told: str, *parts: str) -> None:
    """A few lines, no stack trace."""
    assert told.startswith("anabranch: ")
    assert all(part in told for part in parts), told
    assert_no_trace(told)


def assert_no_trace(told: str) -> None:
    assert "Picked up" not in told
    for trace in ("Traceback", 'File "', "\tat ", "Py4J", "StackOverflow"):
        assert trace not in told, told[:3000]


@pytest.mark.parametrize("command", ["explain", "run"])
def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main([command, str(tmp_path / "none.sql")]) == 65
    assert_told(capsys.readouterr().err, "cannot read", "none.sql", "No such file")
    assert main([command, str(tmp_path)]) == 65
    assert_told(capsys.readouterr().err, "cannot read")
    (tmp_path / "binary.sql").write_bytes(b"\xff\xfe\x00")
    assert main([command, str(tmp_path / "binary.sql")]) == 65
    assert_told(capsys.readouterr().err, "is not a text file in UTF-8")


@pytest.mark.parametrize("command", ["explain", "run"])
def test_wrong_sql_is_shown_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    path = tmp_path / "wrong.sql"
    path.write_text("CREATE STREAM a (k BIGINT, ts TIMESTAMP) TIME ts;\nSELECT a.q FROM a [NOW];")
    assert main([command, str(path)]) == 65
    assert_told(capsys.readouterr().err, "line 2, column", "SELECT a.q FROM a [NOW]", "^")


def test_wrong_plans_are_told(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(script.read_text().replace("'(b a)'", "'(b c)'"))
    assert main(["explain", str(script)]) == 65
    assert_told(capsys.readouterr().err, "c")


def test_debug_shows_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--debug", "explain", str(tmp_path / "none.sql")]) == 65
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["0.parquet", "=0.parquet", "a="])
def test_files_to_skip_are_named_with_their_stream(
    script: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    assert main(["run", "--skip", text, str(script)]) == 2
    assert_told(capsys.readouterr().err, f"--skip {text}: write it as the name of a stream, = and the path of a file")


@pytest.mark.parametrize("arguments", [["dance"], ["run"], ["run", "x.sql", "--slots", "many"]])
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: anabranch" in capsys.readouterr().err


LIGHT = """
import sys

class Heavy:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] in ("numpy", "pyarrow", "pyspark", "py4j", "numba"):
            raise ImportError(f"{name} is not to be loaded")

sys.meta_path.insert(0, Heavy())
from anabranch.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"], ["run", "--help"], ["demo", "--help"]])
def test_help_is_light(arguments: list[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", LIGHT, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ("usage: anabranch" in done.stdout) != (done.stdout == f"anabranch {ab.__version__}\n")


def test_help_tells_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    told = capsys.readouterr().out
    assert all(f"{code} " in told for code in (0, 1, 2, 65, 130))
    assert all(command.__name__.rpartition(".")[2] in told for command in COMMANDS)


def test_only_what_is_public_is_shown() -> None:
    assert [name for name in dir(ab) if not name.startswith("_")] == sorted(ab.__all__)
    assert dir(ab.sinks) == sorted(ab.sinks.__all__)
    assert all(getattr(ab, name) is not None for name in ab.__all__)
    with pytest.raises(AttributeError, match=r"has no attribute 'Sesion': did you mean Session\?"):
        ab.Sesion  # noqa: B018


def test_files_that_come_later_are_told(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parsed, text = parse_script(script.read_text()), script.read_text()
    assert check_sources(parsed, text) == []
    (script.parent / "a" / "0.parquet").unlink()
    path = f"{script.parent}/a/*.parquet"
    assert check_sources(parsed, text) == [f"a: no file matches {path} yet; files that come later are read"]
    table = f"CREATE TABLE t (k INT)\n FROM '{path}'"
    with pytest.raises(SourcePathError, match="the table t is read when the query starts") as refused:
        check_sources(parse_script(table), table)
    assert (refused.value.line, refused.value.column) == (2, 7)


# run


def run_once(script: Path, *options: str) -> int:
    checkpoint = str(script.parent / "checkpoint")
    return main(["run", "--once", "--master", "local[2]", "--checkpoint", checkpoint, *options, str(script)])


@on_spark
def test_run_once(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is there is processed, once, however often it is run. A file that is not complete waits until it is; one that is
    skipped, until it is not any more."""
    out, torn = script.parent / "out", script.parent / "a" / "1.parquet"
    assert run_once(script, "--output", str(out)) == 0
    told = capsys.readouterr().err
    first = dict(word.split("=", 1) for word in shlex.split(next(line for line in told.splitlines() if "batch=0" in line)))
    wanted = {"query": "pairs", "batch": "0", "rows": "4", "results": "2", "untimed": "0", "plan": "(b a)"}
    assert {key: first[key] for key in wanted} == wanted
    assert "wait" not in told

    for number in (1, 2):
        write_batch(script.parent, number)
    whole = torn.read_bytes()
    torn.write_bytes(whole[:-1])
    os.utime(torn, (1001, 1001))
    assert run_once(script, "--output", str(out), "--skip", "b=2.parquet") == 0
    told = capsys.readouterr().err
    assert "files_waiting=1" in told
    assert f'query=pairs waits="a: 1 file waits to be complete: {torn}"' in told
    assert pairs_in(out) == [(0, "n0"), (1, "n1"), (1, "n1"), (2, "n2")], "those of a/0, a/2, b/0 and b/1"

    torn.write_bytes(whole)
    os.utime(torn, (1001, 1001))  # it is older than what was read, and new nevertheless
    (script.parent / "a" / "0.parquet").unlink()  # files of committed batches may go
    for _ in range(2):
        assert run_once(script, "--output", str(out), "--files-per-batch", "1") == 0
        assert "wait" not in capsys.readouterr().err
        assert pairs_in(out) == [(0, "n0"), *[(1, "n1")] * 4, *[(2, "n2")] * 4, (3, "n3")]


def pairs_in(out: Path) -> list[tuple[int, str]]:
    rows = pq.read_table(out / "pairs").select(["k", "name"]).to_pylist()
    return sorted((row["k"], row["name"]) for row in rows)


@on_spark
def test_a_run_that_fails(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Results are printed if there is no output, and before them, that a window is shorter than the query's condition. The
    error of the next batch comes from a worker, through Spark: it is told like any other."""
    script.write_text(script.read_text().replace("a.k = b.k;", "a.k = b.k AND b.ts < a.ts + INTERVAL 9 SECONDS;"))
    path = script.parent / "a" / "1.parquet"
    pq.write_table(pa.table({"other": [1]}), path)
    os.utime(path, (1001, 1001))
    assert run_once(script, "--files-per-batch", "1") == 65
    shown = capsys.readouterr()
    assert "pairs, batch 0: 2 results\nk  name\n-  ----\n" in shown.out
    assert "anabranch: warning: query pairs: the condition lets rows of b be nearly 9 seconds later" in shown.err
    assert_told(shown.err[shown.err.rindex("anabranch: ") :], "a/1.parquet", "no column k")
    assert_no_trace(shown.err)
    assert main(["journal", "--checkpoint", str(script.parent / "checkpoint")]) == 0
    assert "write a [RANGE 9 SECONDS]" in capsys.readouterr().out


def test_a_busy_checkpoint_is_told(
    script: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is asked of Spark before that is known."""
    monkeypatch.setattr("anabranch.spark.create.create_session", lambda *_, **settings: SimpleNamespace())
    holder = Holder(LocalFilesystem(str(script.parent / "checkpoint")))
    holder.acquire()
    try:
        assert run_once(script) == 1
    finally:
        holder.release()
    told = capsys.readouterr().err
    assert_told(told[told.index("anabranch: ") :], f"in use by process {os.getpid()}")


def test_files_of_no_stream_cannot_be_skipped(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_once(script, "--skip", "c=0.parquet") == 65
    told = "files of c cannot be skipped: the script creates no such stream; it creates a, b"
    assert_told(capsys.readouterr().err, told)


@on_spark
def test_interrupted(script: Path) -> None:
    """Ctrl-C while Spark starts, and in the middle of a batch: a word, no trace, no process stays, nothing is lost."""
    assert "batch" not in interrupted_run(script, lambda told: "starting Spark" in told)
    script.write_text(script.read_text() + SECOND)
    folder = script.parent
    for number in range(1, 40):
        write_batch(folder, number)
    out = folder / "out"
    options = ("--output", str(out), "--files-per-batch", "1")
    told = interrupted_run(script, lambda told: (out / "pairs" / "batch=2").exists(), *options)
    assert "query=pairs batch=1 " in told
    *_, stopped, again = told.rstrip().splitlines()
    assert re.fullmatch("stopped after batch [0-9]+; what was committed stays, and nothing is lost. Go on with:", stopped)
    words = shlex.split(again)
    assert words[:2] == ["anabranch", "run"]
    assert words[-1] == str(script)
    assert "--files-per-batch" in words
    assert run_once(script, "--output", str(out)) == 0
    assert len(pq.read_table(out / "same")) == 80


def interrupted_run(script: Path, is_time: Callable[[str], bool], *options: str) -> str:
    """Runs a script, interrupts it when it is time, and returns what it has told."""
    command = [sys.executable, "-m", "anabranch.cli", "run", "--master", "local[2]", *options]
    command += ["--checkpoint", str(script.parent / "checkpoint"), str(script)]
    path = script.parent / "stderr"
    with open(path, "wb") as errors:
        marked = {**os.environ, "INTERRUPTED": str(path)}
        process = subprocess.Popen(command, cwd=ROOT, stdout=errors, stderr=errors, env=marked)
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
    assert "\nstopped" in told, told[-2000:]
    assert_no_trace(told)
    wait_until(lambda: not any(f"INTERRUPTED={path}".encode() in environment for environment in environments()))
    return told


def environments() -> Iterator[bytes]:
    """Of all processes, on a system that shows them."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            yield path.read_bytes()


# demo


@on_spark
def test_demo(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--seconds", "10", "--rate", "60"]) == 0
    told = capsys.readouterr()
    heads = [line.removeprefix("── ").partition(":")[0] for line in told.out.splitlines() if line.startswith("── ")]
    assert heads == ["The first plan", "It runs", "What was decided", "The last results", "What is left"]
    assert all(len(line) <= 100 for line in told.out.splitlines() if "anabranch-demo-" not in line)
    folder = next(line for line in told.out.splitlines() if line.startswith(tempfile.gettempdir()))
    try:
        check_demo(folder, told.err)
    finally:
        shutil.rmtree(folder)


def check_demo(folder: str, told: str) -> None:
    """No row comes twice, and the files that are left have the results that were counted: those that DuckDB finds."""
    found = {
        name: pa.concat_tables(pq.read_table(path) for path in sorted(Path(folder, name).iterdir()))
        for name in ("orders", "payments", "scans")
    }
    for rows, key in ((found["orders"], ["id"]), (found["payments"], ["order_id", "instalment"]),
                      (found["scans"], ["order_id", "station"])):  # fmt: skip
        assert rows.group_by(key).aggregate([]).num_rows == rows.num_rows > 0
    with duckdb.connect() as database:
        for name, rows in found.items():
            database.register(name, rows)
        (wanted,) = database.execute("""
            SELECT count(*) FROM orders o, payments p, scans s
            WHERE o.id = p.order_id AND o.id = s.order_id AND p.paid < 0.1 * o.amount""").fetchone() or (0,)
    lines = [dict(word.split("=", 1) for word in shlex.split(line)) for line in told.splitlines() if "query=to_stop" in line]
    counted = sum(int(line["results"]) for line in lines)
    assert counted == read(os.path.join(folder, "results", "to_stop")).to_table().num_rows == wanted > 0
