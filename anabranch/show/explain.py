"""A query and its plan in words: first a sentence, then the tree with its figures, then what they rest on and why this plan.

An `Explanation` is the text, with a short `repr` and, in notebooks, the drawing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from textwrap import wrap

from anabranch.cost.facts import DEFAULT_RATE, DEFAULT_TABLE_ROWS
from anabranch.cost.model import Cost, CostModel
from anabranch.cost.streams import Basis, worst
from anabranch.optimize.planner import Bounds, Decision
from anabranch.plan.defeated import Defeated
from anabranch.plan.expression import aliases_of
from anabranch.plan.join_graph import JoinGraph
from anabranch.plan.jtree import Join, Leaf, Plan, join, joins_of, left_deep, show
from anabranch.plan.query import Derived, Table
from anabranch.show.draw import NOTHING_SHARED, SharingLines, draw_plan
from anabranch.show.figures import aligned, cores_text, count_text, listed, percent_text, show_bytes, versus
from anabranch.show.measured import Batches
from anabranch.show.nodes import Figures, Node, groups_text, tree_of

WIDTH = 100
"""Prose is broken into lines of so many characters."""

RUNNERS_UP = 6

SPARK_ON_TOP = (
    "Spark's own work (reading, the exchange, scheduling, its log) comes on top: of 0.98 s that a batch of 600,000 rows of "
    "three streams took on two cores, joining had 0.11 s (python -m bench.limit)"
)


class Explanation(str):
    """The text of a plan. Its `repr` is a line; a notebook shows the drawing, with the text below it."""

    short: str
    drawing: str

    def __new__(cls, text: str, short: str, drawing: str) -> Explanation:
        found = super().__new__(cls, text)
        found.short, found.drawing = short, drawing
        return found

    def __repr__(self) -> str:
        return f"<{self.short}>"

    def _repr_html_(self) -> str:
        return f"<figure>{self.drawing}<details><summary>in words</summary><pre>{escape(self)}</pre></details></figure>"


class PlanText(str):
    """A plan as it is written. A notebook shows it drawn, if there is somebody to `draw` the plan of a query by its name."""

    query: str
    draw: Callable[[str], str] | None

    def __new__(cls, text: str, query: str, draw: Callable[[str], str] | None = None) -> PlanText:
        found = super().__new__(cls, text)
        found.query, found.draw = query, draw
        return found

    def _repr_html_(self) -> str:
        drawing = f"<pre>{escape(self)}</pre>" if self.draw is None else self.draw(self.query)
        return f"<figure>{drawing}</figure>"


@dataclass(frozen=True)
class PricedPlan:
    """A plan of a query, with all that is said about it."""

    plan: Plan
    graph: JoinGraph
    """Of the form that the query runs in."""
    decision: Decision
    """Which plan would be chosen, by the same figures: this one, unless it is pinned, or was chosen by others."""
    is_pinned: bool = False
    batches: Batches | None = None
    """What was measured, if the query has run."""
    is_calibrated: bool = False
    """Whether the costs of single operations were measured on this machine."""
    warnings: Sequence[Defeated] = field(default=())
    lead: str = ""
    """The query whose plan it is, because both run one join."""
    is_joint: bool = False
    """Whether it was chosen together with those of all other queries of the session."""

    @property
    def model(self) -> CostModel:
        return self.decision.model

    @cached_property
    def cost(self) -> Cost:
        return self.model.cost(self.plan)

    @property
    def is_chosen(self) -> bool:
        return self.plan == self.decision.plan

    @cached_property
    def tree(self) -> Node:
        measured = None if self.batches is None else self.batches.figures(self.plan, self.graph)
        return tree_of(self.plan, self.graph, self.model, measured)

    @property
    def basis(self) -> Basis:
        return worst(node.basis for node in self.tree.walk())

    @property
    def plan_text(self) -> str:
        return show(self.plan, self.graph)

    @property
    def short(self) -> str:
        """The plan in a line."""
        cost = f"{cores_text(self.cost.cpu)}, {show_bytes(self.cost.memory)} kept"
        return f"plan of {self.graph.query.name}: {self.plan_text}, {cost} ({self.basis})"

    def draw(self, shared: SharingLines = NOTHING_SHARED) -> str:
        """The plan as SVG."""
        return draw_plan(self.tree, self.graph.query.name, self.summary, groups_text(self.graph.query), shared)

    @property
    def summary(self) -> str:
        """What the plan costs, beside its budget."""
        bounds = self.decision.bounds
        of_cpu = "" if bounds.cpu == float("inf") else f" of {bounds.cpu:.3g}"
        of_memory = "" if bounds.memory == float("inf") else f" of {show_bytes(bounds.memory)}"
        return f"{self.cost.cpu:.3g}{of_cpu} cores, {show_bytes(self.cost.memory)}{of_memory} kept ({self.basis})"


def explained(
    priced: PricedPlan, more: Sequence[str] = (), shared: SharingLines = NOTHING_SHARED
) -> Explanation:
    """A plan explained; `more` are further paragraphs, and `shared` lines for the drawing."""
    parts = [
        _prose(sentence(priced)),
        tree_text(priced),
        *(f"warning: {_prose(str(d), 9)}" for d in priced.warnings),
        _prose(f"Why this plan: {reason(priced)}"),
        notes(priced),
    ]
    return Explanation("\n\n".join([*parts, *more]), priced.short, priced.draw(shared))


def _prose(text: str, indent: int = 0) -> str:
    return ("\n" + " " * indent).join(wrap(text, WIDTH - indent, break_long_words=False, break_on_hyphens=False))


# -- the sentence ----------------------------------------------------------------------------------------------------


def sentence(priced: PricedPlan) -> str:
    """What a query joins, how, and what it costs."""
    query, model, tree = priced.graph.query, priced.model, priced.tree
    inputs = listed([f"{leaf.title} [{leaf.window}]" for leaf in _leaves(tree)])
    doing = f"joins {inputs} {_how(priced)}" if isinstance(priced.plan, Join) else f"reads {inputs}"
    grouped = groups_text(query)
    coming = sum(facts.rate for facts in model.graph.streams)
    out = f"{count_text(tree.predicted.rows_per_s or 0.0)} {'joined rows' if grouped else 'results'}"
    grouping = f", and makes {grouped}" if grouped else ""
    return (
        f"{query.name} {doing}{grouping}. Of {count_text(coming)} rows/s it makes {out}/s; it "
        f"takes {cores_text(priced.cost.cpu)} and keeps {show_bytes(priced.cost.memory)}, {_by(priced)}."
    )


def _how(priced: PricedPlan) -> str:
    """Two inputs are joined by what they compare, several in some order."""
    assert isinstance(priced.plan, Join)
    if len(priced.plan.aliases) > 2:
        return f"in this order: {_steps(priced.plan)}" if len(list(joins_of(priced.plan))) > 1 else "at once, in one join"
    return f"on {priced.tree.keys_text}" if priced.tree.keys else "without a key: every pair is looked at"


def _steps(plan: Join) -> str:
    """Which joins a plan makes, in their order.

    >>> from anabranch.plan.jtree import Leaf
    >>> ab = Join((Leaf("a"), Leaf("b")), ((1,), (0,)))
    >>> _steps(Join((ab, Leaf("c")), ((1,), (0,))))
    'a with b, then what they make with c'
    """
    steps: list[str] = []
    last: Join | None = None
    for each in joins_of(plan):
        names = ["what they make" if child is last else _bare(child) for child in each.inputs]
        steps.append(" with ".join(names) if len(names) == 2 else f"{listed(names)} in one join")
        last = each
    return ", then ".join(steps)


def _bare(plan: Plan) -> str:
    return f"({' '.join(sorted(plan.aliases))})" if isinstance(plan, Join) else plan.alias


def _leaves(tree: Node) -> list[Node]:
    return [node for node in tree.walk() if node.input is not None]


def _by(priced: PricedPlan) -> str:
    if priced.batches is not None:
        return f"by what {priced.batches.count} batches measured"
    return "by what you gave" if priced.basis is Basis.GIVEN else "by what is assumed"


# -- the tree --------------------------------------------------------------------------------------------------------


def tree_text(priced: PricedPlan) -> str:
    """The plan as a table: a line for each input and each join, and what a join compares below it."""
    has_measured = priced.batches is not None
    head = ["", "rows/s", "rows kept", "bytes kept", "CPU", "known"]
    if has_measured:
        head = ["", "rows/s", "measured", "rows kept", "measured", "bytes kept", "measured", "CPU", "measured", "known"]
    rows: list[list[str] | str] = [head]
    _add_lines(rows, priced.tree, "", "", has_measured, groups_text(priced.graph.query))
    fixed = priced.model.fixed()
    rows.append(_line("taking rows in, handing results out", Figures(), Figures(), fixed.cpu, None, has_measured, ""))
    sums, seen = Figures(None, None, priced.cost.memory), Figures()
    if priced.batches is not None:
        seen = Figures(None, None, priced.batches.state_bytes)
    cores = None if priced.batches is None else priced.batches.cores
    rows.append(_line("in all", sums, seen, priced.cost.cpu, cores, has_measured, str(priced.basis)))
    lines = aligned(rows, (0, len(head) - 1))
    for inner in priced.graph.query.subqueries:
        lines += ["", f"where {inner.name} is made of", *_subquery_lines(JoinGraph(inner))]
    return "\n".join(lines)


def _subquery_lines(graph: JoinGraph) -> list[str]:
    names = [f"{i.source.name} {i.alias}" if i.source.name != i.alias else i.alias for i in graph.query.inputs]
    lines = [f"  {listed(names)}: {groups_text(graph.query) or show(left_deep(graph), graph)}"]
    for inner in graph.query.subqueries:
        lines += [f"  where {inner.name} is made of", *(f"  {line}" for line in _subquery_lines(JoinGraph(inner)))]
    return lines


def _add_lines(
    rows: list[list[str] | str], node: Node, first: str, rest: str, has_measured: bool, grouped: str | None = None
) -> None:
    """Adds the lines of a node and of all below it. `first` stands before its name, `rest` before all else."""
    name = f"{node.title} [{node.window}]" if node.input is not None else node.name
    shown = f"{first}{'results of ' if node.is_root and node.input is None else ''}{name}"
    rows.append(_line(shown, node.predicted, node.measured, node.cpu, None, has_measured, str(node.basis)))
    below = rest + ("│    " if node.children else "     ")
    rows += [f"{below}{grouped}"] if grouped else []
    rows += [f"{below}on {node.keys_text}"] if node.children else []
    rows += [f"{below}where {text} (how many rows pass is not known: all are taken to)" for text in node.unknown]
    for place, child in enumerate(node.children):
        is_last = place == len(node.children) - 1
        _add_lines(rows, child, rest + ("└─ " if is_last else "├─ "), rest + ("   " if is_last else "│  "), has_measured)


def _line(
    name: str, predicted: Figures, measured: Figures, cpu: float | None, cores: float | None, has_measured: bool, known: str
) -> list[str]:
    pairs = [
        (_count(predicted.rows_per_s), _count(measured.rows_per_s)),
        (_count(predicted.kept_rows), _count(measured.kept_rows)),
        (_bytes(predicted.kept_bytes), _bytes(measured.kept_bytes)),
        ("" if cpu is None else percent_text(cpu), "" if cores is None else percent_text(cores)),
    ]
    return [name, *(cell for pair in pairs for cell in (pair if has_measured else pair[:1])), known]


def _count(value: float | None) -> str:
    return "" if value is None else count_text(value)


def _bytes(value: float | None) -> str:
    return "" if value is None else show_bytes(value)


# -- why -------------------------------------------------------------------------------------------------------------


def reason(priced: PricedPlan) -> str:
    """Why a query has its plan, in words: beside the budget, and beside the next best plan."""
    decision = priced.decision
    others = [(p, c) for p, c in decision.front if p != priced.plan]
    if priced.is_pinned:
        return _pinned_reason(priced)
    if not isinstance(priced.plan, Join):
        return "one input is not joined with anything."
    if not priced.is_chosen and priced.lead and priced.batches is None:
        better = show(decision.plan, priced.graph)
        return (
            f"it is the plan of {priced.lead}: both run one join. By itself {better} would be chosen: it takes "
            f"{_beside(decision.cost, priced.cost)}."
        )
    if not priced.is_chosen and priced.is_joint and priced.batches is None:
        better = show(decision.plan, priced.graph)
        return (
            f"all queries of the session were planned together, within one budget. By itself {better} would be chosen: it "
            f"takes {_beside(decision.cost, priced.cost)}."
        )
    if not priced.is_chosen:
        better = show(decision.plan, priced.graph)
        return (
            f"a query that has run goes on with the plan of its last commit. By these figures {better} would be chosen: it "
            f"takes {_beside(decision.cost, priced.cost)}."
        )
    if not decision.is_qualified:
        return f"{decision.reason}."
    bounds = decision.bounds
    budget = "" if bounds == Bounds() else " that stay within the budget"
    if not others:
        return _unrivalled(priced)
    nearest = min(others, key=lambda other: (not other[1].within(bounds.cpu, bounds.memory), other[1].cpu))
    within = "" if nearest[1].within(bounds.cpu, bounds.memory) else ", which is more than the budget allows"
    searched = "All plans were considered" if decision.is_exact else "Not all plans were considered"
    return (
        f"of the plans{budget} it takes the least CPU{_used(priced)}. The next best is {show(nearest[0], priced.graph)}: it "
        f"takes {_beside(nearest[1], priced.cost)}{within}. {searched}; no plan takes less than "
        f"{cores_text(decision.least.cpu)}, or keeps less than {show_bytes(decision.least.memory)}."
    )


def _unrivalled(priced: PricedPlan) -> str:
    """Why, where no other plan is better in anything: beside the plan as written, or beside one join of all."""
    if len(priced.graph.query.inputs) < 3:
        return f"it is the only one{_room(priced)}."
    leaves = tuple(Leaf(alias) for alias in priced.graph.query.aliases)
    plans = [plan for plan in (left_deep(priced.graph), join(leaves, priced.graph)) if plan != priced.plan]
    other = min(plans, key=lambda plan: priced.model.cost(plan).cpu)
    found = "takes less CPU, or keeps less" if priced.decision.is_exact else "was found that takes less CPU, or keeps less"
    beside = _beside(priced.model.cost(other), priced.cost)
    return f"no other plan {found}{_room(priced)}. {show(other, priced.graph)}, say, takes {beside}."


def _room(priced: PricedPlan) -> str:
    """Whether a plan is within the budget, if there is one."""
    bounds = priced.decision.bounds
    is_within = priced.cost.within(bounds.cpu, bounds.memory)
    return f", {'within' if is_within else 'more than'} the budget{used}" if (used := _used(priced)) else ""


def _used(priced: PricedPlan) -> str:
    """What a plan takes of the budget."""
    bounds = priced.decision.bounds
    parts = []
    if bounds.cpu != float("inf"):
        parts.append(f"{priced.cost.cpu:.3g} of {bounds.cpu:.3g} cores")
    if bounds.memory != float("inf"):
        parts.append(f"{show_bytes(priced.cost.memory)} of {show_bytes(bounds.memory)}")
    return f" ({listed(parts)})" if parts else ""


def _beside(other: Cost, own: Cost) -> str:
    return f"{versus(other.cpu, own.cpu)} CPU and keeps {versus(other.memory, own.memory)} memory"


def _pinned_reason(priced: PricedPlan) -> str:
    told = f"it is pinned{_room(priced)}"
    if priced.is_chosen:
        return f"{told}; it would be chosen, too."
    chosen = show(priced.decision.plan, priced.graph)
    return f"{told}. Not pinned, {chosen} would be chosen: it takes {_beside(priced.decision.cost, priced.cost)}."


# -- what figures rest on --------------------------------------------------------------------------------------------


def notes(priced: PricedPlan) -> str:
    """What figures rest on, and what CPU means."""
    usual = "by usual costs (anabranch calibrate measures this machine's)"
    costs = "by costs measured on this machine" if priced.is_calibrated else usual
    lines = [_prose(text) for text in _known(priced)]
    lines.append(_prose(f"CPU is what joining takes of one core, {costs}. {SPARK_ON_TOP}."))
    others = [(p, c) for p, c in priced.decision.front if p != priced.plan][:RUNNERS_UP]
    if others:
        lines.append("Other plans that none beats in both CPU and memory:")
        rows = [[show(p, priced.graph), cores_text(c.cpu), show_bytes(c.memory)] for p, c in others]
        lines += [f"  {line}" for line in aligned(rows)]
    return "\n".join(lines)


def _known(priced: PricedPlan) -> list[str]:
    """What is assumed, given and measured."""
    graph, query = priced.model.graph, priced.graph.query
    names: dict[Basis, list[str]] = {basis: [] for basis in Basis}
    for facts in graph.streams:
        source = query.input(facts.name).source
        what = "rows" if isinstance(source, Table) else "groups/s" if isinstance(source, Derived) else "rows/s"
        names[facts.basis].append(f"{what} of {source.name}")
    keys = [terms for terms in priced.graph.classes if len({a for t in terms for a in aliases_of(t)}) > 1]
    for terms, key in zip(keys, graph.classes, strict=True):
        names[key.basis].append(f"distinct values of {' = '.join(map(str, terms))}")
    texts = []
    if names[Basis.ASSUMED]:
        figures = f"{count_text(DEFAULT_RATE)} rows/s of a stream, {count_text(DEFAULT_TABLE_ROWS)} rows of a table"
        what = "; ".join(dict.fromkeys(names[Basis.ASSUMED]))
        texts.append(f"Assumed ({figures}, one partner for a row): {what}. Give what you know: --rate, --distinct, facts=.")
    if names[Basis.GIVEN]:
        texts.append(f"Given: {'; '.join(dict.fromkeys(names[Basis.GIVEN]))}.")
    if names[Basis.MEASURED] and priced.batches is not None:
        upto = f"in {priced.batches.count} batches up to {priced.batches.last_batch}"
        texts.append(f"Measured {upto}: {'; '.join(dict.fromkeys(names[Basis.MEASURED]))}.")
    return texts
