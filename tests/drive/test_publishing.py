"""A parquet sink on this machine's disk: whatever moment its driver dies at, each batch is published whole, and once."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from anabranch.control.ledger import Ledger, commits_in, controls_in
from anabranch.errors import CheckpointBusyError
from anabranch.spark.published import MARKER, UnsupportedSinkError
from anabranch.spark.sinks import ParquetSink
from anabranch.spark.stage import staged_path
from tests.support.faulty import Crash
from tests.support.fixed_scenarios import groups_that_wait
from tests.support.simulation import Files, Simulation

PLACES = ("commit torn", "commit after", "deliver before", "publish halfway", "publish gathered", "deliver after")
BATCH, CLOSING = 1, 3
"""The batch of a trigger, and the closing step."""


def simulation(folder: Path) -> Simulation:
    scenario = groups_that_wait()
    return Simulation([scenario.query], scenario.arrow_batches, {}, scenario.plans, folder=str(folder))


@dataclass
class Scissors:
    """Kills the driver at one place of one batch, once."""

    place: str
    batch: int
    is_used: bool = False

    def cut(self, place: str, batch: int) -> None:
        if (place, batch) == (self.place, self.batch) and not self.is_used:
            self.is_used = True
            raise Crash(f"{place} of batch {batch}")


@contextlib.contextmanager
def cutting(scissors: Scissors) -> Iterator[None]:
    """Has the driver die at a place."""
    write, publish, rename = Ledger.write, ParquetSink.publish, os.rename

    def cut_write(ledger: Any, number: int, record: Any) -> None:
        write(ledger, number, record)
        if ledger._folder == "commit":
            try:
                scissors.cut("commit torn", number)
            except Crash:
                whole = ledger._filesystem.get(ledger.path(number)).to_pybytes()
                ledger._filesystem.put(ledger.path(number), [whole[: len(whole) // 2]])
                raise
            scissors.cut("commit after", number)

    def cut_publish(sink: Any, files: Any, number: int, token: str) -> None:
        scissors.cut("deliver before", number)

        def cut_rename(old: Any, new: Any) -> None:
            is_last = os.path.basename(str(new)).startswith("batch=")
            if is_last:
                scissors.cut("publish gathered", number)
            rename(old, new)
            if not is_last:
                scissors.cut("publish halfway", number)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(os, "rename", cut_rename)
            publish(sink, files, number, token)
        scissors.cut("deliver after", number)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Ledger, "write", cut_write)
        patched.setattr(ParquetSink, "publish", cut_publish)
        yield


@pytest.mark.parametrize("batch", [BATCH, CLOSING])
@pytest.mark.parametrize("place", PLACES)
def test_every_batch_is_published_once(tmp_path: Path, place: str, batch: int) -> None:
    case, scissors = simulation(tmp_path), Scissors(place, batch)
    with cutting(scissors):
        case.check(f"{place} of batch {batch}")
    assert scissors.is_used
    assert case.lives == 2


def test_a_published_folder_has_its_token(tmp_path: Path) -> None:
    case = simulation(tmp_path)
    case.live(triggers=3)
    commits, controls = commits_in(case.checkpoint), controls_in(case.checkpoint)  # type: ignore[arg-type]
    folders = sorted((tmp_path / "q").glob("batch=*"))
    assert [folder.name for folder in folders] == ["batch=1", "batch=2"], "groups of the first batch are final in the next"
    for folder in folders:
        number, marker = int(folder.name.removeprefix("batch=")), json.loads((folder / MARKER).read_text())
        assert sorted(marker["files"]) == sorted(path.name for path in folder.glob("*.parquet"))
        assert marker["token"] == commits.read(number).token == controls.read(number).token


def test_results_of_another_token_are_refused(tmp_path: Path) -> None:
    """A folder of the batch's number is there, and holds something else."""
    case = simulation(tmp_path)
    case.live(triggers=3)
    files = case.outlets["q"]
    assert isinstance(files, Files)
    before = case.found()
    with pytest.raises(UnsupportedSinkError, match="batch=1 holds other results than those of this batch"):
        files.sink.publish([staged_path("other")], BATCH, "another token")
    assert case.found() == before


def test_a_driver_that_lost_its_lease_publishes_nothing(tmp_path: Path) -> None:
    """It sleeps before it commits batch 1; another one comes, runs the batch, and goes on to the end."""
    case, slept, write = simulation(tmp_path), list[bool](), Ledger.write

    def sleepy(ledger: Any, number: int, record: Any) -> None:
        if ledger._folder == "commit" and number == BATCH and not slept:
            slept.append(True)
            case.live()
        write(ledger, number, record)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Ledger, "write", sleepy)
        with pytest.raises(CheckpointBusyError, match="another run has taken the checkpoint over"):
            case.live()
    assert case.found() == case.expected()
    latest = commits_in(case.checkpoint).latest()  # type: ignore[arg-type]
    assert latest is not None
    assert latest[0] == CLOSING
