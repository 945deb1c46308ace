"""A scenario run without Spark, batch by batch, and what must hold of its results and its files after every step."""

from __future__ import annotations

from anabranch.control.manifest import files_of, read_manifest
from anabranch.control.records import SlotState
from anabranch.control.sweep import batch_of
from anabranch.drive.local import STATE_FOLDER, LocalRun, Step
from anabranch.storage.container import ContainerReader
from anabranch.storage.filesystem import Filesystem
from tests.support import oracle
from tests.support.scenarios import Scenario


def start(scenario: Scenario, disk: Filesystem, plan: int = 0) -> LocalRun:
    plans = scenario.plans[plan % len(scenario.plans)]
    return LocalRun(scenario.query, disk, plans, scenario.arrow_tables, release_every=1, sweep_grace_s=0.0)


def step(run: LocalRun, scenario: Scenario, batch: int) -> Step:
    """Runs a batch (one without rows, past the last) and checks what must hold after every step."""
    done = run.step(batch, scenario.feed(batch) if batch < len(scenario.batches) else {})
    run.verify()
    assert done.results.schema == scenario.query.output_schema
    assert done.statistics.results == done.results.num_rows
    done.results.validate(full=True)
    return done


def expected(scenario: Scenario) -> oracle.Bag:
    return oracle.expected(scenario.query, scenario.arrow_batches, scenario.arrow_tables)


def assert_same(ours: oracle.Bag, scenario: Scenario) -> None:
    assert not (wrong := oracle.difference(ours, expected(scenario))), wrong


def files(disk: Filesystem) -> set[str]:
    return {f"{STATE_FOLDER}/{name}" for name in disk.list(STATE_FOLDER)}


def assert_swept(run: LocalRun, disk: Filesystem) -> None:
    """What commits name is there; what else is there, of a batch that was computed again, goes soon."""
    assert named(run) <= files(disk)
    others = [batch_of(path.rpartition("/")[2]) for path in files(disk) - named(run)]
    assert all(batch is not None and batch >= run.last_batch - 1 for batch in others), others


def named(run: LocalRun) -> frozenset[str]:
    """The files that the newest commit and the one before it name."""
    commits = [run.commits.read(number) for number in run.commits.numbers()[-2:]]
    reader = ContainerReader(run.filesystem)
    return files_of((slot.manifest for commit in commits for slot in commit.slots.values()), reader)


def state_of(run: LocalRun, batch: int | None = None, slot: str = "0") -> SlotState:
    """What a slot's state consists of, by a commit."""
    commit = run.commits.read(run.last_batch if batch is None else batch)
    manifest = commit.slots[slot].manifest
    assert manifest is not None
    return read_manifest(manifest, ContainerReader(run.filesystem))[0]
