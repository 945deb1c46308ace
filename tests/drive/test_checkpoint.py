"""What a checkpoint goes on with, and what it refuses: records that are damaged or lost, batches that were begun, results
that wait for another sink."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from anabranch.control.ledger import commits_in, controls_in
from anabranch.drive.retain import RELEASE_EVERY
from anabranch.errors import DamagedStateError, SinkError, StateError
from tests.support import oracle
from tests.support.faulty import Crash, Fault
from tests.support.fixed_scenarios import groups_that_wait, many_batches
from tests.support.simulation import Broken, Function, Simulation

BATCH, CLOSING = 1, 3
"""The batch of a trigger, and the closing step."""


def simulation(**settings: Any) -> Simulation:
    scenario = groups_that_wait()
    return Simulation([scenario.query], scenario.arrow_batches, {}, scenario.plans, **{"slots": 2, **settings})


def dying_after(path: str, **settings: Any) -> Simulation:
    """A driver that dies when it has put a file whose path begins like this, the first time."""
    calm = simulation(**settings)
    calm.run()
    ordinal = next(n for n, put in enumerate(calm.world.puts) if put.startswith(f"checkpoint/{path}"))
    case = simulation(faults={ordinal: Fault("crash_after")}, **settings)
    with pytest.raises(Crash):
        case.live()
    return case


def check(case: Simulation) -> None:
    """What has arrived is what should."""
    found, expected = case.found(), case.expected()
    assert not (wrong := oracle.difference(found["q"], expected["q"])), wrong


def commits_of(case: Simulation) -> dict[str, bytes]:
    return {name: case.checkpoint.get(f"commit/{name}").to_pybytes() for name in case.checkpoint.list("commit")}


def flip_newest(case: Simulation) -> str:
    """Changes a bit of the newest commit; its name."""
    name, content = max(commits_of(case).items())
    changed = bytearray(content)
    changed[len(changed) // 2] ^= 1
    case.checkpoint.put(f"commit/{name}", [bytes(changed)])
    return name


def test_a_commit_is_never_superseded() -> None:
    """A batch whose results a function has not got is delivered from its files, and its commit stays as it is."""
    case = dying_after(f"commit/{BATCH:020d}", to_files=False)
    assert BATCH not in case.function.brought
    before = commits_of(case)
    case.live(triggers=2)
    assert before.items() <= commits_of(case).items()
    assert len(case.function.brought[BATCH]) == 1
    case.check()


@pytest.mark.parametrize("to_files", [True, False])
def test_a_flipped_bit_in_the_newest_commit_is_refused(to_files: bool) -> None:
    case = simulation(to_files=to_files)
    case.live(triggers=2)
    before, damaged = case.found(), flip_newest(case)
    with pytest.raises(StateError, match=f"trigger 2, but the newest whole commit is that of batch 0.*{damaged} torn"):
        case.live()
    assert case.found() == before


@pytest.mark.parametrize("age_s", [0.0, 1e6])
def test_a_refused_checkpoint_can_be_restored(age_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the newest commit names stays while it cannot be read, however old it is: a backup of the record is enough."""
    case = simulation(to_files=False)
    case.live(triggers=2)
    whole = max(commits_of(case).items())
    flip_newest(case)
    with monkeypatch.context() as patched:
        patched.setattr(type(case.world.inner), "age_s", lambda *_: age_s)
        with pytest.raises(StateError, match="trigger 2, but the newest whole commit is that of batch 0"):
            case.live()
    case.checkpoint.put(f"commit/{whole[0]}", [whole[1]])
    case.live()
    check(case)


@pytest.mark.parametrize("to_files", [True, False])
def test_a_flipped_bit_in_a_commit_that_spark_brings_again(to_files: bool) -> None:
    """Its control record is there: the batch runs again, under the same token, and what is published is published."""
    case = simulation(to_files=to_files)
    case.live(triggers=2)
    token = controls_in(case.checkpoint).read(BATCH).token  # type: ignore[arg-type]
    flip_newest(case)
    case.done = 0
    case.live(triggers=2)
    assert commits_in(case.checkpoint).read(BATCH).token == token  # type: ignore[arg-type]
    case.live()
    check(case)


def test_lost_commits_are_refused() -> None:
    case = simulation()
    case.live(triggers=2)
    for name in case.checkpoint.list("commit"):
        case.checkpoint.delete(f"commit/{name}")
    with pytest.raises(StateError, match="there is no whole commit"):
        case.live()


def test_half_a_checkpoint_is_refused() -> None:
    """Without Spark's part its triggers start from 0 again, and their rows would be taken in twice."""
    case = simulation()
    case.run()
    case.done = -1
    with pytest.raises(StateError, match=r"trigger 0, but .* of batch 3, of trigger 2.* parts do not belong together"):
        case.live()
    check(case)


