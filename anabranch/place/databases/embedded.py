"""Embedded databases by name: those that run text over windows of ours, in the worker of a slot."""

from __future__ import annotations

from anabranch.plan.statement import Embedded, StatementError

NAMES = ("duck", "duckdb")
"""What DuckDB is called in FROM DATABASE: it needs no set-up."""


def open_embedded(name: str) -> Embedded:
    """An embedded database; the caller closes it."""
    if name.lower() not in NAMES:
        raise StatementError(
            f"the database {name} runs no text: only an embedded one does",
            hint="write DATABASE duck (SELECT …), or a query of ours",
        )
    try:
        from anabranch.place.databases.duckdb import DuckDb  # a driver is loaded where a database is used
    except ImportError:
        raise StatementError("DuckDB is not installed", hint="install it: pip install 'anabranch[duckdb]'") from None
    return DuckDb()
