"""What takes too long is ended; what does not, is not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from time import sleep

import pytest

from anabranch.errors import QueryError
from anabranch.place.databases.deadlines import Deadlines
from anabranch.place.databases.duckdb import DuckDb

WAIT_S = 60.0
ENDLESS = "SELECT max(sqrt(i * j)) FROM range(1000000) AS a(i), range(1000000) AS b(j)"


def threads() -> int:
    return sum(thread.name == "anabranch-deadlines" for thread in threading.enumerate())


def test_a_shorter_one_is_not_kept_waiting_by_a_longer_one() -> None:
    deadlines, short, long = Deadlines(), threading.Event(), threading.Event()
    before = threads()
    with deadlines.within(WAIT_S * 10, long.set):
        with deadlines.within(0.001, short.set):
            assert short.wait(WAIT_S)
        with deadlines.within(0.001, short.clear):
            while short.is_set():
                sleep(0.001)
    assert not long.is_set()
    assert threads() == before + 1


def test_what_is_left_in_time_is_not_ended() -> None:
    """The thread has looked after the first one was to be over, since it has ended the second one."""
    deadlines, first, second = Deadlines(), threading.Event(), threading.Event()
    with deadlines.within(0.05, first.set):
        pass
    with deadlines.within(0.1, second.set):
        assert second.wait(WAIT_S)
    assert not first.is_set()


def test_one_that_cannot_be_ended_does_not_keep_others_from_it() -> None:
    deadlines, ended = Deadlines(), threading.Event()

    def fails() -> None:
        raise RuntimeError("it is over")

    with deadlines.within(0.001, fails), deadlines.within(0.002, ended.set):
        assert ended.wait(WAIT_S)
    ended.clear()
    with deadlines.within(0.001, ended.set):
        assert ended.wait(WAIT_S)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not copied here")
def test_a_copy_of_the_process_ends_its_own() -> None:
    deadlines, ended = Deadlines(), threading.Event()
    with deadlines.within(WAIT_S, ended.set):  # the thread is there now, and waits
        copy = os.fork()
        if copy == 0:
            with deadlines.within(0.001, ended.set):
                os._exit(0 if ended.wait(WAIT_S) else 1)
        assert os.waitpid(copy, 0)[1] == 0


def test_a_process_that_has_no_thread_left_for_it_says_so_and_has_one_later(monkeypatch: pytest.MonkeyPatch) -> None:
    deadlines, ended = Deadlines(), threading.Event()

    def fails(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fails)
        with pytest.raises(RuntimeError), deadlines.within(WAIT_S, ended.set):
            pass
    with deadlines.within(0.001, ended.set):
        assert ended.wait(5)


def test_a_statement_that_takes_too_long_is_ended_and_the_next_one_runs() -> None:
    database = DuckDb(timeout_s=0.2)
    with pytest.raises(QueryError, match=r"the statement took longer than .* s"):
        database.run(ENDLESS, {})
    with pytest.raises(QueryError, match=r"the statement took longer than .* s"):
        [*database.pieces(ENDLESS, {}, 1)]
    assert database.run("SELECT 1 AS one", {}).to_pydict() == {"one": [1]}
    database.close()


def test_a_command_that_had_a_statement_run_ends_without_a_word(tmp_path: Path) -> None:
    script = tmp_path / "medians.sql"
    script.write_text("""CREATE STREAM s (k BIGINT, x DOUBLE, ts TIMESTAMP) TIME ts FROM 's/*.parquet';
        SELECT b.m FROM DATABASE duck (SELECT k, median(x) AS m FROM s [RANGE 1 MINUTE] GROUP BY k) b;""")
    ended = subprocess.run([sys.executable, "-m", "anabranch.cli", "explain", str(script)], capture_output=True, check=True)
    assert ended.stderr == b""
