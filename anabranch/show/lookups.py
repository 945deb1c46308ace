"""How tables in databases come to the rows of a query, for people: which way is taken when, and by which figures."""

from __future__ import annotations

from collections.abc import Callable
from textwrap import wrap
from typing import Any

from anabranch.optimize.planner import show_bytes
from anabranch.place.reading import LONGEST_S, MOST_BYTES, LookupCosts
from anabranch.plan.lookups import enriched_levels
from anabranch.plan.query import DATABASE, ENGINE, STATIC, Enriched, Query
from anabranch.show.explain import WIDTH

CostsOf = Callable[[Enriched], LookupCosts | None]
"""What was measured of the database that rows of a stream look up in; None: nothing was."""


def lookups_text(query: Query, costs_of: CostsOf) -> str | None:
    """A paragraph; None if the query looks nothing up."""
    lines = ["lookups"]
    for source in enriched_levels(query):
        table, costs = source.table, costs_of(source)
        keys = ", ".join(column for column, _ in source.keys)
        told = f"{table.name} in {table.database}, by {keys}, for rows of {source.base.name}: {_why(source, costs)}"
        lines += wrap(told, WIDTH - 2)
    return "\n  ".join(lines) if len(lines) > 1 else None


def _why(source: Enriched, costs: LookupCosts | None) -> str:
    table = source.table
    bounds = f"as long as it has no more than {show_bytes(MOST_BYTES)} and takes no longer than {LONGEST_S:g} s to read"
    if source.place == DATABASE:
        return "looked up in every batch: a hint says so"
    if source.place == ENGINE:
        way = "read once and kept in the worker" if table.reading == STATIC else "read whole in every batch"
        return f"{way}: a hint says so, and as long as it has no more than {show_bytes(MOST_BYTES)}"
    if costs is None:
        command = f"anabranch calibrate --database {table.database} --table {table.relation} --key {source.keys[0][0]}"
        return (
            f"looked up in every batch. Lookups in {table.database} were never measured, and a cost that was never measured "
            f"is not trusted: {command} measures them"
        )
    figures = (
        f"a round trip takes {costs.round_trip_s * 1e3:.2g} ms, a key {costs.key_s * 1e6:.2g} µs, a row that is read "
        f"{costs.row_s * 1e6:.2g} µs"
    ) + _since(costs)
    if table.reading == STATIC:
        return (
            f"looked up until that has taken as long as it takes to read the table whole; then it is read once and kept in "
            f"the worker, {bounds}. {figures}"
        )
    if costs.share_at_par == float("inf"):
        return f"looked up in every batch: a key takes no time that could be measured. {figures}"
    return (
        f"looked up, or read whole in a batch where a slot has more keys than {costs.share_at_par:.2g} of the rows of the "
        f"table, {bounds}. {figures}"
    )


def _since(costs: LookupCosts) -> str:
    """What batches have measured since, where that is not what was calibrated."""
    told = {"lookups": costs.lookup_pace, "readings of the table": costs.whole_pace}
    since = [f"{what} take {pace:.2g} times as long" for what, pace in told.items() if pace != 1.0]
    return f"; by what batches have measured since, {' and '.join(since)}" if since else ""


def lookups_json(query: Query, costs_of: CostsOf) -> list[dict[str, Any]]:
    """The same as plain values."""
    found = []
    for source in enriched_levels(query):
        table, costs = source.table, costs_of(source)
        measured = None if costs is None else {
            "round_trip_s": costs.round_trip_s, "key_s": costs.key_s, "row_s": costs.row_s,
            "share_at_par": costs.share_at_par, "lookup_pace": costs.lookup_pace, "whole_pace": costs.whole_pace,
        }  # fmt: skip
        found.append({
            "stream": source.name, "database": table.database, "table": table.relation,
            "keys": [column for column, _ in source.keys], "reading": table.reading, "place": source.place,
            "measured": measured,
        })  # fmt: skip
    return found
