"""A checkpoint on an object store: every batch by a process that has nothing but the store, and perhaps a cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.storage import cache as caching
from anabranch.storage.cache import Cache, CachedFilesystem
from anabranch.storage.filesystem import Filesystem
from anabranch.storage.location import located
from tests.support import oracle
from tests.support.caller import Caller
from tests.support.cases import Part
from tests.support.faulty import Fault, FaultyFilesystem
from tests.support.fixed_scenarios import many_batches, scenario_of
from tests.support.local_runs import assert_same, start, step
from tests.support.s3 import Bucket

SCENARIOS = (1, 3, 10)


def checkpoint(bucket: Bucket, folder: Path | None) -> Filesystem:
    remote = located(bucket.uri("checkpoint"))
    return remote if folder is None else CachedFilesystem(remote, str(remote), Cache(str(folder), 1 << 20))


@pytest.mark.few(1)
@pytest.mark.parametrize("is_cached", [False, True])
@pytest.mark.parametrize("seed", SCENARIOS)
def test_restarts(bucket: Bucket, tmp_path: Path, seed: int, is_cached: bool) -> None:
    scenario = scenario_of(seed)
    found = oracle.Bag()
    for batch in range(len(scenario.batches) + 1):
        caching._disks.clear()
        run = start(scenario, checkpoint(bucket, tmp_path if is_cached else None), seed + batch)
        found += oracle.bag(step(run, scenario, batch).results)
    assert_same(found, scenario)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["lose", "tear", "crash_after"])
def test_crashes(bucket: Bucket, tmp_path: Path, kind: str, part: Part) -> None:
    """Every fifth put fails; whoever goes on has the cache of the machine, with all that failed attempts wrote."""
    scenario = many_batches(3)
    faults = part.of(range(1, 60, 5))
    disk = FaultyFilesystem(checkpoint(bucket, tmp_path), {n: Fault(kind) for n in faults})
    caller = Caller(scenario, disk, (0, 1), survives=False)
    caller.work()
    caller.assert_right()
    assert caller.starts > len(faults) // 4


def test_the_cache_serves_the_next_process(bucket: Bucket, tmp_path: Path) -> None:
    """What one process has written, the next does not fetch."""
    scenario = many_batches(3)
    disk = checkpoint(bucket, tmp_path)
    for batch in range(3):
        step(start(scenario, disk, 0), scenario, batch)
    state = [path for path in bucket.paths("checkpoint") if path.startswith("state/")]
    kept = {path: bucket.read(f"checkpoint/{path}") for path in state}
    assert kept
    for path in kept:
        bucket.write(f"checkpoint/{path}", b"not what was written")
    caching._disks.clear()
    step(start(scenario, disk, 0), scenario, 3)
