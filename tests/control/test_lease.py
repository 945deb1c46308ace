"""The lease of a checkpoint: one holder at a time, whoever crashed does not hold it for ever."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from anabranch.control.lease import EXPIRES_S, PATH, Holder, Lease
from anabranch.errors import CheckpointBusyError
from anabranch.storage.filesystem import LocalFilesystem, MemoryFilesystem
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


def held_by(disk: Disk) -> Lease | None:
    try:
        return msgspec.json.decode(unseal("lease", memoryview(disk.get(PATH)), PATH), type=Lease)
    except FileNotFoundError:
        return None


def write_lease(disk: Disk, **changes: object) -> None:
    fields = {"owner": "somebody", "host": "elsewhere", "process": 1, "expires_at_s": time.time() + 1000, **changes}
    disk.put(PATH, [seal("lease", msgspec.json.encode(Lease(**fields)))])  # type: ignore[arg-type]


def test_a_second_holder_is_told_who_has_it(disk: MemoryFilesystem, hold: Callable[..., Holder]) -> None:
    first = hold()
    with pytest.raises(CheckpointBusyError, match=rf"process {os.getpid()} on {socket.gethostname()}") as refused:
        Holder(disk).acquire()
    assert "another checkpoint" in str(refused.value)
    lease = held_by(disk)
    assert lease is not None
    assert lease.owner == first.owner, "a refused one changes nothing"


def test_a_released_lease_is_free(disk: MemoryFilesystem, hold: Callable[..., Holder]) -> None:
    hold().release()
    assert held_by(disk) is None
    hold()


def test_releasing_twice_is_no_error_and_takes_nothing_from_others(
    disk: MemoryFilesystem, hold: Callable[..., Holder]
) -> None:
    first = hold()
    first.release()
    second = hold()
    first.release()
    lease = held_by(disk)
    assert lease is not None
    assert lease.owner == second.owner


def test_a_refused_holder_releases_nothing(disk: MemoryFilesystem, hold: Callable[..., Holder]) -> None:
    hold()
    late = Holder(disk)
    with pytest.raises(CheckpointBusyError):
        late.acquire()
    late.release()
    assert held_by(disk) is not None


def test_an_expired_lease_is_free(disk: MemoryFilesystem, hold: Callable[..., Holder]) -> None:
    clock = Clock()
    write_lease(disk, expires_at_s=clock.now_s + 10)
    with pytest.raises(CheckpointBusyError, match="wait 10 s"):
        Holder(disk, clock=clock).acquire()
    clock.now_s += 10
    taken = hold(clock=clock)
    lease = held_by(disk)
    assert lease is not None
    assert (lease.owner, lease.expires_at_s) == (taken.owner, clock.now_s + EXPIRES_S)


def test_a_lease_of_a_dead_process_of_this_host_is_free(disk: MemoryFilesystem, hold: Callable[..., Holder]) -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    write_lease(disk, host=socket.gethostname(), process=done.pid)
    hold()


def test_a_process_of_another_host_may_live(disk: MemoryFilesystem) -> None:
    write_lease(disk, host="elsewhere", process=2**22 + 1)
    with pytest.raises(CheckpointBusyError, match="on elsewhere"):
        Holder(disk).acquire()


def test_a_process_of_somebody_else_lives(disk: MemoryFilesystem) -> None:
    """Signalling process 1 may be forbidden; it is there all the same."""
    write_lease(disk, host=socket.gethostname(), process=1)
    with pytest.raises(CheckpointBusyError):
        Holder(disk).acquire()


@pytest.mark.parametrize("torn", [b"", b"\0" * 10, b"half a lease"])
def test_a_torn_lease_is_free(disk: MemoryFilesystem, hold: Callable[..., Holder], torn: bytes) -> None:
    disk.put(PATH, [torn])
    hold()


def test_the_holder_renews(disk: MemoryFilesystem, hold: Callable[..., Holder]) -> None:
    hold(expires_s=0.2)
    time.sleep(0.5)
    with pytest.raises(CheckpointBusyError):
        Holder(disk).acquire()


def test_renewing_ends_with_the_release(disk: MemoryFilesystem, hold: Callable[..., Holder]) -> None:
    holder = hold(expires_s=0.04)
    holder.release()
    time.sleep(0.1)
    assert held_by(disk) is None


class Racing(MemoryFilesystem):
    """Runs something between two operations: what another process might do there."""

    def __init__(self) -> None:
        super().__init__()
        self.before_put: Callable[[], None] | None = None

    def put(self, path: str, parts: object) -> None:
        interrupt, self.before_put = self.before_put, None
        if interrupt is not None:
            interrupt()
        super().put(path, parts)  # type: ignore[arg-type]

    def get(self, path: str) -> pa.Buffer:
        return super().get(path)


def test_of_two_at_once_one_is_refused() -> None:
    """The second looks before the first has written, and writes after the first has read back."""
    disk = Racing()
    first, second = Holder(disk, expires_s=1.0), Holder(disk, expires_s=1.0)
    disk.before_put = first.acquire
    refused = 0
    try:
        try:
            second.acquire()
        except CheckpointBusyError:
            refused += 1
    finally:
        first.release()
        second.release()
    assert refused == 1, "both hold the checkpoint"


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
