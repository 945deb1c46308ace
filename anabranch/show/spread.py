"""How rows are spread over slots, for people (`spread_text`) and for programs (`spread_json`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from anabranch.balance.partition import MOST_COPIED_BYTES
from anabranch.plan.distribution import Distribution, all_inputs, name_of
from anabranch.plan.query import Query, Table


class Origin(Enum):
    """Who says how many slots there are."""

    ASKED = "as asked"
    CHECKPOINT = "as the checkpoint has"
    SPARK = "Spark's parallelism"
    MACHINE = "this machine's cores"


@dataclass(frozen=True)
class Slots:
    """How many slots a query is spread over, and who says so."""

    count: int
    origin: Origin
    committed: int | None = None
    """How many the newest commit of the query has; None: there is no commit."""

    def __str__(self) -> str:
        return f"{_slots(self.count)} ({self.origin.value})"


def spread_text(query: Query, distribution: Distribution, slots: Slots) -> str:
    """A distribution of a query as written, as an indented text."""
    grid, inputs = distribution.grid, all_inputs(query)
    until = "" if slots.origin is Origin.CHECKPOINT else ", fixed when the query first starts"
    lines = ["spread", f"  over {slots}{until}"]
    if slots.committed is not None and slots.committed != grid.cells:
        lines.append(f"  the checkpoint has {_slots(slots.committed)}: from it the query goes on only with as many")
    lines += [f"  {name} is {alias} in {block}" for name, (alias, block) in _block_names(query).items()]
    if distribution.needs_no_exchange:
        return "\n".join([*lines, *_unexchanged(query)])
    if grid.cells < slots.count:
        lines.append("  all rows go to one of them: there is no key by which every part of the query can be spread")
    for dimension, share in zip(grid.dimensions, grid.shares, strict=True):
        if dimension.is_fixed:
            lines.append(f"  in the first of {share} parts, by which only others are spread that run a larger join")
            continue
        lines.append(f"  {dimension} in {share} parts")
    for alias in inputs.aliases:
        if (copies := len(grid.offsets(alias))) > 1:
            lines.append(f"  rows of {alias} go to {copies} slots each")
    if distribution.groups_span_slots and grid.cells > 1:
        lines.append("  a group may have rows in several slots: what each slot has of it is combined")
    lines.append(f"  replication {_replication(distribution, inputs):.2f} rows sent per row, at equal rates")
    return "\n".join(lines)


def spread_json(query: Query, distribution: Distribution, slots: Slots) -> dict[str, Any]:
    """The same as plain values."""
    grid, inputs = distribution.grid, all_inputs(query)
    return {
        "slots": slots.count,
        "slots_from": slots.origin.name.lower(),
        "slots_of_checkpoint": slots.committed,
        "names": [{"name": n, "alias": alias, "block": block} for n, (alias, block) in _block_names(query).items()],
        "dimensions": [{"by": str(d), "parts": share} for d, share in zip(grid.dimensions, grid.shares, strict=True)],
        "copies": {alias: len(grid.offsets(alias)) for alias in inputs.aliases},
        "needs_no_exchange": distribution.needs_no_exchange,
        "groups_span_slots": distribution.groups_span_slots,
        "replication": 1.0 if distribution.needs_no_exchange else _replication(distribution, inputs),
    }


def _unexchanged(query: Query) -> list[str]:
    lines = ["  rows stay where they come in: none is exchanged"]
    tables = [i.alias for i in query.inputs if isinstance(i.source, Table)]
    if tables:
        most = f"at most {MOST_COPIED_BYTES >> 20} MiB when the query first starts"
        lines.append(f"  every slot has all rows of {', '.join(tables)}, if that is {most}")
    return lines


def _block_names(query: Query) -> dict[str, tuple[str, str]]:
    """What inputs of a query with subqueries are called among those of all blocks; nothing where there is one block."""
    if len(query.blocks) == 1:
        return {}
    known = {i.alias for i in all_inputs(query).inputs}
    names = {name_of(at, i.alias): (i.alias, b.name) for at, b in enumerate(query.blocks) for i in b.inputs}
    return {name: found for name, found in names.items() if name in known}


def _replication(distribution: Distribution, inputs: Query) -> float:
    return distribution.grid.replication(dict.fromkeys(inputs.aliases, 1.0))


def _slots(count: int) -> str:
    return f"{count} slot{'s' if count != 1 else ''}"
