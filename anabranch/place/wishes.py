"""What hints want of databases (`/*+ PLACE(x, duck) */`), and why they cannot have it.

A database runs a block of a query if it is known by its name and computes every expression of the block with exactly our
meaning. A block that a user places runs there whatever it costs; it is refused, when the query is declared, if it cannot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from anabranch.errors import PlanError, known_names
from anabranch.place.operators import Place
from anabranch.place.tree import CanRun, operators_of
from anabranch.plan.query import DATABASE, ENGINE, Derived, Input, Query

Databases = Mapping[str, CanRun]
"""The databases that run blocks, by name: what each says it can compute."""


def placed_blocks(query: Query) -> Iterator[tuple[Query, Input]]:
    """The subqueries that hints want in a database, each with the query around it."""
    for block in query.blocks:
        for i in block.inputs:
            if i.place not in (None, ENGINE) and isinstance(i.source, Derived):
                yield block, i


def check_wishes(query: Query, databases: Databases) -> None:
    """Refuses a query of which a database shall run a block that it cannot."""
    wished = list(placed_blocks(query))
    if len(wished) > 1:
        names = " and ".join(i.alias for _, i in wished)
        raise PlanError(
            f"query {query.name} places {names} in databases: one block of a query can be; leave out a hint"
        )
    for block, i in wished:
        able = _able(i, query, databases)
        kept = [_kept(block, i, can_run) for can_run in able.values()]
        if all(kept):
            where = ", ".join(able)
            raise PlanError(
                f"query {query.name}: {i.alias} cannot run in {where}, because {kept[0]} would not mean the same there; "
                f"leave out PLACE({i.alias}, {i.place})"
            )


def _able(i: Input, query: Query, databases: Databases) -> Databases:
    """The databases that a hint allows."""
    if i.place == DATABASE and databases:
        return databases
    if i.place in databases:
        return {str(i.place): databases[str(i.place)]}
    known = known_names(str(i.place), databases) if databases else "no database here runs blocks of queries"
    raise PlanError(f"query {query.name}: PLACE({i.alias}, {i.place}) cannot be done: {known}")


def _kept(block: Query, i: Input, can_run: CanRun) -> str:
    """The first operator of a subquery that stays in the engine although it is not at a stream; "" if none does."""
    root = operators_of(block, can_run=can_run)
    for each in root:
        is_in = each.name.endswith(f" {i.alias}") and not each.name.startswith("SELECT")
        if is_in and Place.DATABASE not in each.places:
            return f"its {each.kind}"
    return ""
