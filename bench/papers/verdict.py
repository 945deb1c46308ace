"""A published claim, and what was measured of it: reproduced, partly, or not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def verdict(where: str, claim: str, holds: bool | None, measured: str) -> dict[str, Any]:
    """`holds` is None for what holds in part."""
    return {"where": where, "claim": claim, "verdict": {True: "reproduced", False: "not", None: "partly"}[holds],
            "measured": measured}  # fmt: skip


def how_far(holds: Iterable[bool]) -> bool | None:
    """True if all hold, False if none does, None if some do.

    >>> how_far([True, True]), how_far([True, False]), how_far([False])
    (True, None, False)
    """
    each = list(holds)
    return True if all(each) else None if any(each) else False
