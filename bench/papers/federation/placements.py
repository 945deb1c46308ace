"""The placements of CQ1 to CQ6 that are measured: which blocks are in DuckDB, and what the product says of each.

A block is a subquery with groups, or the query itself. One block is placed by a hint, as a user would place it. Several
blocks the product does not take by hints; they run as `anabranch.place.statement_of` prints them, so that no placement is
left out because nobody can ask for it. *All in its words* is the whole query, the SELECTs too, as one statement in DuckDB's
own words: the paper's pure database plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, combinations

from anabranch.errors import AnabranchError
from anabranch.place.capabilities import DUCKDB
from anabranch.place.databases.embedded import DUCK, open_embedded
from anabranch.place.statement_of import placed
from anabranch.place.wishes import why_not_in
from anabranch.plan.query import Query
from anabranch.planning import Planning
from anabranch.sql import Catalog, parse_script
from bench.papers.federation.queries import CQ, PLUGS

ENGINE, WORDS = "nothing", "all, in its words"
MOST = 12
"""As many placements of a query are measured at most."""


@dataclass(frozen=True)
class Placement:
    """What is in DuckDB, and how to have it there."""

    name: str
    blocks: frozenset[str]
    query: Query | None
    """None: it cannot run."""
    sql: str | None = None
    """What a user writes for it; None: nothing does it."""
    refused: str = ""
    """What the product says to the hints that ask for it."""


def parsed(name: str, sql: str) -> Query:
    """A query over the plugs."""
    (bound,) = parse_script(f"{PLUGS} CREATE QUERY {name} AS {sql}", Catalog(databases=open_embedded)).queries
    return bound.query


def placements(name: str) -> list[Placement]:
    """All in the engine first, then each block alone, several, all; the whole in DuckDB's words last."""
    query = parsed(name, CQ[name])
    blocks = [block.name for block in query.blocks]
    found = [_placement(query, frozenset(some)) for some in _subsets(blocks)]
    columns = ", ".join(f"x.{column}" for column in query.output_schema.names)
    whole = f"SELECT {columns} FROM DATABASE {DUCK} ({CQ[name]}) x"
    return [*found[: MOST - 1], Placement(WORDS, frozenset(), parsed(name, whole), whole)]


def _subsets(blocks: list[str]) -> Iterator[tuple[str, ...]]:
    """The least first; all of them before those that lack one."""
    sizes = [0, 1, len(blocks), *range(2, len(blocks))]
    return chain.from_iterable(combinations(blocks, size) for size in dict.fromkeys(sizes))


def _placement(query: Query, blocks: frozenset[str]) -> Placement:
    called = {block: "the top" if block == query.name else block.rpartition(".")[2] for block in blocks}
    name = ", ".join(called[block] for block in sorted(blocks, key=lambda each: (each == query.name, each))) or ENGINE
    if not blocks:
        return Placement(name, blocks, query, CQ[query.name])
    hints = " ".join(
        f"PLACE({DUCK})" if block == query.name else f"PLACE({called[block]}, {DUCK})" for block in sorted(blocks)
    )
    sql = CQ[query.name].replace("SELECT", f"SELECT /*+ {hints} */", 1)
    try:
        return Placement(name, blocks, Planning().placed(parsed(query.name, sql)), sql)
    except AnabranchError as error:
        refused = str(error)
    unable = next(filter(None, (why_not_in(_asking(query), block, DUCKDB) for block in sorted(blocks))), "")
    made = None if unable else placed(_asking(query), dict.fromkeys(blocks, DUCK))
    return Placement(name, blocks, made, None, unable or refused)


def _asking(query: Query) -> Query:
    """A query without groups goes to a database by a hint of its own alone."""
    return query if query.grouping is not None else replace(query, place=DUCK)
