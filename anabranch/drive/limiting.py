"""What the queries of a pipeline may lose under overload, from batch to batch.

Which rows may look up their partners, and which are shed, stands in the control record, so that a batch that runs again
limits the same rows; a driver that starts anew goes on with what the newest commit says. What is decided is decided by a
`Limiter` (`anabranch.control.loop`), after a batch, and holds from the next one on. What is told of a decision ends with
what was measured since results are missing, or since none is: how complete they were, what was left out, how far behind.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anabranch.control.completeness import LeftOut, left_out_of
from anabranch.control.loop import Allowing, Limiter, Load, LoadRemark
from anabranch.control.records import Commit, Control, Limit
from anabranch.plan.actions import SetAllowances
from anabranch.plan.overload import Clock, Overload
from anabranch.plan.query import Query

Tell = Callable[..., None]
"""Notes something in the journal of a query, or (None) in those of all: `tell(query, batch, event, text, **details)`."""


class Limiting:
    """The limits that hold, and whoever decides about them."""

    def __init__(
        self,
        overload: Overload | None = None,
        limiter: Limiter | None = None,
        draw_salt: Callable[[], int] = lambda: uuid.uuid4().int >> 65,
    ) -> None:
        """`draw_salt` gives each batch the salt by which rows are chosen."""
        self.overload, self.limiter, self.draw_salt = overload or Overload(), limiter, draw_salt
        self.limits: dict[str, dict[str, Limit]] = {}
        """By query and input."""
        self.shed: dict[str, float] = {}
        """The share of rows of each stream that is kept."""
        self._left_out: dict[str, LeftOut] = {}
        """By query: of batches of this run, and the newest before it."""

    @property
    def may_lose(self) -> bool:
        """Whether results may be missing, now or later."""
        return self.overload.policy.may_lose

    @property
    def cores(self) -> Mapping[str, float]:
        """While there is too little CPU: by query, what lookups that give results may take."""
        return self.limiter.cores if self.limiter is not None else {}

    @property
    def clock(self) -> Clock:
        return self.overload.clock or Clock.EVENT

    def open(self, newest: Commit | Control | None, tell: Tell) -> None:
        """Goes on with what held so far; where nothing may be lost any more, nothing is limited."""
        if self.limiter is None:
            return
        if newest is not None:
            self.limits = {name: dict(own.limits) for name, own in newest.queries.items() if own.limits}
            self.shed = dict(newest.shed)
        if isinstance(newest, Commit):
            self._measure(newest, None)
        self._follow(self.limiter.at_start(self.limits, self.shed), newest.batch if newest is not None else -1, tell)

    def serve(self, queries: Mapping[str, Query], batch: int, tell: Tell) -> None:
        """Has whoever decides know that queries have come, were altered, or have left: these are all that there are."""
        self.limits = {name: own for name, own in self.limits.items() if name in queries}
        if self.limiter is not None:
            self._follow(self.limiter.serve(queries), batch, tell)

    def after(self, load: Load, tell: Tell) -> None:
        """Asks what follows from a batch."""
        if self.limiter is not None:
            self._measure(load.commit, load.planned_us / 1e6 + load.seconds)
            self._follow(self.limiter.after(load), load.commit.batch, tell)

    def _measure(self, commit: Commit, over_s: float | None) -> None:
        """Takes note of what a batch left out; `over_s` is when it was over, by the driver's clock."""
        found = {}
        for name, own in commit.queries.items():
            seen = [us for source, us in commit.largest_time_us.items() if source in own.statistics.sources]
            lag_s = over_s - min(seen) / 1e6 if seen and over_s is not None else None
            batch = left_out_of(commit.batch, own, lag_s)
            found[name] = self._left_out[name].then(batch) if name in self._left_out else batch
        self._left_out = found

    def _follow(self, said: Sequence[Allowing | LoadRemark], batch: int, tell: Tell) -> None:
        for each in said:
            if isinstance(each, LoadRemark):
                self._tell(each.query, batch, each.remark.event, each.remark.text, each.remark.details, tell)
                continue
            query: str | None
            if isinstance(each.action, SetAllowances):
                rows = {alias: Limit(rows=dict(by_slot)) for alias, by_slot in each.action.rows.items() if by_slot}
                rows |= {alias: Limit(share=share) for alias, share in each.action.shares.items()}
                self.limits[each.action.query] = rows
                query, event = each.action.query, "limiting" if rows else "lifted"
            else:
                self.shed = {name: share for name, share in each.action.kept.items() if share < 1}
                query, event = None, "shedding" if self.shed else "lifted"
            if each.text:
                self._tell(query, batch, event, each.text, each.details, tell)

    def _tell(self, query: str | None, batch: int, event: str, text: str, details: Mapping[str, Any], tell: Tell) -> None:
        """Notes something, with what was left out of each query that it is of."""
        names: Sequence[str | None] = [*self._left_out] if query is None and self._left_out else [query]
        for name in names:
            if name is not None and (left_out := self._left_out.get(name)) is not None:
                tell(name, batch, event, f"{text}; {left_out}", **details, measured=left_out.details)
            else:
                tell(name, batch, event, text, **details)
