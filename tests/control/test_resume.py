"""What a trigger of Spark's means to a checkpoint."""

from __future__ import annotations

import pytest

from anabranch.control.ledger import commits_in, controls_in
from anabranch.control.records import Commit, Control
from anabranch.control.resume import Meaning, Standing, standing_of
from anabranch.errors import StateError
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support.faulty import FaultyFilesystem


class Checkpoint:
    """Records of a checkpoint, each batch written as drivers do."""

    def __init__(self) -> None:
        self.disk = FaultyFilesystem(MemoryFilesystem())
        self.commits, self.controls = commits_in(self.disk, 1), controls_in(self.disk, 1)

    def begun(self, batch: int, trigger: int) -> Checkpoint:
        self.controls.write(batch, Control(batch, trigger, {}, f"token {batch}"))
        return self

    def committed(self, batch: int, trigger: int) -> Checkpoint:
        self.begun(batch, trigger)
        self.commits.write(batch, Commit(batch, trigger, {}, token=f"token {batch}"))
        return self

    def torn(self, batch: int) -> Checkpoint:
        self.disk.corrupt(self.commits.path(batch))
        return self

    @property
    def standing(self) -> Standing:
        return standing_of(self.commits, self.controls)


def refused(standing: Standing, trigger: int, match: str = "parts do not belong together") -> None:
    with pytest.raises(StateError, match=match):
        standing.meaning(trigger)


def test_an_empty_checkpoint() -> None:
    standing = Checkpoint().standing
    assert standing == Standing()
    assert standing.meaning(0) is Meaning.RUN
    assert not standing.is_cut_short
    refused(standing, 1, "Spark brings trigger 1, but there is no whole commit")


def test_the_next_trigger_runs_and_the_same_is_delivered() -> None:
    standing = Checkpoint().committed(0, 0).committed(1, 1).standing
    assert standing.meaning(1) is Meaning.DONE
    assert standing.meaning(2) is Meaning.RUN
    for trigger in (0, 3):
        refused(standing, trigger, f"Spark brings trigger {trigger}, but the newest whole commit is that of batch 1")


def test_a_closing_step_has_the_trigger_before_it() -> None:
    standing = Checkpoint().committed(0, 0).committed(1, 0).standing
    assert standing.meaning(0) is Meaning.DONE
    assert standing.meaning(1) is Meaning.RUN


def test_a_batch_that_was_begun_runs_from_its_control_record() -> None:
    standing = Checkpoint().committed(0, 0).begun(1, 1).standing
    assert standing.begun is not None
    assert standing.begun.token == "token 1"
    assert standing.meaning(1) is Meaning.RUN
    assert not standing.is_cut_short


def test_a_first_batch_that_was_begun() -> None:
    standing = Checkpoint().begun(0, 0).standing
    assert standing.begun is not None
    assert not standing.is_cut_short
    assert standing.meaning(0) is Meaning.RUN


def test_a_closing_step_cut_short() -> None:
    standing = Checkpoint().committed(0, 0).begun(1, 0).standing
    assert standing.is_cut_short


def test_a_torn_newest_commit_counts_as_none() -> None:
    standing = Checkpoint().committed(0, 0).committed(1, 1).torn(1).standing
    assert standing.batch == 0
    assert standing.begun is not None
    assert standing.meaning(1) is Meaning.RUN
    refused(standing, 2, r"commit/0+1-0+1 torn or changed")


def test_a_torn_closing_step_runs_again() -> None:
    standing = Checkpoint().committed(0, 0).committed(1, 0).torn(1).standing
    assert standing.is_cut_short


def test_a_torn_first_commit() -> None:
    standing = Checkpoint().committed(0, 0).torn(0).standing
    assert standing.commit is None
    assert standing.meaning(0) is Meaning.RUN
    refused(standing, 1)


def test_commits_that_are_gone() -> None:
    checkpoint = Checkpoint().committed(0, 0).committed(1, 1)
    for batch in range(2):
        checkpoint.disk.delete(checkpoint.commits.path(batch))
    with pytest.raises(StateError, match=r"batch 1 was begun \(control/0+1-0+1\), but there is no whole commit"):
        _ = checkpoint.standing
    checkpoint.controls.prune(2)
    refused(checkpoint.standing, 2, "there is no whole commit")


def test_a_control_record_of_another_trigger() -> None:
    with pytest.raises(StateError, match="batch 1 was begun for trigger 5"):
        _ = Checkpoint().committed(0, 0).begun(1, 5).standing


def test_a_torn_control_record_was_never_acted_upon() -> None:
    checkpoint = Checkpoint().committed(0, 0).begun(1, 1)
    checkpoint.disk.corrupt(checkpoint.controls.path(1))
    assert checkpoint.standing.begun is None
