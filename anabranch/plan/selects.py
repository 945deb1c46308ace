"""Where predicates of single inputs are evaluated: when a row comes in, or above a join (002, chapter 13).

By itself a select stands at its stream: what does not pass it is not stored. *Raised* above some inputs, it is evaluated on
combined rows, by the first join of a plan that has all of them. That pays where it costs much and few rows find a partner.
Projects go with selects: a column that only a select needs is stored as long as the select stands above a join, and not
longer. (Views hold row ids, so that there is nothing to project in them.)

Up they go at once: rows that have passed a select already do no harm among others. Down, either what is stored is filtered
at once, or the select *waits* above its join until all that was stored unfiltered has ended; what comes is filtered by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from anabranch.errors import MigrationError
from anabranch.plan.expression import Expr, aliases_of, columns_of
from anabranch.plan.query import Query


@dataclass(frozen=True)
class Raised:
    """A predicate of one input that is evaluated where its rows have met those of all inputs of `above`. With `until_us` it
    goes down: it is evaluated at its stream too, and above the join for the sake of rows that end by then."""

    predicate: Expr
    above: frozenset[str]
    until_us: int | None = None

    @property
    def alias(self) -> str:
        (alias,) = aliases_of(self.predicate)
        return alias

    def is_open(self, inputs: Set[str]) -> bool:
        """Whether combined rows of some inputs have it still before them."""
        return self.alias in inputs and not self.above <= inputs

    def stands_at(self, inputs: Set[str], parts: Iterable[Set[str]]) -> bool:
        """Whether a join of `parts` evaluates it."""
        return self.above <= inputs and not any(self.above <= part for part in parts)


Selects = tuple[Raised, ...]
"""The selects that do not stand at their stream, in the order of the query."""


def raise_selects(query: Query, given: Mapping[str, str]) -> Selects:
    """What somebody asks for: predicates, and the inputs above which they go. All of an input are named by it
    (`{"a": "a b"}`), those that read a column by that (`{"a.s": "a b"}`), single ones by their text as `explain` shows it.
    What is not named stands at its stream."""
    known = {str(f): f for i in query.inputs for f in i.filters}
    places: dict[str, frozenset[str]] = {}
    for name, text in given.items():
        above = frozenset(text.replace(",", " ").split())
        if odd := above - set(query.aliases):
            raise MigrationError(f"there is no input {min(odd)} to put {name} above; there are: {_list(query.aliases)}")
        named = [text for text, f in known.items() if name in (text, *aliases_of(f), *map(str, columns_of(f)))]
        if not named:
            raise MigrationError(f"{name} names no predicate of one input; there are: {_list(known) or 'none'}")
        for predicate in named:
            (alias,) = aliases_of(known[predicate])
            if alias not in above or len(above) < 2:
                raise MigrationError(
                    f"{predicate} cannot stand above {text or 'nothing'}: name {alias} and the inputs it is joined with"
                )
            places[predicate] = above
    return tuple(Raised(known[p], places[p]) for p in known if p in places)


def shown_selects(selects: Selects, query: Query) -> str:
    """For people, after a plan."""
    return "".join(
        f", {s.predicate} above ({above_text(s, query)})" + ("" if s.until_us is None else " for old rows") for s in selects
    )


def above_text(select: Raised, query: Query) -> str:
    """The inputs that a select stands above, as `raise_selects` reads them."""
    return " ".join(a for a in query.aliases if a in select.above)


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)
