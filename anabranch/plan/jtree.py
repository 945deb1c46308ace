"""Join trees: the plans of the papers between one n-ary join and a binary tree (000, section 1.2: *jtrees*).

A plan is a `Leaf` or a `Join` of two or more plans. The notation is `((A B) C D)`: A and B are joined and kept as a view,
the view, C and D meet in one three-way join. For each of its inputs a join has a *probe order*: in which order rows
arriving there look up the others. It is written behind the join where it is not the default one:

    (A B C){A: C B; B: C A}

The default order takes the other inputs as written, but those that a key connects to what is already bound first, so that
no cartesian product is made where none is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import cached_property

from anabranch.errors import PlanError, did_you_mean, known_names
from anabranch.plan.join_graph import JoinGraph


@dataclass(frozen=True)
class Leaf:
    """An input of the query."""

    alias: str

    @cached_property
    def aliases(self) -> frozenset[str]:
        return frozenset([self.alias])

    def __str__(self) -> str:
        return self.alias


@dataclass(frozen=True)
class Join:
    """A join of two or more inputs; `orders[i]` lists the positions that rows of input i look up, in turn."""

    inputs: tuple[Leaf | Join, ...]
    orders: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if len(self.inputs) < 2:
            raise PlanError("a join needs two or more inputs")
        if sum(len(i.aliases) for i in self.inputs) != len(self.aliases):
            raise PlanError(f"an input stands twice in {self}")
        places = range(len(self.inputs))
        if [sorted(order) for order in self.orders] != [[j for j in places if j != i] for i in places]:
            raise PlanError(f"a probe order in {self} does not list every other input once")

    @cached_property
    def aliases(self) -> frozenset[str]:
        return frozenset().union(*(i.aliases for i in self.inputs))

    def __str__(self) -> str:
        return f"({' '.join(map(str, self.inputs))})"


Plan = Leaf | Join


def default_orders(inputs: tuple[Plan, ...], graph: JoinGraph) -> tuple[tuple[int, ...], ...]:
    """For each input the others as written, connected ones first: by keys, or else by the range of a comparison."""
    orders = []
    for start in range(len(inputs)):
        bound, rest, order = inputs[start].aliases, [j for j in range(len(inputs)) if j != start], []
        while rest:
            chosen = next((j for j in rest if graph.connected(bound, inputs[j].aliases)), None)
            if chosen is None:
                chosen = next((j for j in rest if graph.range_between(bound, inputs[j].aliases)), rest[0])
            rest.remove(chosen)
            order.append(chosen)
            bound |= inputs[chosen].aliases
        orders.append(tuple(order))
    return tuple(orders)


def join(inputs: tuple[Plan, ...], graph: JoinGraph) -> Join:
    """A join with default probe orders."""
    return Join(inputs, default_orders(inputs, graph))


def left_deep(graph: JoinGraph) -> Plan:
    """The plan when none is given: binary joins in order of appearance."""
    leaves = [Leaf(a) for a in graph.query.aliases]
    plan: Plan = leaves[0]
    for leaf in leaves[1:]:
        plan = join((plan, leaf), graph)
    return plan


def joins_of(plan: Plan) -> Iterator[Join]:
    """All joins of a plan, children before parents."""
    if isinstance(plan, Join):
        for child in plan.inputs:
            yield from joins_of(child)
        yield plan


def part_of(plan: Plan, aliases: Set[str]) -> Plan | None:
    """The plan by which combinations of some inputs arise under a larger plan, on the way of rows of each of these inputs;
    None if rows of one of them meet another input first, or at the same time.

    >>> a, b, c = Leaf("a"), Leaf("b"), Leaf("c")
    >>> str(part_of(Join((Join((a, b), ((1,), (0,))), c), ((1,), (0,))), {"a", "b"}))
    '(a b)'
    >>> flat = Join((a, b, c), ((1, 2), (0, 2), (1, 0)))
    >>> str(part_of(flat, {"a", "b"})), part_of(flat, {"b", "c"})
    ('(a b)', None)
    """
    if plan.aliases == aliases:
        return plan
    if isinstance(plan, Leaf) or not aliases <= plan.aliases:
        return None
    for child in plan.inputs:
        if aliases <= child.aliases:
            return part_of(child, aliases)
    inside = [place for place, child in enumerate(plan.inputs) if child.aliases <= aliases]
    if sum(len(plan.inputs[place].aliases) for place in inside) != len(aliases):
        return None
    others, place_of = len(inside) - 1, {old: new for new, old in enumerate(inside)}
    firsts = [plan.orders[place][:others] for place in inside]
    if any(not place_of.keys() >= set(first) for first in firsts):
        return None
    orders = tuple(tuple(place_of[other] for other in first) for first in firsts)
    return Join(tuple(plan.inputs[place] for place in inside), orders)


def check(plan: Plan, graph: JoinGraph) -> None:
    """Refuses a plan that does not have exactly the inputs of the query."""
    ours, wanted = plan.aliases, set(graph.query.aliases)
    if extra := sorted(ours - wanted):
        hint = did_you_mean(extra[0], wanted - ours or wanted)
        raise PlanError(
            f"plan {plan} names {', '.join(extra)}, which query {graph.query.name} does not have; "
            f"its inputs are {', '.join(graph.query.aliases)}{f': {hint}' if hint else ''}"
        )
    if missing := wanted - ours:
        raise PlanError(f"plan {plan} of query {graph.query.name} lacks {', '.join(sorted(missing))}")


def show(plan: Plan, graph: JoinGraph) -> str:
    """The plan as text that `parse` reads back to an equal plan."""
    if isinstance(plan, Leaf):
        return plan.alias
    text = f"({' '.join(show(i, graph) for i in plan.inputs)})"
    default = default_orders(plan.inputs, graph)
    special = [
        f"{_bare(plan.inputs[i])}: {' '.join(_bare(plan.inputs[j]) for j in order)}"
        for i, order in enumerate(plan.orders)
        if order != default[i]
    ]
    return text + (f"{{{'; '.join(special)}}}" if special else "")


def _bare(plan: Plan) -> str:
    """How a probe order names an input: by its aliases alone."""
    return plan.alias if isinstance(plan, Leaf) else f"({' '.join(sorted(plan.aliases))})"


def parse(text: str, graph: JoinGraph) -> Plan:
    """Reads the notation and checks the plan against the query."""
    reader = _Reader(text, graph)
    plan = reader.plan()
    reader.expect_end()
    check(plan, graph)
    return plan


class _Reader:
    """Recursive descent over the tokens of a plan."""

    def __init__(self, text: str, graph: JoinGraph) -> None:
        self.text, self.graph = text, graph
        self.tokens = list(_tokens(text))
        self.at = 0

    def plan(self) -> Plan:
        if self.peek() != "(":
            return Leaf(self.name())
        self.take("(")
        inputs: list[Plan] = []
        while self.peek() != ")":
            inputs.append(self.plan())
        self.take(")")
        if len(inputs) < 2:
            raise self.error("a join needs two or more inputs")
        joined = join(tuple(inputs), self.graph)
        if self.peek() == "{":
            joined = Join(joined.inputs, self.orders(joined))
        return joined

    def orders(self, joined: Join) -> tuple[tuple[int, ...], ...]:
        orders = list(joined.orders)
        self.take("{")
        while self.peek() != "}":
            start = self.reference(joined)
            self.take(":")
            order = []
            while self.peek() not in (";", "}"):
                order.append(self.reference(joined))
            if sorted(order) != [j for j in range(len(orders)) if j != start]:
                raise self.error(
                    f"the probe order of {joined.inputs[start]} must list every other input of the join once"
                )
            orders[start] = tuple(order)
            if self.peek() == ";":
                self.take(";")
        self.take("}")
        return tuple(orders)

    def reference(self, joined: Join) -> int:
        if self.peek() == "(":
            self.take("(")
            names = set()
            while self.peek() != ")":
                names.add(self.name())
            self.take(")")
        else:
            names = {self.name()}
        for place, node in enumerate(joined.inputs):
            if node.aliases == names:
                return place
        raise self.error(f"({' '.join(sorted(names))}) is not an input of {joined}")

    def name(self) -> str:
        token = self.peek()
        if token in set("(){}:;") | {""}:
            raise self.error(f"expected an input, found {token or 'the end'}")
        known = self.graph.query.aliases
        exact = [a for a in known if a == token] or [a for a in known if a.lower() == token.lower()]
        if not exact:
            raise self.error(f"query {self.graph.query.name} has no input {token}; {known_names(token, known)}")
        self.at += 1
        return exact[0] if len(exact) == 1 else token

    def peek(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def take(self, wanted: str) -> None:
        if self.peek() != wanted:
            raise self.error(f"expected {wanted}, found {self.peek() or 'the end'}")
        self.at += 1

    def expect_end(self) -> None:
        if self.peek():
            raise self.error(f"unexpected {self.peek()} after the plan")

    def error(self, message: str) -> PlanError:
        place = self.tokens[self.at][1] if self.at < len(self.tokens) else len(self.text)
        return PlanError(f"{message}\n  {self.text}\n  {' ' * place}^\nwrite a plan like ((A B) C)")


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    start = None
    for place, char in enumerate(text + " "):
        if char in "(){}:;" or char.isspace() or char == ",":
            if start is not None:
                yield text[start:place], start
                start = None
            if not char.isspace() and char != ",":
                yield char, place
        elif start is None:
            start = place
