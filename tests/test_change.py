"""`anabranch add`, `alter` and `drop` without a run: what they ask, and what they say of the answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from time import sleep

import pytest

from anabranch.cli import main
from anabranch.control.commands import Answer, Command, answer, given
from anabranch.control.lease import Holder
from anabranch.storage.filesystem import LocalFilesystem


class Answering:
    """Has a checkpoint, and answers every command in the same way."""

    def __init__(self, folder: Path, found: Answer | None) -> None:
        self.checkpoint, self.asked, self.found = LocalFilesystem(str(folder)), list[Command](), found
        (folder / "pipeline-0").mkdir(parents=True)
        self.holder, self.over = Holder(self.checkpoint), threading.Event()
        self.holder.acquire()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        while not self.over.is_set():
            for name, command in given(self.checkpoint) if self.found is not None else ():
                self.asked.append(command)
                assert self.found is not None
                answer(self.checkpoint, name, self.found)
            sleep(0.01)

    def stop(self) -> None:
        self.over.set()
        self.thread.join()
        self.holder.release()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "c"


@pytest.fixture
def answering(folder: Path) -> Iterator[Answering]:
    made = Answering(folder, Answer(True, "q comes with the next batch"))
    yield made
    made.stop()


def test_what_is_asked(
    answering: Answering, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder for results is told as this process sees it, and SQL may stand in a file."""
    monkeypatch.chdir(folder.parent)
    (folder.parent / "q.sql").write_text("SELECT 1")
    options = ["--plan", "(a b)", "--history", "--output", "out", "--checkpoint", str(folder)]
    assert main(["add", "q", "q.sql", *options]) == 0
    assert main(["alter", "q", "SELECT 2", "--checkpoint", str(folder)]) == 0
    assert main(["drop", "q", "--checkpoint", str(folder)]) == 0
    assert main(["add", "q", "SELECT 1", "--output", "s3://bucket/out", "--checkpoint", str(folder)]) == 0
    assert answering.asked == [
        Command("add", "q", "SELECT 1", str(folder.parent / "out"), "(a b)", True), Command("alter", "q", "SELECT 2"),
        Command("drop", "q"), Command("add", "q", "SELECT 1", "s3://bucket/out"),
    ]  # fmt: skip
    assert capsys.readouterr().out == "q comes with the next batch\n" * 4


def test_what_is_refused(answering: Answering, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answering.found = Answer(False, "there is no query q; there are: p")
    assert main(["drop", "q", "--checkpoint", str(folder)]) == 65
    assert capsys.readouterr().err == "anabranch: there is no query q; there are: p\n"
    assert main(["add", "q", "gone.sql", "--checkpoint", str(folder)]) == 65
    assert "cannot read gone.sql" in capsys.readouterr().err


def test_a_run_that_does_not_answer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    silent = Answering(folder, None)
    try:
        assert main(["drop", "q", "--checkpoint", str(folder), "--wait", "200ms"]) == 1
    finally:
        silent.stop()
    assert "the run has not answered within 200ms; the command waits" in capsys.readouterr().err
    assert [command.query for _, command in given(silent.checkpoint)] == ["q"]


def test_without_a_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only a query to be dropped can wait for the next one."""
    assert main(["drop", "q", "--checkpoint", str(folder)]) == 65
    assert "nothing has run in the checkpoint" in capsys.readouterr().err
    (folder / "pipeline-0").mkdir(parents=True)
    for command in (["add", "q", "SELECT 1"], ["alter", "q", "SELECT 1"]):
        assert main([*command, "--checkpoint", str(folder)]) == 65
        assert "no run has the checkpoint" in capsys.readouterr().err
    assert not given(LocalFilesystem(str(folder)))
    assert main(["drop", "q", "--checkpoint", str(folder)]) == 0
    assert capsys.readouterr().out.endswith("q is dropped when the next one starts\n")
    assert [command for _, command in given(LocalFilesystem(str(folder)))] == [Command("drop", "q")]
