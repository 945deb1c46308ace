"""The unit costs of this machine: those that `anabranch calibrate` measured and remembered, else the usual ones."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import msgspec

from anabranch.cost.model import UnitCosts

FORMAT = 4

DEFAULT = UnitCosts(
    insert=70e-9, delete=0.0, join=55e-9, lookup=5e-9, lookup_run=4e-9, rekey=40e-9, view_insert=75e-9,
    accept=110e-9, result=20e-9, fold=80e-9, step=100e-6, upkeep=100e-6, batch=3e-3, counts_keys=True, index_bytes=19.5,
    view_row_bytes=0.0, view_part_bytes=8.0, view_index_bytes=27.0, keeps_segments=True, slack_s=2.0, view_slack_s=1.5,
)  # fmt: skip
"""For a machine that was never calibrated."""


class _Stored(msgspec.Struct):
    format: int
    host: str
    units: dict[str, float]


def cache_path() -> Path:
    """Where the costs of this machine are remembered."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(root) / "anabranch" / f"costs-{socket.gethostname()}.json"


def remember(units: UnitCosts) -> Path:
    """Keeps the costs for later runs on this machine."""
    path = cache_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = {f: float(getattr(units, f)) for f in UnitCosts.__dataclass_fields__ if getattr(units, f) is not None}
    unfinished = path.with_suffix(f".{os.getpid()}.tmp")
    unfinished.write_bytes(msgspec.json.encode(_Stored(FORMAT, socket.gethostname(), numbers)))
    unfinished.replace(path)
    return path


def remembered() -> UnitCosts | None:
    """The costs that were measured on this machine, if they were."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        stored = msgspec.json.decode(cache_path().read_bytes(), type=_Stored)
        if stored.format == FORMAT:
            known = {k: v for k, v in stored.units.items() if k in UnitCosts.__dataclass_fields__}
            flags = {"counts_keys": True, "keeps_segments": True}
            return UnitCosts(**{**known, **flags})  # type: ignore[arg-type]
    return None


def unit_costs() -> UnitCosts:
    """The costs of this machine: measured ones, else the usual."""
    return remembered() or DEFAULT
