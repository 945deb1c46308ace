"""Names in a query: which input and which column a word means. Case does not matter, as in Spark."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.errors import AmbiguousColumnError, UnknownColumnError, UnsupportedSqlError, did_you_mean
from anabranch.plan.expression import Column
from anabranch.plan.query import Field, Input
from anabranch.sql.syntax import Name
from anabranch.sql.text import SqlText


class Scope:
    """The inputs that an expression may read."""

    def __init__(self, text: SqlText, inputs: Sequence[Input]) -> None:
        self.text, self.inputs = text, inputs

    def input(self, alias: Name) -> Input:
        """The input with an alias."""
        found = next((i for i in self.inputs if i.alias.lower() == alias.text.lower()), None)
        if found is not None:
            return found
        if any(_field(i, alias.text) for i in self.inputs):
            raise self.text.error(UnsupportedSqlError, f"a field of the column {alias.text} is not supported", alias.at,
                                  "select the whole column")  # fmt: skip
        hint = did_you_mean(alias.text, (i.alias for i in self.inputs))
        hint = hint or "the inputs here are " + ", ".join(i.alias for i in self.inputs)
        raise self.text.error(UnknownColumnError, f"no input is called {alias.text}", alias.at, hint)

    def column(self, owner: Name | None, name: Name) -> Column:
        """The column that a name means, with or without the alias of its input."""
        candidates = [self.input(owner)] if owner is not None else self.inputs
        found = [(i, f) for i in candidates if (f := _field(i, name.text)) is not None]
        if len(found) > 1:
            choices = " or ".join(f"{i.alias}.{f.name}" for i, f in found)
            raise self.text.error(AmbiguousColumnError, f"{name.text} is ambiguous", name.at, f"write {choices}")
        if not found:
            where = f"{owner.text} has no column {name.text}" if owner else f"no input has a column {name.text}"
            hint = did_you_mean(name.text, (f.name for i in candidates for f in i.source.fields))
            raise self.text.error(UnknownColumnError, where, name.at, hint)
        source, field = found[0]
        return Column(field.type, source.alias, field.name)


def _field(source: Input, name: str) -> Field | None:
    return next((f for f in source.source.fields if f.name.lower() == name.lower()), None)
