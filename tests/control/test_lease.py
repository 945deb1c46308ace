"""The lease of a checkpoint: one holder at a time, whoever crashed does not hold it for ever."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from anabranch.control.lease import EXPIRES_S, FOLDER, MARKS, Claim, Holder, in_use_by
from anabranch.control.ledger import commits_in, controls_in
from anabranch.control.records import Commit, Control
from anabranch.errors import CheckpointBusyError
from anabranch.storage.filesystem import LocalFilesystem, MemoryFilesystem, Names, Part
from anabranch.storage.record import seal, unseal

Disk = MemoryFilesystem | LocalFilesystem


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def disk() -> MemoryFilesystem:
    return MemoryFilesystem()


@pytest.fixture
def hold(disk: MemoryFilesystem) -> Iterator[Callable[..., Holder]]:
    """Takes the lease; all are given back at the end."""
    holders = []

    def make(on: Disk = disk, **options: object) -> Holder:
        holder = Holder(on, **options)  # type: ignore[arg-type]
        holder.acquire()
        holders.append(holder)
        return holder

    yield make
    for holder in holders:
        holder.release()


def owners(disk: Disk) -> list[str]:
    """Whose claims there are."""
    return [name.partition("-")[0] for name in disk.list(FOLDER)]


def claim_of(disk: Disk, holder: Holder) -> Claim:
    path = f"{FOLDER}/{holder.claim}"
    return msgspec.json.decode(unseal("lease", memoryview(disk.get(path)), path), type=Claim)


def write_claim(disk: Disk, **changes: object) -> None:
    fields = {"owner": "somebody", "host": "elsewhere", "process": 1, "expires_at_s": time.time() + 1000, **changes}
    disk.put(f"{FOLDER}/somebody-0000000000", [seal("lease", msgspec.json.encode(Claim(**fields)))])  # type: ignore[arg-type]


def test_a_second_holder_is_told_who_has_it(disk: MemoryFilesystem, hold: Callable[..., Holder]) -> None:
    first = hold()
    with pytest.raises(CheckpointBusyError, match=rf"process {os.getpid()} on {socket.gethostname()}") as refused:
        Holder(disk).acquire()
    assert "another checkpoint" in str(refused.value)
    assert owners(disk) == [first.owner], "a refused one leaves nothing"


def test_a_released_lease_is_free(disk: MemoryFilesystem, hold: Callable[..., Holder]) -> None:
    hold().release()
    assert owners(disk) == []
    hold()


def test_releasing_twice_is_no_error_and_takes_nothing_from_others(
    disk: MemoryFilesystem, hold: Callable[..., Holder]
) -> None:
    first = hold()
    first.release()
    second = hold()
    first.release()
    assert owners(disk) == [second.owner]


class SlowToDelete(MemoryFilesystem):
    """Deletes when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go_on = threading.Event(), threading.Event()

    def delete(self, path: str) -> None:
        self.asked.set()
        assert self.go_on.wait(30)
        super().delete(path)


def test_a_lease_that_two_threads_give_back_is_free_when_either_has(hold: Callable[..., Holder]) -> None:
    """A sink stops a run while whoever waits for the run sees it end."""
    disk = SlowToDelete()
    holder = hold(disk)
    first, second = (threading.Thread(target=holder.release) for _ in range(2))
    first.start()
    assert disk.asked.wait(30)
    second.start()
    second.join(0.2)
    assert second.is_alive(), "the claim is there yet"
    disk.go_on.set()
    second.join(30)
    assert not owners(disk)


def test_a_claim_that_is_given_back_is_not_written_again(disk: MemoryFilesystem, hold: Callable[..., Holder]) -> None:
    """The lease is given back between the moment a thread looks whether it is and the moment it looks for the claim."""
    holder = hold()
    listed: Callable[[str], Names] = disk.list

    def late(directory: str) -> Names:
        disk.list = listed  # type: ignore[method-assign]
        holder.release()
        return disk.list(directory)

    disk.list = late  # type: ignore[method-assign]
    holder.require_held()
    assert not owners(disk)


def test_a_refused_holder_releases_nothing(disk: MemoryFilesystem, hold: Callable[..., Holder]) -> None:
    holder = hold()
    late = Holder(disk)
    with pytest.raises(CheckpointBusyError):
        late.acquire()
    late.release()
    assert owners(disk) == [holder.owner]


def test_an_expired_claim_is_free(disk: MemoryFilesystem, hold: Callable[..., Holder]) -> None:
    clock = Clock()
    write_claim(disk, expires_at_s=clock.now_s + 10)
    with pytest.raises(CheckpointBusyError, match="wait 10 s"):
        Holder(disk, clock=clock).acquire()
    clock.now_s += 10
    taken = hold(clock=clock)
    assert owners(disk) == [taken.owner]
    assert claim_of(disk, taken).expires_at_s == clock.now_s + EXPIRES_S


