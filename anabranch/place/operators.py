"""The operators of a query from relation to relation: a tree whose leaves are windows and whose root gives results.

004, sections 2.1 and 3. A *migration candidate* is a connected part of the tree: it can be run by a database as one SQL
statement. What it takes in is what its operators read from outside of it, and what it gives out is its topmost operator's.

The paper's symbols: T = (O, E) is an `Operator` with all that is below it, a window is a `Window`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from anabranch.errors import PlanError


class Kind(StrEnum):
    """What an operator does."""

    SELECT = "SELECT"
    PROJECT = "PROJECT"
    JOIN = "JOIN"
    AGGREGATE = "AGGREGATE"


class Place(StrEnum):
    """Where an operator runs."""

    ENGINE = "engine"
    DATABASE = "database"


ANYWHERE = frozenset(Place)


@dataclass(frozen=True)
class Window:
    """A leaf: the rows of a stream, or of a stored table, that are valid at an instant."""

    name: str
    rate_per_s: float
    """λ: rows that come per second."""
    rows: float
    """W: rows that are valid at an instant."""
    slides_per_s: float = 1.0
    """l: how often an aggregate above it is evaluated: see `time_slides` and `row_slides`."""
    is_aggregate: bool = False
    """Whether it stands for an aggregate that was cut off (`anabranch.place.parts`): its rows change at slides alone."""

    def __post_init__(self) -> None:
        if self.rate_per_s < 0 or self.rows < 0 or self.slides_per_s < 0:
            raise PlanError(f"window {self.name}: rates, rows and slides are 0 or more")


def time_slides(slide_s: float) -> float:
    """l = 1/β of a window that slides by time (section 5)."""
    return 1.0 / slide_s


def row_slides(rate_per_s: float, slide_rows: float) -> float:
    """l = λ/β of a window that slides by rows (section 5).

    >>> row_slides(1000, 50)
    20.0
    """
    return rate_per_s / slide_rows


@dataclass(frozen=True)
class Operator:
    """One relation-to-relation operator over others, or windows: over one, a JOIN over two or more. The paper's joins are of
    two; all joins of a block of ours are one operator."""

    name: str
    kind: Kind
    inputs: tuple[Operator | Window, ...]
    selectivity: float = 1.0
    """f: the share of rows that a SELECT lets through, or of pairs that a JOIN does."""
    groups: float = 0.0
    """g: the groups that an AGGREGATE has at an instant."""
    places: frozenset[Place] = ANYWHERE
    """Where it may run: in a database only what the database computes with exactly our meaning; in one place if a user has
    said so."""
    block: str | None = field(default=None, compare=False)
    """The block of a query that it goes to a database with, if it ever does, by name. Operators of one block are in one
    place, all of them; those of two blocks are two statements, of which one reads what the other gave. The paper's operators
    are of no block."""
    why_engine: str = field(default="", compare=False)
    """Why it stays in the engine."""
    assumed: str = field(default="", compare=False)
    """What of its size nobody measured and nobody gave, and how to tell it."""

    def __post_init__(self) -> None:
        is_join = self.kind is Kind.JOIN
        if len(self.inputs) < 2 if is_join else len(self.inputs) != 1:
            wanted = "two or more" if is_join else "one"
            raise PlanError(f"{self.kind} {self.name} has {len(self.inputs)} inputs, not {wanted}")
        if not self.places:
            raise PlanError(f"{self.kind} {self.name} may run nowhere")
        if not 0 <= self.selectivity <= 1:
            raise PlanError(f"{self.kind} {self.name}: a selectivity is from 0 to 1, not {self.selectivity}")

    def goes_with(self, other: Operator) -> bool:
        """Whether an operator next to this one is where this one is."""
        return self.block is not None and self.block == other.block

    @property
    def below(self) -> tuple[Operator, ...]:
        """The operators among its inputs."""
        return tuple(i for i in self.inputs if isinstance(i, Operator))

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What of the sizes of all operators of the tree nobody measured and nobody gave."""
        return tuple(dict.fromkeys(each.assumed for each in self if each.assumed))

    def __iter__(self) -> Iterator[Operator]:
        """All operators of the tree, those below before those above."""
        for each in self.below:
            yield from each
        yield self

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def windows(self) -> tuple[Window, ...]:
        """The leaves, from left to right."""
        return tuple(w for i in self.inputs for w in ((i,) if isinstance(i, Window) else i.windows))

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(i.name if isinstance(i, Window) else str(i) for i in self.inputs)})"


def require_names(root: Operator) -> None:
    """Refuses a tree in which two operators have one name: plans name operators by it."""
    names = [each.name for each in root]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise PlanError(f"two operators are called {twice}")
