"""A simulator of the paper's plans: states count rows, and half-way joins have allowances (JAQPOT, sections 2 and 5).

Time goes in ticks. In each tick the new rows of each stream in turn probe, as far as the allowance of their half-way
join goes (the rows that do are drawn at random), what they find goes up at once, probes and is stored in its state, and
the new rows are stored. A state keeps the newest |S| rows, whatever their age: one that no probes feed keeps old rows
for ever, and so becomes stale. Root results are counted, not built.

A result is stale for a freshness if it has a row of a stream that is older than the freshness of the stream (definition 2).
An allowance may be saved up for `SAVED_S` seconds, for rows come in bursts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from anabranch.errors import PlanError
from anabranch.overload.half_way import Join, Plan
from bench.papers.jaqpot.matching import Array, Equality, Parts, Rows, keys_between, pairs, size, taken

SAVED_S = 1.0


@dataclass
class Counted:
    """What a run counted: results and stale results by tick, probes and finds by half-way join."""

    results: Array
    stale: Array
    """By tick and freshness."""
    probes: dict[str, int]
    finds: dict[str, int]
    states: dict[str, int]
    """Rows in the states that probes looked up, summed over probes: with `finds` it gives selectivities."""


@dataclass
class CountWindows:
    """A plan that runs. `freshness_s` are the settings by which results are judged, each by stream."""

    plan: Plan
    rows: Mapping[str, Rows]
    equalities: Sequence[Equality]
    tick_s: float
    freshness_s: Sequence[Mapping[str, float]]
    seed: int = 0
    states: dict[str, Parts] = field(default_factory=dict)
    clock_s: float = 0.0

    def __post_init__(self) -> None:
        if any(len(join.inputs) != 2 for join in self.plan.joins):
            raise PlanError(f"{self.plan.root.name} has a join of more than two inputs: only binary plans count rows here")
        self._random = np.random.default_rng(self.seed)
        self._partner = {
            one.name: other.name for join in self.plan.joins for one, other in (join.inputs, join.inputs[::-1])
        }
        self._sizes = {name: int(each.state_rows) for name, each in self.plan.inputs.items()}
        self._credit = dict.fromkeys(self.plan.inputs, 0.0)
        for name, each in self.plan.inputs.items():
            streams = [stream.name for stream in each.streams]
            self.states.setdefault(name, {stream: np.zeros(0, dtype=np.int64) for stream in streams})

    def fill(self, at_s: float) -> None:
        """Fills all states as if nothing had been limited until then: streams' with their newest rows, joins' with rows of
        what the states of their streams have, at random."""
        self.clock_s = at_s
        newest = {}
        for stream in self.plan.streams:
            end = int(np.searchsorted(self.rows[stream.name].times_s, at_s))
            newest[stream.name] = np.arange(max(0, end - self._sizes[stream.name]), end)
            self.states[stream.name] = {stream.name: newest[stream.name]}
        for name, each in self.plan.inputs.items():
            if isinstance(each, Join):
                self.states[name] = {
                    one.name: self._random.choice(newest[one.name], self._sizes[name]) for one in each.streams
                }

    def run(self, until_s: float, allowances: Mapping[str, float] | None) -> Counted:
        """Goes on to a time, with these allowances by input in rows per second; without any, nothing is limited."""
        ticks = round((until_s - self.clock_s) / self.tick_s)
        names = [*self.plan.inputs]
        self._counted = Counted(
            np.zeros(ticks, dtype=np.int64), np.zeros((ticks, len(self.freshness_s)), dtype=np.int64),
            dict.fromkeys(names, 0), dict.fromkeys(names, 0), dict.fromkeys(names, 0),
        )  # fmt: skip
        self._allowances = allowances
        began_s = self.clock_s
        for self._tick in range(ticks):
            before_s, self.clock_s = self.clock_s, began_s + (self._tick + 1) * self.tick_s
            for name, rate in (allowances or {}).items():
                most = max(1.0, rate * max(SAVED_S, self.tick_s))
                self._credit[name] = min(most, self._credit[name] + self.tick_s * rate)
            for stream in self.plan.streams:
                times_s = self.rows[stream.name].times_s
                first, last = np.searchsorted(times_s, (before_s, self.clock_s))
                if last > first:
                    self._arrive(stream.name, {stream.name: np.arange(first, last)})
        return self._counted

    def _arrive(self, name: str, parts: Parts) -> None:
        """Rows come to an input: some probe, all are stored."""
        probing = self._allowed(name, parts)
        partner = self.states[self._partner[name]]
        if (count := size(probing)) and (there := size(partner)):
            ((left, right),) = keys_between(self.rows, self.equalities, probing, partner)
            self._counted.probes[name] += count
            self._counted.states[name] += count * there
            if self.plan.above[name] == self.plan.root.name:
                self._count(name, probing, partner, left, right)
            else:
                at_left, at_right = pairs(left, right)
                self._counted.finds[name] += len(at_left)
                if len(at_left):
                    self._arrive(self.plan.above[name], taken(probing, at_left) | taken(partner, at_right))
        most = self._sizes[name]
        self.states[name] = {
            stream: np.concatenate((ids, parts[stream][-most:]))[-most:] if most else ids[:0]
            for stream, ids in self.states[name].items()
        }

    def _allowed(self, name: str, parts: Parts) -> Parts:
        if self._allowances is None:
            return parts
        here, allowed = size(parts), int(self._credit[name] + 1e-9)
        if allowed < here:
            parts = taken(parts, np.sort(self._random.choice(here, allowed, replace=False)))
        self._credit[name] -= min(allowed, here)
        return parts

    def _count(self, name: str, probing: Parts, partner: Parts, left: Array, right: Array) -> None:
        """Counts the results that probes find at the root, and those of them that are stale."""
        order = np.argsort(right, kind="stable")
        ordered = right[order]
        low, high = np.searchsorted(ordered, left, "left"), np.searchsorted(ordered, left, "right")
        found = int((high - low).sum())
        self._counted.results[self._tick] += found
        self._counted.finds[name] += found
        for setting, freshness_s in enumerate(self.freshness_s):
            is_fresh = self._is_fresh(probing, freshness_s)
            fresh_before = np.concatenate(([0], np.cumsum(self._is_fresh(partner, freshness_s)[order])))
            fresh = int((fresh_before[high] - fresh_before[low])[is_fresh].sum())
            self._counted.stale[self._tick, setting] += found - fresh

    def _is_fresh(self, parts: Parts, freshness_s: Mapping[str, float]) -> Array:
        found = np.ones(size(parts), dtype=bool)
        for stream, ids in parts.items():
            found &= self.rows[stream].times_s[ids] >= self.clock_s - freshness_s[stream]
        return found
