"""A lease on a checkpoint: one driver at a time, and a crashed one does not hold it for ever.

Each driver that wants the checkpoint first writes a claim of its own, then looks at all claims: if another one is alive, it
withdraws and is refused. So of two that try at once both may be refused, but never both be served. The holder renews its
claim from a thread; a claim that has expired, or whose process on this host is no longer there, is swept aside.

Each taking of the lease has an *epoch*: one more than the largest in the names of claims and of *marks*. A driver that has
taken the lease leaves a mark of its epoch, which stays when the claim is gone. Names of the records that it writes end in
the epoch. A driver that was thought dead and wakes up is fenced by that, without conditional writes, which not every store
has. It looks (`require_held`) after it has written a commit and before it delivers; its reader of files, a process that
Spark asks for rows before the driver has a batch, looks for marks before it writes (`Marked`):

    old driver:  write commit 7 of epoch 1   look for claims and marks of a higher epoch   deliver batch 7
    new driver:  write a claim of epoch 2    look for the newest commit                    go on from there

If the old driver looks before the claim is written, its commit was written before that too: the new driver goes on from
commit 7. Else the old driver sees the claim, and stops; its commit 7 counts less than one of epoch 2
(`anabranch.control.ledger`).

Clocks of hosts may differ by less than half of `EXPIRES_S`: a claim is renewed when a quarter of that has passed, so it
lies at least three quarters ahead of its writer's clock.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from anabranch.control.ledger import EPOCH_DIGITS
from anabranch.errors import CheckpointBusyError, StateError
from anabranch.storage.filesystem import Filesystem
from anabranch.storage.record import seal, unseal

FOLDER, MARKS = "lease", "epochs"
_MARK = re.compile(rf"[0-9]{{{EPOCH_DIGITS}}}")
_CLAIM = re.compile(rf"[0-9a-z]+-[0-9]{{{EPOCH_DIGITS}}}")
EXPIRES_S = 60.0
"""A claim that was not renewed for so long is free."""
RENEWALS = 4
"""How often a claim is renewed before it would expire."""
MOST_TRIES = 8
"""How often a driver looks for a free epoch while others take and release the lease."""


class Claim(msgspec.Struct, frozen=True):
    """Who wants, or has, a checkpoint."""

    owner: str
    host: str
    process: int
    expires_at_s: float


class Lease(Protocol):
    """What a driver holds while it drives."""

    @property
    def epoch(self) -> int:
        """Higher than that of every driver before."""

    def require_held(self) -> None:
        """Raises if another driver has taken the checkpoint over."""


@dataclass(frozen=True)
class Unshared:
    """The lease of a checkpoint that nobody else can have, one in memory for example."""

    epoch: int = 0

    def require_held(self) -> None:
        pass


@dataclass(frozen=True)
class Marked:
    """The lease of a driver as a process sees it that the driver has started: by the marks of later drivers."""

    filesystem: Filesystem
    epoch: int

    def require_held(self) -> None:
        if max(marked_epochs(self.filesystem), default=0) > self.epoch:
            raise _taken_over(self.epoch, EXPIRES_S)


class Holder:
    """Holds the lease of a checkpoint until `release`."""

    def __init__(
        self, filesystem: Filesystem, expires_s: float = EXPIRES_S, clock: Callable[[], float] = time.time
    ) -> None:
        self.filesystem, self.expires_s, self.clock = filesystem, expires_s, clock
        self.owner = uuid.uuid4().hex
        self.epoch = 0
        """That of the lease it has; 0 before it has one."""
        self._is_released, self._giving_back = False, threading.Lock()
        """Whoever finds it released finds no claim either: the lock is held until the claim is gone."""
        self._stopped = threading.Event()
        """Set when the claim is to be renewed no more."""
        self._thread: threading.Thread | None = None

    @property
    def claim(self) -> str:
        """The name of its claim."""
        return f"{self.owner}-{self.epoch:0{EPOCH_DIGITS}d}"

    def acquire(self) -> None:
        """Takes the lease, or says who has it."""
        for _ in range(MOST_TRIES):
            self.epoch = highest_epoch(self.filesystem) + 1
            self._write()
            self._look_for_others()
            if highest_epoch(self.filesystem, but=self.claim) < self.epoch:
                self._mark()
                break
            # Another driver had the lease, and gave it back, since the epochs were looked at.
            self.filesystem.delete(f"{FOLDER}/{self.claim}")
        else:
            raise CheckpointBusyError("other runs take the checkpoint again and again: stop them, or use another one")
        self._thread = threading.Thread(target=self._renew, name="anabranch-lease", daemon=True)
        self._thread.start()

    def _look_for_others(self) -> None:
        """Sweeps aside claims of drivers that are gone; withdraws if one is alive."""
        for name in claims_in(self.filesystem):
            if name == self.claim:
                continue
            other = self._read(name)
            if other is None or self._is_free(other):
                self.filesystem.delete(f"{FOLDER}/{name}")
                continue
            self.filesystem.delete(f"{FOLDER}/{self.claim}")
            raise CheckpointBusyError(
                f"the checkpoint is in use by process {other.process} on {other.host}; stop that run, use another "
                f"checkpoint, or wait {max(0.0, other.expires_at_s - self.clock()):.0f} s if it has crashed"
            )

    def require_held(self) -> None:
        """Raises if another driver has taken the lease since, or this one has given it back: it must not write or deliver
        any more. (A thread of a run that was stopped may still be at work.)"""
        if self._is_released:
            raise CheckpointBusyError(f"this run has given the checkpoint back (epoch {self.epoch}): it has been stopped")
        if self.claim not in self.filesystem.list(FOLDER):
            self._write_again()
        if self._is_superseded():
            raise _taken_over(self.epoch, self.expires_s)

    @property
    def marked(self) -> Marked:
        """Its lease for another process."""
        return Marked(self.filesystem, self.epoch)

    def _write_again(self) -> None:
        """The claim was swept aside, or a renewal failed half-way: whoever comes now is to see it. One that was given back
        meanwhile stays away."""
        with self._giving_back:
            if not self._is_released:
                self._write()

    def _is_superseded(self) -> bool:
        """Whether there is a claim of another driver as new as this one's, or the mark of a newer one."""
        claims = claimed_epochs(self.filesystem, but=self.claim)
        return max(claims, default=0) >= self.epoch or max(marked_epochs(self.filesystem), default=0) > self.epoch

    def _mark(self) -> None:
        """Leaves the mark of its epoch; those of others before it go."""
        self.filesystem.put(f"{MARKS}/{self.epoch:0{EPOCH_DIGITS}d}", [seal("mark", b"")])
        for epoch in marked_epochs(self.filesystem):
            if epoch < self.epoch:
                self.filesystem.delete(f"{MARKS}/{epoch:0{EPOCH_DIGITS}d}")

    def release(self) -> None:
        """Gives the lease back; again does nothing. When it returns the claim is gone, whichever thread was first."""
        with self._giving_back:
            if self._is_released:
                return
            self._is_released = True
            self._stopped.set()
            if self._thread is not None:
                self._thread.join()
            self.filesystem.delete(f"{FOLDER}/{self.claim}")

    def _renew(self) -> None:
        """Writes the claim again and again. A write that fails is made again at the next turn: as long as nobody else has
        seen the claim expire, the lease is held."""
        while not self._stopped.wait(self.expires_s / RENEWALS):
            with contextlib.suppress(Exception):  # filesystems in Python raise what they like
                if self._is_superseded():
                    return
                self._write()

    def _write(self) -> None:
        claim = Claim(self.owner, socket.gethostname(), os.getpid(), self.clock() + self.expires_s)
        self.filesystem.put(f"{FOLDER}/{self.claim}", [seal("lease", msgspec.json.encode(claim))])

    def _read(self, name: str) -> Claim | None:
        """A claim; None if it is gone, or torn because its writer crashed while it wrote."""
        return _claim(self.filesystem, name)

    def _is_free(self, claim: Claim) -> bool:
        return is_free(claim, self.clock())


