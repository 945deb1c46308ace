"""What hints want of databases (`/*+ PLACE(x, duck) */`), and why they cannot have it.

A database runs a block of a query if it is known by its name and computes every expression of the block with exactly our
meaning. A block that a user places runs there whatever it costs; it is refused, when the query is declared, if it cannot.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from anabranch.errors import PlanError, known_names
from anabranch.place.capabilities import Abilities
from anabranch.place.databases.embedded import plain_name
from anabranch.place.statement_of import Places
from anabranch.place.tree import operators_of
from anabranch.plan.query import DATABASE, ENGINE, Query, Table

Databases = Mapping[str, Abilities]
"""The databases that run blocks of ours, by name: what each says it can compute."""


def wished_places(query: Query, databases: Databases, changing: Collection[str] = ()) -> Places:
    """The databases that hints want for blocks of a query, by the names of the blocks; refuses what cannot be had. Stored
    tables that are `changing` are read again while queries run."""
    wished = {name: place for name, place in query.hinted.items() if not _is_there(query, name, place)}
    wanted = {name: place for name, place in wished.items() if place != ENGINE}
    if len(wanted) > 1:
        names = " and ".join(_called(name, query) for name in wanted)
        raise PlanError(
            f"query {query.name} places {names} in databases: one block of a query can be; leave out a hint"
        )
    for name, place in wanted.items():
        if read_again := [s.name for s in _block(query, name).sources if isinstance(s, Table) and s.name in changing]:
            raise PlanError(
                f"query {query.name}: {_called(name, query)} cannot run in {plain_name(place)}: it joins {read_again[0]}, "
                f"which is read again while queries run; leave out {_hint(name, place, query)}"
            )
    return {name: _database(query, name, place, databases) for name, place in wanted.items()}


def _block(query: Query, name: str) -> Query:
    return next(each for each in query.blocks if each.name == name)


def _is_there(query: Query, block: str, place: str) -> bool:
    """Whether a block is in the words of a database, where a hint wants it: it runs nowhere else."""
    asked = _block(query, block).may_ask
    if asked is None or asked.is_printed:
        return False
    if place != DATABASE and plain_name(place) != plain_name(asked.database):
        called = _called(block, query)
        raise PlanError(
            f"query {query.name}: {called} is in the words of {asked.database}, and runs nowhere else; leave out "
            f"{_hint(block, place, query)}"
        )
    return True


def _database(query: Query, block: str, place: str, databases: Databases) -> str:
    """The first of the databases that a hint allows which can run a block."""
    hint = _hint(block, place, query)
    name = plain_name(place)
    if not databases or (place != DATABASE and name not in databases):
        known = known_names(place, databases) if databases else "no database here runs blocks of queries"
        raise PlanError(f"query {query.name}: {hint} cannot be done: {known}")
    able = databases if place == DATABASE else {name: databases[name]}
    reasons = {each: why_not_in(query, block, abilities) for each, abilities in able.items()}
    if (found := next((each for each, why in reasons.items() if not why), None)) is not None:
        return found
    where, why = next(iter(reasons.items()))
    raise PlanError(f"query {query.name}: {_called(block, query)} cannot run in {where}: {why}; leave out {hint}")


def places_kept(query: Query, before: Places) -> Places:
    """The databases of the blocks of a query that goes on with its state: where hints want them, else where they ran."""
    hinted, there = query.hinted, {block.name for block in query.blocks}
    ran = {name: place for name, place in before.items() if name in there and name not in hinted}
    return ran | {name: place for name, place in query.places.items() if name in hinted}


def why_not_in(query: Query, block: str, abilities: Abilities) -> str:
    """Why a block of a query cannot run in a database; "" if it can."""
    found = (each.why_engine for each in operators_of(query, abilities=abilities) if each.block == block)
    return next(found, "it has no groups")


def _called(block: str, query: Query) -> str:
    """What a block is called in the query."""
    return "its outermost block" if block == query.name else block.rpartition(".")[2]


def _hint(block: str, place: str, query: Query) -> str:
    return f"PLACE({place})" if block == query.name else f"PLACE({_called(block, query)}, {place})"
