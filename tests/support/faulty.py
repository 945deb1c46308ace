"""A filesystem that fails on demand, to show what survives.

It wraps another one and counts its puts from 0; `plan` says which of them go wrong, and how. The five faults are what
real media and real clusters do: a process dies before, while or after it writes, a store shows an object late, and a
zombie attempt writes again what others have long gone past.

>>> from anabranch.storage.filesystem import MemoryFilesystem
>>> disk = FaultyFilesystem(MemoryFilesystem(), {1: Fault("tear", keep=2)})
>>> disk.put("a", [b"first"])
>>> disk.put("b", [b"second"])
Traceback (most recent call last):
...
tests.support.faulty.Crash: tear at put 1, of b
>>> disk.get("b").to_pybytes()
b'se'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from anabranch.storage.filesystem import Filesystem, Names, Part, byte_view

Kind = Literal["lose", "tear", "crash_after", "delay", "repeat"]


class Crash(BaseException):
    """The process would have died here; the test goes on as its successor, over the same filesystem."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one put.

    - lose: nothing is written, then Crash;
    - tear: the first `keep` bytes (half of them if None) appear under the final name, then Crash;
    - crash_after: everything is written, then Crash;
    - delay: the put returns, but `after` further operations do not see what it wrote;
    - repeat: after `after` further operations the same bytes are put again, over whatever is there by then.
    """

    kind: Kind
    after: int = 1
    keep: int | None = None


@dataclass(frozen=True)
class _Pending:
    last_unseen_operation: int
    path: str
    content: bytes


class FaultyFilesystem:
    """Behaves as `inner`, but for the puts that `plan` names by their ordinal.

    Every call counts as one operation. `puts` records the paths put so far, by ordinal: run a scenario once without
    faults to learn which ordinals there are. A successor process that still sees the delayed and repeated writes of its
    predecessor keeps using this object; `plan` may be replaced in between, ordinals go on.
    """

    def __init__(self, inner: Filesystem, plan: Mapping[int, Fault] | None = None) -> None:
        self.inner = inner
        self.plan = dict(plan or {})
        self.puts: list[str] = []
        self.operations = 0
        self._pending: list[_Pending] = []

    def put(self, path: str, parts: Sequence[Part]) -> None:
        self._tick()
        ordinal = len(self.puts)
        self.puts.append(path)
        fault = self.plan.get(ordinal)
        if fault is None:
            self.inner.put(path, parts)
            return
        content = b"".join(byte_view(part) for part in parts)
        if fault.kind == "tear":
            keep = len(content) // 2 if fault.keep is None else fault.keep
            self.inner.put(path, [content[:keep]])
        elif fault.kind in ("crash_after", "repeat"):
            self.inner.put(path, [content])
        if fault.kind in ("delay", "repeat"):
            self._pending.append(_Pending(self.operations + fault.after, path, content))
        else:
            raise Crash(f"{fault.kind} at put {ordinal}, of {path}")

    def get(self, path: str) -> pa.Buffer:
        self._tick()
        return self.inner.get(path)

    def get_part(self, path: str, offset: int, length: int) -> pa.Buffer:
        self._tick()
        return self.inner.get_part(path, offset, length)

    def list(self, directory: str) -> Names:
        self._tick()
        return self.inner.list(directory)

    def folders(self, directory: str) -> Names:
        self._tick()
        return self.inner.folders(directory)

    def unfinished(self, directory: str) -> Names:
        self._tick()
        return self.inner.unfinished(directory)

    def delete(self, path: str) -> None:
        self._tick()
        self.inner.delete(path)

    def remove_empty(self, directory: str) -> None:
        self._tick()
        self.inner.remove_empty(directory)

    def age_s(self, path: str) -> float:
        self._tick()
        return self.inner.age_s(path)

    def size_bytes(self, path: str) -> int:
        self._tick()
        return self.inner.size_bytes(path)

    def copy(self, path: str, target: str) -> None:
        self.put(target, [self.inner.get(path)])

    def settle(self) -> None:
        """Let every delayed and repeated write happen now, in the order of their puts."""
        pending, self._pending = self._pending, []
        for write in pending:
            self.inner.put(write.path, [write.content])

    def corrupt(self, path: str, position: int = -1) -> None:
        """Flip the bits of one byte of a stored file, by default the last."""
        content = bytearray(self.inner.get(path).to_pybytes())
        content[position] ^= 0xFF
        self.inner.put(path, [content])

    def _tick(self) -> None:
        self.operations += 1
        due = [write for write in self._pending if write.last_unseen_operation < self.operations]
        self._pending = [write for write in self._pending if write.last_unseen_operation >= self.operations]
        for write in due:
            self.inner.put(write.path, [write.content])
