"""A plan with its figures, as a tree of values: what the text, the JSON and the drawing of a plan show.

    results of (o p s)      on (o p).id = s.id      1,000 rows/s
      (o p)                 on o.id = p.id          1,000 rows/s, 7,000 rows kept
        o                   orders [RANGE 5 SECONDS], 1,000 rows/s, 7,000 rows kept
        …
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from anabranch.cost.model import Cost, CostModel
from anabranch.cost.streams import Basis, Mask, worst
from anabranch.plan.expression import Expr, Literal, aliases_of, replace
from anabranch.plan.join_graph import Aliases, JoinGraph
from anabranch.plan.jtree import Join, Plan
from anabranch.plan.lengths import length_text, window_text
from anabranch.plan.query import Derived, Input, Query, Table

JoinKey = tuple[tuple[Aliases, str], ...]
"""Terms that are equal in what a join makes: of each input that has one, with the aliases of that input."""


@dataclass(frozen=True)
class Figures:
    """Of one node of a plan: rows of an input, or that a join makes, each second; rows and bytes that are kept of them."""

    rows_per_s: float | None = None
    kept_rows: float | None = None
    kept_bytes: float | None = None


@dataclass(frozen=True)
class Node:
    """An input of a query, or a join of its plan."""

    aliases: Aliases
    predicted: Figures
    basis: Basis
    """How the predicted figures are known."""
    cpu: float | None = None
    """Seconds of CPU per second of a join alone, without what is below it; None: it is an input."""
    keys: tuple[JoinKey, ...] = ()
    """What a join compares; nothing: every pair of rows is looked at."""
    unknown: tuple[str, ...] = ()
    """Predicates that are decided here, of which it is not known how many rows pass: all are taken to."""
    input: Input | None = None
    measured: Figures = field(default=Figures())
    children: tuple[Node, ...] = ()
    is_root: bool = False

    @property
    def name(self) -> str:
        """The input by its alias, a join by those of its inputs."""
        return self.aliases[0] if self.input is not None else f"({' '.join(self.aliases)})"

    @property
    def title(self) -> str:
        """An input as FROM has it, a join by its inputs."""
        if self.input is None:
            return self.name
        alias, name = self.input.alias, self.input.source.name
        return name if alias == name else f"{name} {alias}"

    @property
    def window(self) -> str:
        """What an input has in brackets behind it; nothing for a join."""
        if self.input is None:
            return ""
        if isinstance(self.input.source, Table):
            return "stored"
        if isinstance(self.input.source, Derived):
            return "groups"
        return window_text(self.input)

    @property
    def keys_text(self) -> str:
        """What a join compares, in words."""
        return " and ".join(" = ".join(term for _, term in key) for key in self.keys) or "nothing: every pair is looked at"

    def walk(self) -> Iterator[Node]:
        """The node and all below it, from the top."""
        yield self
        for child in self.children:
            yield from child.walk()


def tree_of(
    plan: Plan, graph: JoinGraph, model: CostModel, measured: Mapping[Aliases, Figures] | None = None, others: Mask = 0
) -> Node:
    """A plan, or a part of one that is looked up by the rows of the `others`, with what a model says of it, and what was
    measured."""
    streams = model.graph.mask(plan.aliases)
    aliases = graph.ordered(plan.aliases)
    kept = (model.stored_rows(streams), model.state_bytes(streams, others)) if others else (None, None)
    predicted = Figures(model.graph.rate(streams), *kept)
    if all(isinstance(graph.query.input(a).source, Table) for a in aliases):
        predicted = Figures(None, *kept)
    found, known = (measured or {}).get(aliases, Figures()), _basis(streams, aliases, graph, model)
    if not isinstance(plan, Join):
        i = graph.query.input(plan.alias)
        unknown = tuple(_plain(f) for f in i.filters)
        return Node(aliases, predicted, known, None, (), unknown, i, found, (), is_root=not others)
    children = tuple(tree_of(c, graph, model, measured, streams & ~model.graph.mask(c.aliases)) for c in plan.inputs)
    inputs = [model.graph.mask(c.aliases) for c in plan.inputs]
    own: Cost = model.join(inputs, plan.orders)
    return Node(
        aliases, predicted, known, own.cpu, _keys(plan, graph), _undecided_below(plan, graph), None, found, children,
        is_root=not others,
    )  # fmt: skip


def _basis(streams: Mask, aliases: Aliases, graph: JoinGraph, model: CostModel) -> Basis:
    """A figure of a set of inputs is worked out from their rates, from the keys between them, and from how many rows pass
    other predicates, which nobody gives. What is measured of a stream is measured behind its filters."""
    known = [facts.basis for i, facts in enumerate(model.graph.streams) if streams >> i & 1]
    known += [key.basis for key in model.graph.classes if (key.members & streams).bit_count() > 1]
    filtered = any(graph.query.input(a).filters for a in aliases) and Basis.MEASURED not in known
    return worst([*known, *([Basis.ASSUMED] if filtered or graph.decided_in(set(aliases)) else [])])


def _keys(plan: Join, graph: JoinGraph) -> tuple[JoinKey, ...]:
    """The terms that connect the inputs of a join, each class of equal ones once."""
    found = []
    for terms in graph.classes:
        sides = [(c, next((t for t in terms if aliases_of(t) <= c.aliases), None)) for c in plan.inputs]
        named = tuple((graph.ordered(child.aliases), _plain(term)) for child, term in sides if term is not None)
        if len(named) > 1:
            found.append(named)
    return tuple(found)


def _undecided_below(plan: Join, graph: JoinGraph) -> tuple[str, ...]:
    """The predicates that are decided at a join, and not below it."""
    below = {r for child in plan.inputs for r in graph.decided_in(child.aliases)}
    return tuple(_plain(r) for r in graph.decided_in(plan.aliases) if r not in below)


def _plain(expr: Expr) -> str:
    """An expression without the brackets around all of it.

    >>> from anabranch.plan.expression import Call, Column, Literal
    >>> import pyarrow as pa
    >>> x = Column(pa.int64(), "a", "x")
    >>> _plain(Call(pa.bool_(), "gt", (x, Literal(pa.int64(), 0)))), _plain(x)
    ('a.x > 0', 'a.x')
    """
    text = str(replace(expr, _readable))
    return text[1:-1] if text.startswith("(") and _closes(text) == len(text) - 1 else text


@dataclass(frozen=True)
class _Interval(Expr):
    """A length of time as SQL has it."""

    length: timedelta

    def __str__(self) -> str:
        return f"INTERVAL {length_text(self.length // timedelta(microseconds=1)).upper()}"


def _readable(expr: Expr) -> Expr:
    is_length = isinstance(expr, Literal) and isinstance(expr.value, timedelta)
    return _Interval(expr.type, expr.value) if is_length else expr  # type: ignore[attr-defined]


def _closes(text: str) -> int:
    """Where the first bracket of a text closes."""
    depth = 0
    for place, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if not depth:
            return place
    return len(text)


def groups_text(query: Query) -> str | None:
    """How results are grouped, if they are."""
    if query.grouping is None:
        return None
    if query.statement is not None:
        return f"rows that {query.statement.database} makes of them every {length_text(query.grouping.slide_us)}"
    keys = ", ".join(str(expr) for _, expr in query.select[: query.grouping.keys]) or "all rows together"
    return f"groups by {keys} every {length_text(query.grouping.slide_us)}"
