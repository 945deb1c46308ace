"""What was decided about a query whose join is contained in a larger one, in words and as plain values."""

from __future__ import annotations

from typing import Any

from anabranch.cost.model import Cost
from anabranch.share.taking_in import TakingIn
from anabranch.show.figures import cores_text, show_bytes


def taking_in_text(decided: TakingIn) -> str:
    """A sentence: what a query does, and what it would add as a member of the larger join, and apart from it."""
    what = "takes its combinations from there" if decided.is_member else "runs apart"
    return (
        f"its join is contained in that of {decided.host}, and {what}: as a member it adds {_text(decided.member)}, apart "
        f"{_text(decided.apart)}. {decided.reason[0].upper()}{decided.reason[1:]}"
    )


def taking_in_json(decided: TakingIn | None) -> dict[str, Any] | None:
    """The same as plain values."""
    if decided is None:
        return None
    return {
        "in": decided.host, "is_member": decided.is_member, "reason": decided.reason,
        "member": {"cpu": decided.member.cpu, "memory": decided.member.memory},
        "apart": {"cpu": decided.apart.cpu, "memory": decided.apart.memory},
    }  # fmt: skip


def _text(cost: Cost) -> str:
    return f"{cores_text(cost.cpu)} and {show_bytes(cost.memory)}"
