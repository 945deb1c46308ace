"""Embedded databases by name: those that run text over windows of ours, in the worker of a slot."""

from __future__ import annotations

from importlib.util import find_spec

from anabranch.plan.statement import Embedded, StatementError

DUCK = "duck"
NAMES = (DUCK, "duckdb")
"""What DuckDB is called in FROM DATABASE: it needs no set-up."""


def is_installed() -> bool:
    """Whether there is an embedded database."""
    return find_spec("duckdb") is not None


def plain_name(name: str) -> str:
    """One name for each embedded database, whatever a user calls it; others as they are.

    >>> plain_name("DuckDB"), plain_name("duck"), plain_name("crm")
    ('duck', 'duck', 'crm')
    """
    return DUCK if name.lower() in NAMES else name


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