def test_the_watermark_of_a_batch_that_was_begun_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results depend on the control record that is there, not on what the driver would decide now."""
    case = dying_after(f"control/{BATCH:020d}", to_files=False)
    controls = controls_in(case.checkpoint)  # type: ignore[arg-type]
    begun = controls.read(BATCH)
    with monkeypatch.context() as patched:
        patched.setattr("anabranch.drive.driver.next_watermark", lambda *_: 10**15)
        case.live(triggers=2)
    again = controls.read(BATCH)
    assert (again.queries, again.token, again.runs) == (begun.queries, begun.token, 2)
    assert again.epoch > begun.epoch
    case.check()


FOREIGN = (".DS_Store", "notes.txt", "0000000001-", "42-notes.bak")


def test_files_of_others_are_passed_over_in_every_folder() -> None:
    """What somebody leaves in a checkpoint, and is not called like a file of ours, stops nobody and stays."""
    scenario = many_batches(9)
    case = Simulation([scenario.query], scenario.arrow_batches, {}, scenario.plans, release_every=2)
    files, left = case.world.inner._files, set[str]()  # type: ignore[attr-defined]
    for triggers in (2, 6, None):
        for folder in {*(path.rpartition("/")[0] for path in files), *(f"checkpoint/{f}" for f in ("dropped", "coming"))}:
            for path in (f"{folder}/{name}" for name in FOREIGN):
                files[path] = pa.py_buffer(b"not ours"), 0.0
                left.add(path)
        case.live(triggers)
    check(case)
    assert left <= files.keys()


# Sinks


class Failing(dict[int, str]):
    """Every call with the results of a batch fails, "before" the function has them or "after"."""

    def pop(self, batch: int, otherwise: str = "") -> str:  # type: ignore[override]
        return f"fails {self[batch]}" if batch in self else otherwise


def test_a_sink_that_fails_in_the_closing_step() -> None:
    """The closing step has results of its own, which wait for the next driver; it has nothing to close then."""
    case = simulation(to_files=False)
    case.function.fails = Failing({CLOSING: "before"})
    with pytest.raises(SinkError, match=r"the sink of query q .* has failed .* in batch 3: .*the sink fails"):
        case.live()
    assert CLOSING not in case.function.brought
    case.function.fails = {}
    case.live(triggers=3)
    check(case)


def test_results_wait_past_the_batches_at_which_files_are_released() -> None:
    """What waits is still there, and a batch that was brought, and not noted, is brought again."""
    scenario = many_batches(RELEASE_EVERY + 2)
    case = Simulation([scenario.query], scenario.arrow_batches, {}, scenario.plans, to_files=False)
    first, second = RELEASE_EVERY, RELEASE_EVERY + 1
    case.function.fails = Failing({first: "after", second: "before"})
    for mended in (first, second):
        with pytest.raises(SinkError, match=f"has failed .* in batch {mended}"):
            case.live()
        del case.function.fails[mended]
    case.check()
    assert len(case.function.brought[first]) > 1
    assert [len(case.function.brought[n]) for n in range(second + 1) if n != first] == [1] * second


@pytest.mark.parametrize("which", [0, 2])
@pytest.mark.parametrize("damage", ["flipped", "deleted"])
def test_a_commit_whose_results_may_wait_is_never_passed_over(damage: str, which: int) -> None:
    """A sink was down for five batches, and then the record of one of them is damaged: its results are not lost in silence,
    nor is anything swept that it names."""
    scenario = many_batches(RELEASE_EVERY - 2)
    case = Simulation([scenario.query], scenario.arrow_batches, {}, scenario.plans, to_files=False)
    case.function.fails = Broken()
    case.live(triggers=5)
    name, content = sorted(commits_of(case).items())[which]
    case.checkpoint.delete(f"commit/{name}")
    if damage == "flipped":
        case.checkpoint.put(f"commit/{name}", [content[:-1] + bytes([content[-1] ^ 1])])
    case.function.fails = {}
    staged = case.checkpoint.list("staged")
    with pytest.raises(DamagedStateError, match=f"commit/{which:020d}.*restore this file from a backup"):
        case.live()
    assert case.checkpoint.list("staged") == staged
    assert not case.function.brought
    case.checkpoint.put(f"commit/{name}", [content])
    case.live()
    case.check()


def test_results_that_waited_for_a_function_go_to_files() -> None:
    case = dying_after(f"commit/{BATCH + 1:020d}", to_files=False)
    kept: Any = case.outlets["q"]
    case.outlets["q"] = case.files(case.queries[0])
    case.live()
    found, wanted = case.found()["q"] + kept.found(), case.expected()["q"]
    assert not (wrong := oracle.difference(found, wanted)), wrong
    assert case.found()["q"] != wanted, "the function had those of batch 1"


def test_files_that_were_written_for_a_sink_wait_for_it() -> None:
    case = dying_after(f"commit/{BATCH:020d}", to_files=True)
    files = case.outlets["q"]
    case.outlets["q"] = function = case.called(case.queries[0])
    with pytest.raises(StateError, match="query q in batch 1 are in files that were written for a parquet sink"):
        case.live()
    assert isinstance(function, Function)
    assert function.found() == Counter()
    case.outlets["q"] = files
    case.live()
    check(case)
