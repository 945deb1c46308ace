"""A lease on a checkpoint: one driver at a time, and a crashed one does not hold it for ever.

The holder renews a small record from a thread. Whoever finds it expired, or written by a process of this host that is no
longer there, takes over. The record is written whole and read back, so of two that try at once one sees the other's name.
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

PATH = "lease"
EXPIRES_S = 60.0
"""A lease that was not renewed for so long is free."""
RENEWALS = 4
"""How often a lease is renewed before it would expire."""


class Lease(msgspec.Struct, frozen=True):
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
        held = self._read()
        if held is not None and not self._is_free(held):
            raise CheckpointBusyError(
                f"the checkpoint is in use by process {held.process} on {held.host}; stop that run, use another checkpoint, "
                f"or wait {max(0.0, held.expires_at_s - self.clock()):.0f} s if it has crashed"
            )
        self._write()
        now = self._read()
        if now is None or now.owner != self.owner:
            raise CheckpointBusyError(
                "the checkpoint was taken by another run at the same moment; use another checkpoint"
            )
        self._thread = threading.Thread(target=self._renew, name="anabranch-lease", daemon=True)
        self._thread.start()

    def release(self) -> None:
        if self._stopped.is_set():
            return
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        held = self._read()
        if held is not None and held.owner == self.owner:
            self.filesystem.delete(PATH)

    def _renew(self) -> None:
        while not self._stopped.wait(self.expires_s / RENEWALS):
            self._write()

    def _write(self) -> None:
        lease = Lease(self.owner, socket.gethostname(), os.getpid(), self.clock() + self.expires_s)
        self.filesystem.put(PATH, [seal("lease", msgspec.json.encode(lease))])

    def _read(self) -> Lease | None:
        try:
            return msgspec.json.decode(unseal("lease", memoryview(self.filesystem.get(PATH)), PATH), type=Lease)
        except FileNotFoundError:
            return None
        except StateError:
            return None  # torn: its writer crashed while it wrote

    def _is_free(self, lease: Lease) -> bool:
        if lease.expires_at_s <= self.clock():
            return True
        return lease.host == socket.gethostname() and not _is_alive(lease.process)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
