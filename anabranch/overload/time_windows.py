"""Windows in time: the rows of a state follow from the rates (JAQPOT, appendix A, *extension to time-based windows*).

    |S_I| = λ_I · T

The paper says so of streams. For the state of a join it gives no more than the same sentence, so a joined row stays as
long as a row of a stream does: |S_AB| = λ_ab · T, with λ_ab the rows that the join finds per second when nothing is
limited. Under our law a joined row ends with the first of its parts, and fewer are valid: half as many for two streams
with equal windows (`anabranch.cost.streams`: N(s) against R(s)). `is_law` chooses; the selectivities of the tree are
kept, its state sizes are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from anabranch.errors import PlanError
from anabranch.overload.half_way import Join, Plan, Stream


def with_time_windows(plan: Plan, windows_s: Mapping[str, float], is_law: bool = False) -> Plan:
    """The plan with state sizes that follow from windows in seconds.

    >>> from anabranch.overload.half_way import join
    >>> a, b, c = Stream("a", 100, 0, 0), Stream("b", 100, 0, 0), Stream("c", 10, 0, 0)
    >>> plan = Plan(join(join(a, b, 0.01), c, 0.01))
    >>> sized = with_time_windows(plan, {"a": 2.0, "b": 2.0, "c": 2.0})
    >>> [(name, each.state_rows) for name, each in sized.inputs.items()]
    [('a', 200.0), ('b', 200.0), ('(a b)', 800.0), ('c', 20.0)]
    >>> with_time_windows(plan, {"a": 2.0, "b": 2.0, "c": 2.0}, is_law=True).inputs["(a b)"].state_rows
    400.0
    """
    missing = {stream.name for stream in plan.streams} - set(windows_s)
    if missing:
        raise PlanError(f"no window is given for {', '.join(sorted(missing))}")
    root, _, _ = _sized(plan.root, windows_s, is_law)
    assert isinstance(root, Join)
    return replace(plan, root=replace(root, state_rows=0.0))


def _sized(
    node: Stream | Join, windows_s: Mapping[str, float], is_law: bool
) -> tuple[Stream | Join, float, float]:  # fmt: skip
    """A node with its state size, rows per second that it brings, and how long each stays."""
    if isinstance(node, Stream):
        window_s = windows_s[node.name]
        return replace(node, state_rows=node.rate_per_s * window_s), node.rate_per_s, window_s
    sized = [_sized(each, windows_s, is_law) for each in node.inputs]
    rate = 0.0
    for place, (_, own_rate, _) in enumerate(sized):
        found = own_rate
        for other, (partner, _, _) in enumerate(sized):
            if other != place:
                found *= partner.selectivity * partner.state_rows
        rate += found
    stays_s = max(stay for _, _, stay in sized)
    if is_law:
        stays_s = 1 / sum(1 / stay for _, _, stay in sized)
    return replace(node, inputs=tuple(each for each, _, _ in sized), state_rows=rate * stays_s), rate, stays_s
