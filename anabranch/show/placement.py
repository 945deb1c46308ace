"""Where the operators of a query run, for people: the place of each, what the plan uses, and what the next best would."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import wrap
from types import MappingProxyType
from typing import Any, Protocol

from anabranch.control.pace import Pace
from anabranch.place.choice import Choice
from anabranch.place.operators import Operator, Place
from anabranch.place.placement import Decision
from anabranch.plan.query import Query
from anabranch.plan.statement import IN_ENGINE
from anabranch.show.explain import WIDTH

UNTRUSTED = (
    "{0} was never measured, and a cost that was never measured is not trusted: operators stay in the engine unless a hint "
    "places them. anabranch calibrate --database {0} measures it"
)


class Folding(Protocol):
    """What the engine does when it takes a block over from a database, or makes the groups of an instant in its place."""

    @property
    def rows(self) -> float: ...

    @property
    def cpu_s(self) -> float: ...


NOT_KNOWN: Mapping[str, Folding] = MappingProxyType({})
NO_PACES: Mapping[str, Pace] = MappingProxyType({})


def placement_text(
    choice: Choice | None,
    query: Query,
    verbose: bool = False,
    folding: Mapping[str, Folding] = NOT_KNOWN,
    paces: Mapping[str, Pace] = NO_PACES,
) -> str | None:
    """A paragraph; None if there is no choice. Where all is in the engine because nobody ever measured the database, there
    is little to tell: only if it is asked for. `folding` is what blocks take on their way to the engine, as far as it is
    known, and `paces` how long the database took for blocks, beside what was calibrated."""
    if choice is None or not (verbose or choice.in_database or choice.decision is not None):
        return None
    width = max(len(each.name) for each in choice.root)
    lines = [line for each in choice.root for line in _operator_lines(choice, each, width)]
    if choice.decision is None:
        lines += wrap(UNTRUSTED.format(choice.database), WIDTH - 2)
    else:
        lines.append(f"{_figures(choice.decision)}; plans looked at: {choice.examined}")
        if choice.other is not None:
            lines += wrap(f"next best: {_where(choice, choice.other)}: {_figures(choice.other)}", WIDTH - 2)
        for block, pace in _measured(choice, paces).items():
            counts = "" if pace.counts else ", which may be chance: what was calibrated stands"
            lines += wrap(f"measured: {block} in {choice.database} takes {pace}{counts}", WIDTH - 2)
    for name, sql in _asked(query).items():
        lines += wrap(f"{name} in {choice.database}: {sql}", WIDTH - 2, subsequent_indent="  ", break_long_words=False,
                      break_on_hyphens=False)  # fmt: skip
        if (found := folding.get(name)) is not None:
            lines += wrap(f"{_when(query)} the engine {_does(query, name, found)}: {found.cpu_s:.2g} s of CPU",
                          WIDTH - 2, subsequent_indent="  ")  # fmt: skip
    for refused in _refused(query):
        lines += wrap(refused, WIDTH - 2, subsequent_indent="  ")
    return "\n  ".join(["places", *lines])


def _refused(query: Query) -> list[str]:
    """What a query that a database may run a block of does not get meanwhile."""
    found = []
    if (database := query.places.get(query.name)) is not None:
        found.append(f"refused while {database} may run {query.name}: another plan, groups or selects elsewhere")
        if len(query.inputs) > 1:
            found[-1] += "; and its join is shared with no other query"
    if query.places and len(query.blocks) > 1:
        found.append(f"refused: to have another block of {query.name} in a database as well")
    return found


def _measured(choice: Choice, paces: Mapping[str, Pace]) -> dict[str, Pace]:
    """The paces of blocks that may go to the database."""
    known = {block: paces[block].beside(call.round_trip_s) for block, call in choice.calls.items() if block in paces}
    return {block: pace for block, pace in known.items() if pace.batches}


def _when(query: Query) -> str:
    """When the engine folds rows of a block that a database runs, and whether batches share that."""
    fails = ", and at once in a batch in which that fails," if query.database_failure == IN_ENGINE else ","
    return f"to take over from the database, within the pause of each batch{fails}"


def _does(query: Query, name: str, found: Folding) -> str:
    block = next(block for block in query.blocks if block.name == name)
    if len(block.inputs) == 1:
        return f"folds {found.rows:,.0f} rows of {name}"
    if block.grouping is None:
        return f"derives the indexes of {name}, of {found.rows:,.0f} rows"
    return f"joins the rows of {name}, and folds {found.rows:,.0f} combinations"


def _asked(query: Query) -> dict[str, str]:
    """What databases are asked for: the statements that blocks of ours became, and texts of a user's, by the names of the
    blocks."""
    return {b.name: b.statement.sql for b in query.blocks if b.statement is not None}


def _operator_lines(choice: Choice, operator: Operator, width: int) -> list[str]:
    """An operator and its place; if it must stay in the engine, why."""
    place, why = choice.place_of(operator), ""
    if operator.why_engine and Place.DATABASE not in operator.places:
        why = f": {operator.why_engine}"
    elif operator.assumed and len(operator.places) > 1:
        why = f", and stays: {operator.assumed}"
    hang = " " * (width + 2)
    first, *rest = wrap(f"{place}{why}", WIDTH - 2 - len(hang))
    return [f"{operator.name:<{width}}  {first}", *(f"{hang}{line}" for line in rest)]


def _figures(found: Decision) -> str:
    feasible = "feasible" if found.is_feasible else "not feasible"
    return f"bottleneck C_b {found.bottleneck:.3g}, {feasible}; in all C_u {found.use.total:.3g} cores"


def _where(choice: Choice, found: Decision) -> str:
    moved = [each.name for each in choice.root if each.name in found.in_database]
    return f"{', '.join(moved)} in {choice.database}" if moved else "all in the engine"


def placement_json(
    choice: Choice | None,
    query: Query,
    folding: Mapping[str, Folding] = NOT_KNOWN,
    paces: Mapping[str, Pace] = NO_PACES,
) -> dict[str, Any] | None:
    """The same as plain values."""
    if choice is None:
        return None
    return {
        "database": choice.database,
        "measured": choice.decision is not None,
        "operators": [
            {"name": each.name, "kind": each.kind.value, "place": choice.place_of(each),
             "may": sorted(place.value for place in each.places), "block": each.block,
             "why_engine": each.why_engine or None, "assumed": each.assumed or None}
            for each in choice.root
        ],
        "statements": _asked(query),
        "refused": _refused(query),
        "folding": {name: {"rows": each.rows, "cpu_s": each.cpu_s} for name, each in folding.items()},
        "paces": {
            block: {"ratio": pace.ratio, "batches": pace.batches, "counts": pace.counts}
            for block, pace in _measured(choice, paces).items()
        },
        "chosen": _plain(choice.decision),
        "next": _plain(choice.other),
        "examined": choice.examined,
    }  # fmt: skip


def _plain(found: Decision | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"in_database": sorted(found.in_database), "c_b": found.bottleneck, "c_u": found.use.total,
            "feasible": found.is_feasible, "examined": found.examined, "exact": found.is_exact}  # fmt: skip
