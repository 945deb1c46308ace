"""States that can become stale, and how fast they must be refreshed (JAQPOT, section 4.2, definitions 2 and 5, lemmas 1
and 2).

    ∮^I           freshness of stream I, in seconds
    S_j° / λ_j°   how long a row stays in a state of so many rows, when so many come per second
    R_Sj          `refresh_rates`: rows per second that must come into a state

A state that counts rows keeps each one until enough others have come. So a row of I is in results for at most |S_I| /
λ_I + Σ_j |S_j| / λ_j seconds over the states j of its path (lemma 1). The state of a stream is refreshed by all rows of
the stream, whatever probes; each state of a join but the root's depends on probes: k−2 states in any binary plan of k
streams (lemma 2).

What is left to the paper's reader: lemma 1 gives each stream a *slack*, ∮^I − |S_I| / λ_I, for all states of its path
together. Here the slack is split evenly over these states, and a state takes the highest rate that any stream below it
asks for. So the rates are sufficient and not necessary. By lemma 1 a freshness of one window, which the paper calls the
default, leaves no slack, and no plan of several joins can keep it, with any resources.
"""

from __future__ import annotations

from math import inf

from anabranch.overload.allocation import Limits
from anabranch.overload.half_way import Join, Plan, Stream
from anabranch.overload.paths import input_paths


def staleness_susceptible(plan: Plan) -> tuple[str, ...]:
    """The states that depend on joins below for new rows."""
    return tuple(each.name for each in plan.joins if each is not plan.root)


def window_s(stream: Stream) -> float:
    """How long a row stays in the state of its stream: |S_I| / λ_I."""
    if stream.state_rows == 0:
        return 0.0
    return stream.state_rows / stream.rate_per_s if stream.rate_per_s else inf


def refresh_rates(plan: Plan, limits: Limits, factor: float = 1.0) -> dict[str, float]:
    """R: rows per second that must come into each state that can become stale, if freshness is what is asked for times
    a factor. Infinite where a stream leaves no slack; 0 where no stream asks.

    >>> from anabranch.overload.half_way import Stream, join
    >>> a, b, c = Stream("a", 100, 1000, 0), Stream("b", 100, 500, 0), Stream("c", 100, 1000, 0)
    >>> plan = Plan(join(join(a, b, 0.01, 200), c, 0.01))
    >>> refresh_rates(plan, Limits(100.0, {"a": 15.0, "b": 15.0}))
    {'(a b)': 40.0}
    """
    limits.verify(plan)
    found = dict.fromkeys(staleness_susceptible(plan), 0.0)
    streams = {stream.name: stream for stream in plan.streams}
    for path in input_paths(plan):
        asked = limits.freshness_s.get(path.stream)
        if asked is None:
            continue
        for name in path.states:
            state = plan.inputs[name]
            assert isinstance(state, Join)
            slack_s = (asked * factor - window_s(streams[path.stream])) / len(path.states)
            rate = state.state_rows / slack_s if slack_s > 0 else inf if state.state_rows else 0.0
            found[name] = max(found[name], rate)
    return found
