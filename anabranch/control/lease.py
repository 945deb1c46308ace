"""A lease on a checkpoint: one driver at a time, and a crashed one does not hold it for ever.

Each driver that wants the checkpoint first writes a claim of its own, then looks at all claims: if another one is alive, it
withdraws and is refused. So of two that try at once both may be refused, but never both be served. The holder renews its
claim from a thread; a claim that has expired, or whose process on this host is no longer there, is swept aside.

This guards against accidents, not against malice: what a zombie writes after all has names of its own, and its commits are
superseded by number.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable

import msgspec

from anabranch.errors import CheckpointBusyError, StateError
from anabranch.storage.filesystem import Filesystem
from anabranch.storage.record import seal, unseal

FOLDER = "lease"
EXPIRES_S = 60.0
"""A claim that was not renewed for so long is free."""
RENEWALS = 4
"""How often a claim is renewed before it would expire."""


class Claim(msgspec.Struct, frozen=True):
    """Who wants, or has, a checkpoint."""

    owner: str
    host: str
    process: int
    expires_at_s: float


class Holder:
    """Holds the lease of a checkpoint until `release`."""

    def __init__(
        self, filesystem: Filesystem, expires_s: float = EXPIRES_S, clock: Callable[[], float] = time.time
    ) -> None:
        self.filesystem, self.expires_s, self.clock = filesystem, expires_s, clock
        self.owner = uuid.uuid4().hex
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        """Takes the lease, or says who has it."""
        self._write()
        for name in self.filesystem.list(FOLDER):
            other = self._read(name)
            if name == self.owner:
                continue
            if other is None or self._is_free(other):
                self.filesystem.delete(f"{FOLDER}/{name}")
                continue
            self.filesystem.delete(f"{FOLDER}/{self.owner}")
            raise CheckpointBusyError(
                f"the checkpoint is in use by process {other.process} on {other.host}; stop that run, use another "
                f"checkpoint, or wait {max(0.0, other.expires_at_s - self.clock()):.0f} s if it has crashed"
            )
        self._thread = threading.Thread(target=self._renew, name="anabranch-lease", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Gives the lease back; again does nothing."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        self.filesystem.delete(f"{FOLDER}/{self.owner}")

    def _renew(self) -> None:
        while not self._stopped.wait(self.expires_s / RENEWALS):
            self._write()

    def _write(self) -> None:
        claim = Claim(self.owner, socket.gethostname(), os.getpid(), self.clock() + self.expires_s)
        self.filesystem.put(f"{FOLDER}/{self.owner}", [seal("lease", msgspec.json.encode(claim))])

    def _read(self, name: str) -> Claim | None:
        """A claim; None if it is gone, or torn because its writer crashed while it wrote."""
        path = f"{FOLDER}/{name}"
        try:
            return msgspec.json.decode(unseal("lease", memoryview(self.filesystem.get(path)), path), type=Claim)
        except (FileNotFoundError, StateError):
            return None

    def _is_free(self, claim: Claim) -> bool:
        if claim.expires_at_s <= self.clock():
            return True
        return claim.host == socket.gethostname() and not _is_alive(claim.process)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
