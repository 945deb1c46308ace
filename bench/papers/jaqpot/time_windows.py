"""A simulator of plans under our law: windows in time, and a joined row ends with the first of its parts.

For any plan, n-ary joins included. Each input of a join has the share of its rows that probes; all rows are stored.
Nothing becomes stale here: what a starved view lacks is missing. Rows come in batches, streams in the order of the plan
within a batch, so each result is found once, by the last of its rows that comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from anabranch.overload.half_way import Plan, Stream
from bench.papers.jaqpot.matching import Array, Equality, Parts, Rows, keys_between, pairs, size, taken


@dataclass
class Found:
    """Results by the input of the root whose rows found them, and probes by input; with the results themselves if asked
    for."""

    results: dict[str, int]
    probes: dict[str, int]
    rows: list[Parts] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(self.results.values())


@dataclass
class _View:
    """Joined rows with their validities."""

    parts: Parts
    start_s: Array
    end_s: Array

    def __len__(self) -> int:
        return len(self.start_s)

    def at(self, places: Array) -> _View:
        return _View(taken(self.parts, places), self.start_s[places], self.end_s[places])

    def and_then(self, more: _View) -> _View:
        return _View(
            {stream: np.concatenate((ids, more.parts[stream])) for stream, ids in self.parts.items()},
            np.concatenate((self.start_s, more.start_s)), np.concatenate((self.end_s, more.end_s)),
        )  # fmt: skip

    def joined(self, other: _View) -> _View:
        """Rows side by side, those whose validities intersect."""
        start_s, end_s = np.maximum(self.start_s, other.start_s), np.minimum(self.end_s, other.end_s)
        return _View(self.parts | other.parts, start_s, end_s).at(np.flatnonzero(start_s < end_s))


class TimeWindows:
    """A plan over rows that are all there, with the share of the rows of each input that probes."""

    def __init__(
        self, plan: Plan, rows: Mapping[str, Rows], equalities: Sequence[Equality], windows_s: Mapping[str, float],
        shares: Mapping[str, float], seed: int = 0, keeps_results: bool = False,
    ) -> None:  # fmt: skip
        self.plan, self.rows, self.equalities, self.windows_s = plan, rows, equalities, windows_s
        self.shares, self.keeps_results = shares, keeps_results
        self._random = np.random.default_rng(seed)
        self._joins = {each.name: join for join in plan.joins for each in join.inputs}
        nothing = np.zeros(0, dtype=np.int64)
        self._views = {
            name: _View({stream.name: nothing for stream in each.streams}, nothing.astype(float), nothing.astype(float))
            for name, each in plan.inputs.items()
        }

    def run(self, until_s: float, batch_s: float) -> Found:
        """All batches up to a time."""
        self._found = Found({each.name: 0 for each in self.plan.root.inputs}, dict.fromkeys(self.plan.inputs, 0))
        for batch in range(int(np.ceil(until_s / batch_s))):
            began_s, ended_s = batch * batch_s, min(until_s, (batch + 1) * batch_s)
            for name, view in self._views.items():
                self._views[name] = view.at(np.flatnonzero(view.end_s > began_s))
            for stream in self.plan.streams:
                self._arrive(stream.name, self._new(stream, began_s, ended_s))
        return self._found

    def _new(self, stream: Stream, from_s: float, to_s: float) -> _View:
        times_s = self.rows[stream.name].times_s
        first, last = np.searchsorted(times_s, (from_s, to_s))
        start_s = times_s[first:last]
        return _View({stream.name: np.arange(first, last)}, start_s, start_s + self.windows_s[stream.name])

    def _arrive(self, name: str, view: _View) -> None:
        """Rows come to an input: some probe the others one by one, all are stored."""
        if not len(view):
            return
        probing, join = self._allowed(name, view), self._joins[name]
        self._found.probes[name] += len(probing)
        left = [each.name for each in join.inputs if each.name != name]
        while left:
            partner = self._next(probing.parts, left)
            left.remove(partner)
            probing = self._probe(probing, self._views[partner])
        if join is self.plan.root:
            self._found.results[name] += len(probing)
            if self.keeps_results:
                self._found.rows.append(probing.parts)
        else:
            self._arrive(join.name, probing)
        self._views[name] = self._views[name].and_then(view)

    def _allowed(self, name: str, view: _View) -> _View:
        share = self.shares.get(name, 1.0)
        return view if share >= 1 else view.at(np.flatnonzero(self._random.random(len(view)) < share))

    def _next(self, bound: Parts, names: Sequence[str]) -> str:
        """The first input, as written, that an equality connects to what is bound."""
        for name in names:
            if any(each.columns(bound, self._views[name].parts) for each in self.equalities):
                return name
        return names[0]

    def _probe(self, probing: _View, partner: _View) -> _View:
        first, *others = keys_between(self.rows, self.equalities, probing.parts, partner.parts)
        left, right = pairs(*first)
        for one, other in others:
            kept = one[left] == other[right]
            left, right = left[kept], right[kept]
        return probing.at(left).joined(partner.at(right))




def result_tuples(found: Found, streams: Sequence[str]) -> list[tuple[int, ...]]:
    """The ids of each result, sorted: to compare runs by."""
    return sorted(
        row for parts in found.rows if size(parts) for row in zip(*(parts[name].tolist() for name in streams), strict=True)
    )  # fmt: skip
