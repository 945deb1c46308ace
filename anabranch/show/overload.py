"""What a query does under overload, for people: its policy, what it promises of freshness, how far it may fall behind, what
may be lost, and what is refused meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

from anabranch.control.completeness import LeftOut
from anabranch.plan.lengths import length_text
from anabranch.plan.overload import Clock, Overload, Policy
from anabranch.plan.partial import has_freshness, late_suppressed, slack_us
from anabranch.plan.query import Query
from anabranch.show.explain import WIDTH

BECOMES = {
    Policy.FALL_BEHIND: "all results are computed, late if need be",
    Policy.ADAPT_JOINS: (
        "where there is not CPU enough, fewer rows look up their partners, fewest where lookups give least for their CPU. "
        "Results may be missing, none is wrong or repeated; progress tells how many of them there are (completeness)"
    ),
    Policy.SHED: (
        "where there is not CPU enough, rows are dropped before they are joined, at random. Results may be missing, none is "
        "wrong or repeated; progress tells how many of them there are (completeness)"
    ),
    Policy.FAIL: "the run ends with an error when it falls behind further than results stay fresh",
}
UNTIL = {
    Policy.FALL_BEHIND: "before results are suppressed as too old",
    Policy.ADAPT_JOINS: "before anything is limited",
    Policy.SHED: "before rows are dropped",
    Policy.FAIL: "before the run ends",
}
CLOCKS = {
    None: "by the wall clock where the trigger is processingTime, else by event times",
    Clock.WALL: "by the wall clock",
    Clock.EVENT: "by event times",
}
REFUSED = (
    "a shared join, a parallel track, groups or selects that go elsewhere, other slices, and history for queries that are "
    "added or altered"
)


def overload_text(
    query: Query, overload: Overload, apart: Sequence[str] = (), left_out: LeftOut | None = None
) -> str | None:
    """A paragraph; None if the query is exact, and promises nothing of freshness. `apart` are the queries over its streams
    that run in other pipelines because they do something else under overload; `left_out` is what its newest batches left
    out."""
    is_exact = left_out is None or left_out.completeness is None
    if overload == Overload() and not has_freshness(query) and not apart and is_exact:
        return None
    becomes = BECOMES[overload.policy]
    if overload.policy is Policy.FALL_BEHIND and has_freshness(query):
        becomes = "nothing is limited, and results that would be too old are suppressed and counted"
    lines = [f"policy {overload.text}: {becomes}"]
    for i in query.inputs:
        if i.freshness_us is not None:
            lines.append(f"no result has a row of {i.alias} that is older than {length_text(i.freshness_us)}")
    if (slack := slack_us(query)) is not None:
        lines.append(f"freshness is told {CLOCKS[overload.clock]}")
        most = f"by {length_text(slack)} " if slack else "by nothing "
        lines.append(f"it may fall behind {most}{UNTIL[overload.policy]}: that is the least freshness beyond a window")
    lines += [f"warning: {text}" for text in late_suppressed(query)]
    if overload.policy.may_lose:
        lines.append(f"refused while results may be lost: {REFUSED}")
    elif has_freshness(query):
        lines.append("its join is not shared: what is too old for one query is not for another")
    if apart:
        lines.append(f"not in one pipeline with {', '.join(apart)}: under overload these do something else")
    if left_out is not None:
        lines.append(str(left_out))
    wrapped = ["\n    ".join(wrap(line, WIDTH - 4, break_long_words=False, break_on_hyphens=False)) for line in lines]
    return "\n  ".join(["under overload", *wrapped])


def overload_json(
    query: Query, overload: Overload, apart: Sequence[str] = (), left_out: LeftOut | None = None
) -> dict[str, Any]:
    """The same as plain values."""
    return {
        "policy": str(overload.policy), "may_lose": overload.policy.may_lose,
        "clock": None if overload.clock is None else str(overload.clock), "cpu": overload.cpu,
        "allowances": dict(overload.allowances), "algorithm": str(overload.algorithm), "may_shed": overload.may_shed,
        "freshness_us": {i.alias: i.freshness_us for i in query.inputs if i.freshness_us is not None},
        "slack_us": slack_us(query), "warnings": list(late_suppressed(query)), "apart": list(apart),
        "left_out": None if left_out is None else left_out.details,
    }  # fmt: skip
