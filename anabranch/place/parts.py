"""Large trees in parts (004, end of section 7): sub-trees are placed one by one, from below, and then stay as they are.

Not exact: a part is placed as if its results went to the engine. DB-ops of neighbouring parts become one statement all the
same, for what a plan uses is counted over the whole tree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from anabranch.errors import PlanError
from anabranch.place.cost import Corrections, Costs, size_of
from anabranch.place.operators import Operator, Window, require_names
from anabranch.place.placement import Decision, bottleneck_of, use_of

Search = Callable[[Operator, Costs], Decision]


def by_parts(root: Operator, costs: Costs, most: int, search: Search) -> Decision:
    """The placement of a tree whose parts of at most `most` operators are placed by some search."""
    require_names(root)
    if len(root) <= most:
        return search(root, costs)
    in_database, examined = frozenset[str](), 0
    for part in parts_of(root, most, costs.corrections):
        found = search(part, costs)
        in_database, examined = in_database | found.in_database, examined + found.examined
    use = use_of(root, in_database, costs)
    return Decision(in_database, use, bottleneck_of(use, costs), examined, is_exact=False)


def parts_of(root: Operator, most: int, corrections: Corrections) -> list[Operator]:
    """Sub-trees of at most so many operators, those below first. Where one is cut off, the part above has a window in its
    place, of the same rate and size."""
    if most < 1:
        raise PlanError("a part has one operator or more")
    found: list[Operator] = []

    def cut(node: Operator) -> Operator:
        made = replace(node, inputs=tuple(cut(i) if isinstance(i, Operator) else i for i in node.inputs))
        while len(made) > most:
            largest = max(made.below, key=len)
            found.append(largest)
            window = _as_window(largest, corrections)
            made = replace(made, inputs=tuple(window if i is largest else i for i in made.inputs))
        return made

    top = cut(root)
    return [*found, top]


def _as_window(node: Operator, corrections: Corrections) -> Window:
    size = size_of(node, corrections)
    return Window(node.name, size.rate_per_s, size.rows, size.slides_per_s, size.is_aggregate)
