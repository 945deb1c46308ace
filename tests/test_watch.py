"""A run as it is watched: what is told when, with a run that is played."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from rich.console import Console

from anabranch.cli import watch as watching
from anabranch.cli.watch import As, _Waits, command_again, watch
from anabranch.control.progress import Progress, Waiting


def step(batch: int) -> Progress:
    wall_s = {"tasks": 0.5}
    return Progress(batch, batch, "(a b)", None, {"a": 5}, {}, {}, 3, 1_000_000, 7, 100, wall_s=wall_s, at_s=float(batch))


@dataclass
class Played:
    """A run of some batches; one more is there at each look."""

    batches: int = 3
    waiting_files: dict[str, dict[str, Waiting]] = field(default_factory=dict)
    failing: dict[str, Exception] = field(default_factory=dict)
    undelivered: dict[str, int] = field(default_factory=dict)
    waits_for: dict[str, str] = field(default_factory=dict)
    failures: dict[str, Any] = field(default_factory=dict)
    queries: dict[str, Any] = field(default_factory=dict)
    is_stopped: bool = False
    looks: int = 0

    @property
    def progress(self) -> dict[str, list[Progress]]:
        return {"q": [step(n) for n in range(self.looks)]}

    def await_termination(self, timeout_s: float) -> bool:
        self.looks += 1
        return self.looks >= self.batches

    def stop(self) -> None:
        self.is_stopped = True


def watched(run: Played, show: As) -> None:
    assert watch(lambda: run, show, "anabranch run q.sql") is run  # type: ignore[arg-type,return-value,comparison-overlap]


def test_a_line_for_each_batch(capsys: pytest.CaptureFixture[str]) -> None:
    watched(Played(), As.LINES)
    told = capsys.readouterr()
    assert [line.split()[:4] for line in told.err.splitlines()] == [
        ["query=q", f"batch={n}", "rows=5", "results=3"] for n in range(3)
    ]
    assert not told.out


def test_an_object_for_each_batch(capsys: pytest.CaptureFixture[str]) -> None:
    watched(Played(), As.JSON)
    told = capsys.readouterr()
    assert [(o["query"], o["batch"]) for o in map(json.loads, told.out.splitlines())] == [("q", 0), ("q", 1), ("q", 2)]
    assert not told.err


@pytest.mark.parametrize("width", [60, 200])
def test_blocks(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    made = Console(file=file, width=width, force_terminal=True, color_system=None)
    monkeypatch.setattr(watching, "Console", lambda **given: made)
    watched(Played(failing={"q": OSError("the disk is gone")}), As.BLOCKS)
    assert "batch 2" in file.getvalue()
    assert "\x1b[" in file.getvalue(), "rewritten in place"


def test_an_interruption_says_how_to_go_on() -> None:
    class Interrupted(Played):
        def await_termination(self, timeout_s: float) -> bool:
            super().await_termination(timeout_s)
            raise KeyboardInterrupt(watching._stopped(self, "anabranch run q.sql"))  # type: ignore[arg-type]

    run = Interrupted()
    with pytest.raises(KeyboardInterrupt, match="stopped after batch 0; what was committed stays") as told:
        watched(run, As.LINES)
    assert str(told.value).endswith("Go on with:\n  anabranch run q.sql")
    assert run.is_stopped


@pytest.mark.parametrize(
    ("given", "again"),
    [
        (["run", "a b.sql", "--once"], "anabranch run 'a b.sql' --once"),
        (["run", "q.sql", "--fresh", "old", "--fresh=older", "--slots", "2"], "anabranch run q.sql --slots 2"),
        (["--debug", "run", "--fresh", "q", "q.sql"], "anabranch --debug run q.sql"),
    ],
)
def test_the_command_that_goes_on(given: list[str], again: str) -> None:
    assert command_again(given) == again


def test_what_is_waited_for_is_told_when_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(watching.time, "monotonic", lambda: now[0])
    run = Played(undelivered={"q": 2, "r": 0}, waiting_files={"q": {"a": Waiting(1, ["x.csv"])}})
    waits = _Waits(run)  # type: ignore[arg-type]
    assert waits.long() == {}
    now[0] += 3
    assert waits.long() == {"q": ["its sink takes long"]}, "files that the last run named may be complete by now"
    run.looks = 1
    assert waits.long() == {"q": ["a: 1 file waits to be complete: x.csv", "its sink takes long"]}
    run.failing, run.waiting_files = {"q": OSError("gone\nat length")}, {}
    assert waits.long() == {}, "it fails for the first time"
    now[0] += 3
    assert waits.long() == {"q": ["its sink fails, and is tried again: OSError: gone"]}
    run.waits_for = {"r": "the database shop says: no"}
    assert "r" not in waits.long()
    now[0] += 3
    assert waits.long()["r"] == ["a database is gone, and the batch is tried again: the database shop says: no"]
    run.waits_for = {}
    run.failing, run.undelivered = {}, {}
    assert waits.long() == {}


def test_waits_are_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    run = Played(waiting_files={"q": {"a": Waiting(1, ["x.csv"])}})
    watched(run, As.LINES)
    waits = [line for line in capsys.readouterr().err.splitlines() if "waits=" in line]
    assert waits == ['query=q waits="a: 1 file waits to be complete: x.csv"'], "at the end in any case"