def test_a_claim_of_a_dead_process_of_this_host_is_free(disk: MemoryFilesystem, hold: Callable[..., Holder]) -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    write_claim(disk, host=socket.gethostname(), process=done.pid)
    hold()


def test_a_process_of_another_host_may_live(disk: MemoryFilesystem) -> None:
    write_claim(disk, host="elsewhere", process=2**22 + 1)
    with pytest.raises(CheckpointBusyError, match="on elsewhere"):
        Holder(disk).acquire()


def test_a_process_of_somebody_else_lives(disk: MemoryFilesystem) -> None:
    """Signalling process 1 may be forbidden; it is there all the same."""
    write_claim(disk, host=socket.gethostname(), process=1)
    with pytest.raises(CheckpointBusyError):
        Holder(disk).acquire()


@pytest.mark.parametrize("torn", [b"", b"\0" * 10, b"half a lease"])
def test_a_torn_claim_is_free(disk: MemoryFilesystem, hold: Callable[..., Holder], torn: bytes) -> None:
    disk.put(f"{FOLDER}/somebody-0000000000", [torn])
    holder = hold()
    assert owners(disk) == [holder.owner]


def test_files_of_others_are_passed_over_and_stay(disk: MemoryFilesystem, hold: Callable[..., Holder]) -> None:
    for path in (f"{FOLDER}/notes.txt", f"{FOLDER}/notes-7", f"{MARKS}/notes.txt", f"{MARKS}/7"):
        disk.put(path, [b"mine"])
    holder = hold()
    assert holder.epoch == 1
    holder.require_held()
    assert in_use_by(disk) == claim_of(disk, holder)
    holder.release()
    assert (disk.list(FOLDER), disk.list(MARKS)) == (["notes-7", "notes.txt"], ["0000000001", "7", "notes.txt"])


def test_the_holder_renews(disk: MemoryFilesystem, hold: Callable[..., Holder]) -> None:
    hold(expires_s=0.2)
    time.sleep(0.5)
    with pytest.raises(CheckpointBusyError):
        Holder(disk).acquire()


def test_renewing_ends_with_the_release(disk: MemoryFilesystem, hold: Callable[..., Holder]) -> None:
    holder = hold(expires_s=0.04)
    holder.release()
    time.sleep(0.1)
    assert owners(disk) == []


class Racing(MemoryFilesystem):
    """Runs something before one of its operations: what another process might do there."""

    def __init__(self, operation: int, interrupt: Callable[[], None]) -> None:
        super().__init__()
        self.left, self.interrupt = operation, interrupt

    def put(self, path: str, parts: Sequence[Part]) -> None:
        self.tick()
        super().put(path, parts)

    def list(self, directory: str) -> Names:
        self.tick()
        return super().list(directory)

    def get(self, path: str) -> pa.Buffer:
        self.tick()
        return super().get(path)

    def delete(self, path: str) -> None:
        self.tick()
        super().delete(path)

    def tick(self) -> None:
        self.left -= 1
        if self.left == -1:
            self.interrupt()


@pytest.mark.parametrize("operation", range(14))
@pytest.mark.parametrize("crashed", [False, True])
def test_of_two_at_once_at_most_one_is_served(operation: int, crashed: bool) -> None:
    """While one driver takes the lease, between any two of its operations, another one tries; perhaps after a crash."""
    served: list[Holder] = []

    def attempt(holder: Holder) -> None:
        try:
            holder.acquire()
            served.append(holder)
        except CheckpointBusyError:
            pass

    disk = Racing(operation, lambda: attempt(second))
    first, second = Holder(disk), Holder(disk)
    if crashed:
        MemoryFilesystem.put(disk, f"{FOLDER}/somebody-0000000000", [b"torn"])
    try:
        attempt(first)
        assert len(served) <= 1, "both hold the checkpoint"
    finally:
        disk.left = -1  # nobody else tries
        for holder in served:
            holder.release()
    last = Holder(disk)
    last.acquire()
    last.release()
    assert owners(disk) == [], "nobody leaves a claim behind"


# Epochs


def test_each_taking_has_a_higher_epoch(disk: MemoryFilesystem, hold: Callable[..., Holder]) -> None:
    first = hold()
    assert first.epoch == 1
    commits_in(disk, first.epoch).write(0, a_commit(0))
    first.release()
    second = hold()
    assert second.epoch == 2
    second.release()
    assert hold().epoch == 3, "whether or not anything was written under the one before"
    assert disk.list(MARKS) == ["0000000003"], "one mark stays"