def _taken_over(epoch: int, expires_s: float) -> CheckpointBusyError:
    return CheckpointBusyError(
        f"another run has taken the checkpoint over from this one (epoch {epoch}), which had not renewed its lease for "
        f"{expires_s:.0f} s: this one stops, the other goes on"
    )


def in_use_by(filesystem: Filesystem, clock: Callable[[], float] = time.time) -> Claim | None:
    """Who has the lease of a checkpoint, or is about to; None if it is free. Nothing is changed."""
    claims = [_claim(filesystem, name) for name in claims_in(filesystem)]
    return next((claim for claim in claims if claim is not None and not is_free(claim, clock())), None)


def is_free(claim: Claim, now_s: float) -> bool:
    """Whether whoever has claimed a checkpoint is gone."""
    if claim.expires_at_s <= now_s:
        return True
    return claim.host == socket.gethostname() and not _is_alive(claim.process)


def _claim(filesystem: Filesystem, name: str) -> Claim | None:
    path = f"{FOLDER}/{name}"
    try:
        return msgspec.json.decode(unseal("lease", memoryview(filesystem.get(path)), path), type=Claim)
    except (FileNotFoundError, StateError):
        return None


def highest_epoch(filesystem: Filesystem, but: str = "") -> int:
    """The largest epoch in the names of claims and marks; 0 if there is none. `but` is a claim to pass over."""
    return max([0, *claimed_epochs(filesystem, but), *marked_epochs(filesystem)])


def claims_in(filesystem: Filesystem) -> list[str]:
    """The names of all claims; a file that is called otherwise is somebody else's."""
    return [name for name in filesystem.list(FOLDER) if _CLAIM.fullmatch(name)]


def claimed_epochs(filesystem: Filesystem, but: str) -> list[int]:
    """The epochs in the names of all claims but one."""
    return [int(name.rpartition("-")[2]) for name in claims_in(filesystem) if name != but]


def marked_epochs(filesystem: Filesystem) -> list[int]:
    """The epochs of the marks that there are."""
    return [int(name) for name in filesystem.list(MARKS) if _MARK.fullmatch(name)]


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
