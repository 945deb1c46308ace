"""What is told of an overload, in words and figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.adapt.forecast import Allowances, Forecast


def limiting_details(
    query: str, load: float, behind_s: float, slack_s: float, expected: Forecast, found: Allowances, completeness: float
) -> dict[str, Any]:
    """The figures of limits of a query: for each input the share of its rows that looks up, in all slots together."""
    arrived, allowed, slots = dict[str, float](), dict[str, float](), set[int]()
    for slot, each in expected.slots.items():
        for (name, alias), rows in each.arrived.items():
            if name == query and each.directions[name, alias].pinned_share is None:
                share = each.share(found, (name, alias), slot)
                arrived[alias] = arrived.get(alias, 0.0) + rows
                allowed[alias] = allowed.get(alias, 0.0) + share * rows
                slots |= {slot} if share < 1 else set()
    shares = {alias: allowed[alias] / rows if rows else 1.0 for alias, rows in arrived.items()}
    return {
        "load": load, "behind_s": behind_s, "slack_s": slack_s, "shares": shares, "completeness": completeness,
        "slots": len(slots), "all_slots": len(expected.slots),
    }  # fmt: skip


def limiting(details: Mapping[str, Any]) -> str:
    """
    >>> print(limiting({"load": 2.1, "shares": {"a": 0.4, "b": 1.0}, "completeness": 0.74, "slots": 1, "all_slots": 4}))
    streams bring 2.1 times what there is time for: 40 % of rows of a look up their partners, in 1 of 4 slots; about 74 % \
of the results are expected
    """
    limited = [f"{share * 100:.3g} % of rows of {alias}" for alias, share in details["shares"].items() if share < 1]
    where = f", in {details['slots']} of {details['all_slots']} slots" if details["slots"] < details["all_slots"] else ""
    return (
        f"streams bring {details['load']:.2g} times what there is time for: {' and '.join(limited)} look up their "
        f"partners{where}; about {details['completeness'] * 100:.0f} % of the results are expected"
    )


def lifted(load: float) -> str:
    """
    >>> print(lifted(0.62))
    streams bring 0.62 of what there is time for: every row looks up its partners again
    """
    return f"streams bring {load:.2g} of what there is time for: every row looks up its partners again"


def shedding(load: float, kept: float) -> str:
    return f"streams bring {load:.2g} times what there is time for: {kept * 100:.0f} % of their rows are kept"


def shedding_ends(load: float) -> str:
    return f"streams bring {load:.2g} of what there is time for: all their rows are kept again"


def cannot_help(load: float, least: float, may_shed: bool) -> str:
    """
    >>> print(cannot_help(1.8, 1.7, False))
    streams bring 1.8 times what there is time for, and without looking up results it would still be 1.7 times: the \
pipeline falls behind; overload=Overload(may_shed=True) would drop rows
    """
    rest = "rows are dropped" if may_shed else "the pipeline falls behind; overload=Overload(may_shed=True) would drop rows"
    times = f"{load:.2g} times what there is time for"
    return f"streams bring {times}, and without looking up results it would still be {least:.2g} times: {rest}"


def failing(load: float, behind_s: float, batches: int, slack_s: float) -> str:
    return (
        f"streams have brought {load:.2g} times what there is time for in {batches} batches, and the pipeline is "
        f"{behind_s:.3g} s behind, where {slack_s:.3g} s are allowed: give it more cores or a longer FRESHNESS, or choose "
        'a policy that may lose results: Overload(policy="adapt joins") or "shed"'
    )
