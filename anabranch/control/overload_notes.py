"""What the queries of a pipeline do under overload, as data: a start tells whether that has changed, and queries that were
added while others ran keep their policy, although no script declares them.

    <checkpoint>/pipeline-0/overload
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict

import msgspec

from anabranch.errors import DamagedStateError, SessionError
from anabranch.plan.overload import Overload
from anabranch.storage.filesystem import Filesystem
from anabranch.storage.record import seal, unseal

OVERLOAD = "overload"


def write_overload(pipeline: Filesystem, overload: Overload) -> None:
    """Notes what queries of a pipeline do under overload, if that is not noted."""
    if read_overload(pipeline) != overload:
        pipeline.put(OVERLOAD, [seal(OVERLOAD, msgspec.json.encode(asdict(overload)))])


def read_overload(pipeline: Filesystem) -> Overload | None:
    """What queries of a pipeline did under overload when it was last started; None if that is not known.

    >>> from anabranch.storage.filesystem import MemoryFilesystem
    >>> disk = MemoryFilesystem()
    >>> write_overload(disk, Overload("adapt joins", allowances={"a": 0.4}))
    >>> read_overload(disk) == Overload("adapt joins", allowances={"a": 0.4}), read_overload(MemoryFilesystem())
    (True, None)
    """
    with contextlib.suppress(FileNotFoundError, DamagedStateError, SessionError):
        return Overload(**msgspec.json.decode(unseal(OVERLOAD, memoryview(pipeline.get(OVERLOAD)), OVERLOAD)))
    return None


def changed_text(before: Overload | None, now: Overload) -> str:
    """How a policy differs from the one that held before (None: nothing was said); nothing if it does not."""
    old = before or Overload()
    if old == now:
        return ""
    told = f"overload policy {now.text} instead of {old.text}"
    if old.policy.may_lose and not now.policy.may_lose:
        return f"{told}: nothing is lost from now on; what was lost stays so"
    if now.policy.may_lose and not old.policy.may_lose:
        return f"{told}: results may be missing from now on, as many as progress tells"
    return told
