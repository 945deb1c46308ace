"""States of plans with selects and projects between their joins (002, chapter 13).

Where a select or a project stands decides what a state above it holds, so that states of two plans may match and still
differ. The two ways of the paper to find what must be done to a state when it is moved:

- *total re-optimisation* (section 13.3.2, the *bit-map algorithm*): every select, and every column that a project keeps, is
  a bit. Bit-maps go from the streams up to the root and leave in each state which predicates its rows have passed. Where
  the bit-maps of matching states differ, the state is filtered, projected, or stuffed;
- *incremental optimisation* (section 13.3.1): states have identities that survive the rewriting of a plan, and every step
  of the rewriting notes in the states it touches what must be done to them.

Our own engine names a state after the selects that its rows have still before them (`anabranch.engine.reader`), which are
the zeros of its bit-map, and compares names; a test holds the two side by side. Indexes are filtered by building them anew
from the log. The log itself is neither filtered nor projected: its segments end with their rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

Streams = frozenset[str]
"""The streams below a state: what identifies it, in a plan that is searched for as a whole."""


@dataclass(frozen=True)
class Scan:
    """A stream."""

    stream: str


@dataclass(frozen=True)
class Select:
    """Rows that pass a predicate, which is told by its text (`B.b1 > 9`)."""

    predicate: str
    input: Node


@dataclass(frozen=True)
class Project:
    """Some columns, as `B.b1`; all others of the streams named go. Streams that it does not name stay as they are."""

    columns: tuple[str, ...]
    input: Node


@dataclass(frozen=True)
class Joined:
    """A join; each of its two inputs has a state."""

    left: Node
    right: Node


Node = Scan | Select | Project | Joined


def streams_of(node: Node) -> Streams:
    """The streams below a node."""
    if isinstance(node, Scan):
        return frozenset([node.stream])
    if isinstance(node, Joined):
        return streams_of(node.left) | streams_of(node.right)
    return streams_of(node.input)


def predicates_of(*plans: Node) -> tuple[str, ...]:
    """The array of predicates: every select, then every column of a project, in the order in which they are met."""
    selects: dict[str, None] = {}
    columns: dict[str, None] = {}

    def visit(node: Node) -> None:
        if isinstance(node, Select):
            selects.setdefault(node.predicate)
            visit(node.input)
        elif isinstance(node, Project):
            columns.update(dict.fromkeys(node.columns))
            visit(node.input)
        elif isinstance(node, Joined):
            visit(node.left)
            visit(node.right)

    for plan in plans:
        visit(plan)
    return (*selects, *(f"keep {c}" for c in columns))


def bit_maps(plan: Node, predicates: tuple[str, ...]) -> dict[Streams, str]:
    """For every state of a plan which predicates its rows have passed, a character each: the bit-map algorithm.

    >>> plan = Joined(Scan("A"), Select("B.b1 > 9", Scan("B")))
    >>> {"".join(sorted(s)): bits for s, bits in bit_maps(plan, predicates_of(plan)).items()}
    {'A': '0', 'B': '1'}
    """
    found: dict[Streams, str] = {}

    def visit(node: Node) -> set[int]:
        if isinstance(node, Scan):
            return set()
        if isinstance(node, Joined):
            passed: set[int] = set()
            for child in (node.left, node.right):
                bits = visit(child)
                found[streams_of(child)] = "".join("01"[i in bits] for i in range(len(predicates)))
                passed |= bits
            return passed
        names = [node.predicate] if isinstance(node, Select) else [f"keep {c}" for c in node.columns]
        below = streams_of(node)
        own = {predicates.index(n) for n in names if isinstance(node, Select) or n[5:].split(".")[0] in below}
        return visit(node.input) | own

    visit(plan)
    return found


@dataclass(frozen=True)
class Operations:
    """What must be done to a state before it is moved."""

    filters: tuple[str, ...] = ()
    """*State filtering*: predicates that rows of the new state have passed, and those of the old one have not."""
    projects: tuple[str, ...] = ()
    """*State projecting*: of their streams only these columns stay."""
    stuffs: tuple[str, ...] = ()
    """*State stuffing*: the old state has only these columns of their streams; the others are filled with NULL."""


def match(old: Node, new: Node) -> dict[Streams, Operations]:
    """The states of the new plan that the old one has, and what must be done to them; others must be recomputed."""
    predicates = predicates_of(old, new)
    before, after = bit_maps(old, predicates), bit_maps(new, predicates)
    return {
        streams: _operations(predicates, before[streams], after[streams]) for streams in after if streams in before
    }


def _operations(predicates: tuple[str, ...], before: str, after: str) -> Operations:
    """Bit by bit: 0 and 1 is a filter or a project; 1 and 0 is stuffing for a column, and nothing for a select."""
    gained = [p for p, b, a in zip(predicates, before, after, strict=True) if (b, a) == ("0", "1")]
    lost = [p for p, b, a in zip(predicates, before, after, strict=True) if (b, a) == ("1", "0")]
    return Operations(
        tuple(p for p in gained if not p.startswith("keep ")),
        tuple(p[5:] for p in gained if p.startswith("keep ")),
        tuple(p[5:] for p in lost if p.startswith("keep ")),
    )


def move(
    state: pa.Table,
    operations: Operations,
    predicates: Mapping[str, Callable[[pa.Table], pa.Array]],
    columns: tuple[str, ...],
) -> pa.Table:
    """The rows of an old state as a new one has them, whose columns are given."""
    for text in operations.filters:
        state = state.filter(predicates[text](state))
    for name in columns:
        if name not in state.schema.names:
            state = state.append_column(name, pa.nulls(state.num_rows))
    return state.select(list(columns))


# -- incremental optimisation --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tracked:
    """A plan on its way from another, step by step: the identity of every state, and what must be done to it."""

    plan: Node
    identities: Mapping[Streams, int]
    instructions: Mapping[int, Operations] = field(default_factory=dict)
    next_identity: int = 0

    @classmethod
    def of(cls, plan: Node) -> Tracked:
        """Every state gets a distinctive identity before optimisation starts."""
        numbered = {streams: place + 1 for place, streams in enumerate(bit_maps(plan, predicates_of(plan)))}
        return cls(plan, numbered, {}, len(numbered) + 1)

    def rewritten(self, plan: Node) -> Tracked:
        """One step: joins switched, or a select or project pushed down or pulled up. States that the step makes get new
        identities; in those that it leaves but changes, what must be done to them is noted."""
        identities, number = dict(self.identities), self.next_identity
        instructions = dict(self.instructions)
        changed = match(self.plan, plan)
        for streams in bit_maps(plan, predicates_of(plan)):
            if streams not in identities:
                identities[streams], number = number, number + 1
            elif streams in changed:
                known = instructions.get(identities[streams], Operations())
                instructions[identities[streams]] = _then(known, changed[streams])
        kept = {s: i for s, i in identities.items() if s in bit_maps(plan, predicates_of(plan))}
        return replace(self, plan=plan, identities=kept, instructions=instructions, next_identity=number)

    def match(self, began: Tracked) -> dict[Streams, Operations]:
        """The states that have the identity they had when it began, and what must be done to them."""
        return {
            streams: self.instructions.get(identity, Operations())
            for streams, identity in self.identities.items()
            if began.identities.get(streams) == identity
        }


def _then(first: Operations, second: Operations) -> Operations:
    """Two steps as one. A column that is projected away and stuffed again, or the other way round, is left alone; a filter
    once applied does no harm, for its rows must pass it anyway."""
    undone = (set(first.projects) & set(second.stuffs)) | (set(first.stuffs) & set(second.projects))
    return Operations(
        tuple(dict.fromkeys((*first.filters, *second.filters))),
        tuple(dict.fromkeys(c for c in (*first.projects, *second.projects) if c not in undone)),
        tuple(dict.fromkeys(c for c in (*first.stuffs, *second.stuffs) if c not in undone)),
    )
