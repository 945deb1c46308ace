"""Where the operators of a query run, for people: the place of each, what the plan uses, and what the next best would."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

from anabranch.place.choice import Choice
from anabranch.place.placement import Decision
from anabranch.show.explain import WIDTH

UNTRUSTED = (
    "{0} was never measured, and a cost that was never measured is not trusted: operators stay in the engine unless a hint "
    "places them. anabranch calibrate --database {0} measures it"
)


def placement_text(choice: Choice | None) -> str | None:
    """A paragraph; None if there is no choice."""
    if choice is None:
        return None
    width = max(len(each.name) for each in choice.root)
    lines = [f"{each.name:<{width}}  {choice.place_of(each)}" for each in choice.root]
    if choice.decision is None:
        lines += wrap(UNTRUSTED.format(choice.database), WIDTH - 2)
    else:
        lines.append(f"{_figures(choice.decision)}; {choice.decision.examined} plans looked at")
        if choice.other is not None:
            lines += wrap(f"next best: {_where(choice, choice.other)}: {_figures(choice.other)}", WIDTH - 2)
    return "\n  ".join(["places", *lines])


def _figures(found: Decision) -> str:
    feasible = "feasible" if found.is_feasible else "not feasible"
    return f"bottleneck C_b {found.bottleneck:.3g}, {feasible}; in all C_u {found.use.total:.3g} cores"


def _where(choice: Choice, found: Decision) -> str:
    moved = [each.name for each in choice.root if each.name in found.in_database]
    return f"{', '.join(moved)} in {choice.database}" if moved else "all in the engine"


def placement_json(choice: Choice | None) -> dict[str, Any] | None:
    """The same as plain values."""
    if choice is None:
        return None
    return {
        "database": choice.database,
        "measured": choice.decision is not None,
        "operators": [
            {"name": each.name, "kind": each.kind.value, "place": choice.place_of(each),
             "may": sorted(place.value for place in each.places)}
            for each in choice.root
        ],
        "chosen": _plain(choice.decision),
        "next": _plain(choice.other),
    }  # fmt: skip


def _plain(found: Decision | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"in_database": sorted(found.in_database), "c_b": found.bottleneck, "c_u": found.use.total,
            "feasible": found.is_feasible, "examined": found.examined, "exact": found.is_exact}  # fmt: skip
