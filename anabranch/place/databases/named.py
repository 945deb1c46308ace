"""A database and its tables as a user names them: nothing is connected here."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.errors import SessionError


@dataclass(frozen=True)
class TableInDatabase:
    """A table of a database, by the name of the database and its own there."""

    database: str
    relation: str


@dataclass(frozen=True)
class Named:
    """A database. Where it is, and who we are there, is told by the machine (`settings.py` beside this)."""

    name: str

    def table(self, relation: str) -> TableInDatabase:
        """A table of it, as `schema.table`; names with capitals stand in `"…"`."""
        if not isinstance(relation, str) or not relation:
            raise SessionError(f"the name of a table in the database {self.name} is a text: not {relation!r}")
        return TableInDatabase(self.name, relation)


def database(name: str) -> Named:
    """The database of a name.

    >>> database("crm").table("public.customers")
    TableInDatabase(database='crm', relation='public.customers')
    """
    if not isinstance(name, str) or not name:
        raise SessionError(f"the name of a database is a text: not {name!r}")
    return Named(name)