def test_the_largest_epoch_of_all_names_counts(disk: MemoryFilesystem, hold: Callable[..., Holder]) -> None:
    controls_in(disk, 7).write(3, a_control(3))
    disk.put("commit/README", [b"5"])
    write_claim(disk, expires_at_s=0.0)
    disk.put(f"{FOLDER}/gone-0000000009", [b"torn"])
    assert hold().epoch == 10


def test_a_driver_that_was_taken_over_is_told(disk: MemoryFilesystem, hold: Callable[..., Holder]) -> None:
    """It slept through its lease; whoever took it over may have given it back since."""
    clock = Clock()
    old = Holder(disk, clock=clock)
    old.acquire()
    old._stopped.set()  # its thread sleeps as well
    old.require_held()
    clock.now_s += 2 * EXPIRES_S
    old.require_held()  # nobody else came
    new = hold(clock=clock)
    assert new.epoch == old.epoch + 1
    new.require_held()
    with pytest.raises(CheckpointBusyError, match="another run has taken the checkpoint over"):
        old.require_held()
    disk.delete(f"{FOLDER}/{old.claim}")  # it wrote its claim again, for others to see
    new.require_held()
    controls_in(disk, new.epoch).write(0, a_control(0))
    new.release()
    with pytest.raises(CheckpointBusyError, match="another run has taken the checkpoint over"):
        old.require_held()


def test_of_two_claims_of_one_epoch_neither_drives(disk: MemoryFilesystem, hold: Callable[..., Holder]) -> None:
    """A store whose listings lag may show neither of two drivers the other's claim while they take the lease."""
    holder = hold()
    other = Claim("other", "another host", 1, time.time() + EXPIRES_S)
    disk.put(f"{FOLDER}/{other.owner}-{holder.claim.rpartition('-')[2]}", [seal("lease", msgspec.json.encode(other))])
    with pytest.raises(CheckpointBusyError, match="another run has taken the checkpoint over"):
        holder.require_held()


class Failing(MemoryFilesystem):
    """Fails to write while it is told to."""

    fails = False
    error: Exception = OSError("the disk is full")

    def put(self, path: str, parts: Sequence[Part]) -> None:
        if self.fails:
            raise self.error
        super().put(path, parts)


@pytest.mark.parametrize("error", [OSError("the disk is full"), RuntimeError("a filesystem in Python")])
def test_renewing_survives_a_failed_write(error: Exception) -> None:
    disk = Failing()
    disk.error = error
    holder = Holder(disk, expires_s=0.2)
    holder.acquire()
    try:
        disk.fails = True
        time.sleep(0.15)
        disk.fails = False
        before = claim_of(disk, holder).expires_at_s
        deadline = time.monotonic() + 30
        while claim_of(disk, holder).expires_at_s == before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert claim_of(disk, holder).expires_at_s > before
    finally:
        disk.fails = False
        holder.release()


def test_a_claim_that_got_lost_is_written_again(disk: MemoryFilesystem, hold: Callable[..., Holder]) -> None:
    """A renewal that failed half-way may have left nothing."""
    holder = hold()
    disk.delete(f"{FOLDER}/{holder.claim}")
    holder.require_held()
    assert owners(disk) == [holder.owner]


def test_a_released_lease_is_not_renewed_by_a_driver_that_lost_it(
    disk: MemoryFilesystem, hold: Callable[..., Holder]
) -> None:
    old = hold(expires_s=0.04)
    disk.put(f"{MARKS}/{old.epoch + 1:010d}", [b""])
    disk.delete(f"{FOLDER}/{old.claim}")
    time.sleep(0.1)
    assert owners(disk) == []


def a_control(batch: int) -> Control:
    return Control(batch, batch, {})


def a_commit(batch: int) -> Commit:
    return Commit(batch, batch, {})


HOLDING = """
import sys, time
from anabranch.control.lease import Holder
from anabranch.storage.filesystem import LocalFilesystem
Holder(LocalFilesystem(sys.argv[1])).acquire()
print("held", flush=True)
time.sleep(60)
"""


def test_a_killed_process_is_taken_over_at_once(tmp_path: Path, hold: Callable[..., Holder]) -> None:
    disk = LocalFilesystem(str(tmp_path))
    other = subprocess.Popen([sys.executable, "-c", HOLDING, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(CheckpointBusyError, match=f"process {other.pid} "):
            Holder(disk).acquire()
    finally:
        other.send_signal(signal.SIGKILL)
        other.communicate()
    hold(disk)


def test_a_lease_that_was_given_back_is_not_taken_again_by_a_thread_that_is_late(
    disk: MemoryFilesystem, hold: Callable[..., Holder]
) -> None:
    """A sink that was called before the run was stopped may come back after it: the next run is not to be refused for it."""
    old = hold()
    old.release()
    with pytest.raises(CheckpointBusyError, match="has given the checkpoint back"):
        old.require_held()
    assert owners(disk) == []
    hold()
