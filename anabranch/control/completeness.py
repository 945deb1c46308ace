"""How complete the results of a query are while some may be missing: delivered results beside the number that was estimated,
with the standard error of that.

Example: in a batch every second row of an input looked up its partners, and 500 results were found. Each of them counts for
two, so about 1,000 were to be found, and half of them are there. How far from 1,000 the true number may be follows from how
unevenly rows find partners: `Limited.variance`. Only results that are as fresh as promised count.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from anabranch.control.records import Limit, QueryCommit, Statistics
from anabranch.plan.query import FOREVER_US, Query

BY_CHANCE = 1e-6
"""An estimate that differs from what was delivered by a smaller share is the same number: sums of floats."""


class Completeness(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of one batch, or of all since some batch."""

    since: int
    """The first batch that counts."""
    results: int = 0
    estimated: float = 0.0
    variance: float = 0.0
    is_known: bool = True
    """Whether there is an estimate: no row of an input that nobody looks up partners for tells what it would find."""
    covariance: float = 0.0
    """How much more the sum of this batch and those before varies than they do by themselves."""
    is_partial: bool = False
    """Whether rows came that did not all look up, or whose partners may have been shed: where nothing was found there may be
    results all the same."""

    def __add__(self, later: Completeness) -> Completeness:
        return Completeness(
            self.since, self.results + later.results, self.estimated + later.estimated,
            self.variance + later.variance + later.covariance, self.is_known and later.is_known,
            is_partial=self.is_partial or later.is_partial,
        )  # fmt: skip

    @property
    def share(self) -> float | None:
        """Of the results that were to be found, those that were delivered; None where that is not known."""
        if not self.is_known or (self.is_partial and not self.estimated):
            return None
        return self.results / self.estimated if self.estimated else 1.0

    @property
    def error(self) -> float:
        """The standard error of the share."""
        return (self.share or 0.0) * math.sqrt(self.variance) / self.estimated if self.estimated else 0.0

    def __str__(self) -> str:
        """
        >>> print(Completeness(3, 500, 1_000.0, 400.0), Completeness(3, is_known=False), sep=", ")
        50 % ± 1 % of the results, an unknown share of the results
        """
        if self.share is None:
            return "an unknown share of the results"
        return f"{_percent(self.share)} ± {_percent(self.error)} of the results"


def _percent(share: float) -> str:
    return f"{share * 100:.2g} %" if share < 0.1 else f"{share * 100:.0f} %"


def missing_until_us(query: Query, shed: Collection[str], seen: Mapping[str, int], before_us: int) -> int:
    """The watermark from which on no row that was shed could be in a result: rows of some streams have been, of the largest
    times that were seen at most, and before that some that could until `before_us`.

    Example: rows of a are valid for five seconds, and some of 12:00:00 were shed. Rows of b that come find them as long as
    they may be of before 12:00:05; then results are exact again, whether one with a shed row is among them or not."""
    known = seen.keys() & set(shed)
    ends = [seen[i.source.name] + i.window.length_us for i in query.inputs if i.source.name in known]
    return min(FOREVER_US, max([before_us, *ends]))


def completeness_of(batch: int, commit: QueryCommit) -> Completeness | None:
    """How complete the results of a batch are; None if nothing is missing."""
    limited, sources = commit.statistics.limited, commit.statistics.sources
    is_shed = commit.watermark_us < commit.missing_until_us
    is_limited = any(each.share is None or each.share < 1 for each in commit.limits.values())
    results = sum(each.results for each in limited.values())
    estimated = sum(each.estimated for each in limited.values())
    is_missing = abs(estimated - results) > BY_CHANCE * max(estimated, 1.0)
    if not (is_limited or is_shed or is_missing):
        return None
    unseen = [alias for alias, each in limited.items() if each.rows and commit.limits.get(alias, Limit()).share == 0]
    variance, covariance = (sum(getattr(each, what) for each in limited.values()) for what in ("variance", "covariance"))
    if is_shed and not limited and commit.statistics.results:  # nobody counts any more what results stand for
        unseen.append("")
    came = any(each.rows for each in sources.values())
    is_partial = any(each.probed < each.rows for each in limited.values()) or (is_shed and came)
    return Completeness(batch, results, estimated, variance, not unseen, covariance, is_partial)


def since_adapted(before: Completeness | None, batch: Completeness | None) -> Completeness | None:
    """The sums since results were last all there: of the batches before this one, and this one. None if it is exact."""
    if batch is None or before is None:
        return batch
    return before + batch


def unprobed_rows(statistics: Statistics) -> dict[str, int]:
    """By alias, rows that did not look up their partners where results are found."""
    return {alias: each.rows - each.probed for alias, each in statistics.limited.items() if each.rows > each.probed}


class LeftOut(msgspec.Struct, frozen=True, omit_defaults=True):
    """What batches of a query left out, all of which were exact, or none; and how far behind the last was.

    Example: batches 41 to 43 ran under limits, and batch 44 is exact. What is told after batch 43 counts three batches,
    since 41; after batch 44 it counts one.
    """

    since: int
    """The first batch that counts."""
    completeness: Completeness | None = None
    """None: all are exact."""
    unprobed_rows: int = 0
    shed_rows: int = 0
    stale_rows: int = 0
    stale_results: int = 0
    lag_s: float | None = None
    """How far event times were behind the driver's clock, when the last was over; None where some stream has shown none."""

    def then(self, later: LeftOut) -> LeftOut:
        """After a later batch."""
        complete, new = self.completeness, later.completeness
        if (complete is None) is not (new is None):
            return later
        both = None if complete is None or new is None else complete + new
        return LeftOut(
            self.since, both, self.unprobed_rows + later.unprobed_rows, self.shed_rows + later.shed_rows,
            self.stale_rows + later.stale_rows, self.stale_results + later.stale_results, later.lag_s,
        )  # fmt: skip

    def __str__(self) -> str:
        """
        >>> print(LeftOut(41, Completeness(41, 730, 1_000.0, 100.0), 12_345, stale_results=17, lag_s=2.13))
        since batch 41 adapted: 73 % ± 0.73 % of the results, 12,345 rows not looked up, 17 results too old; 2.1 s behind \
the clock
        >>> print(LeftOut(44, lag_s=0.4))
        since batch 44 exact: 0 results too old; 0.4 s behind the clock
        """
        parts = [f"{self.stale_results:,} results too old"]
        if self.stale_rows:
            parts.append(f"{self.stale_rows:,} rows too old")
        if self.shed_rows:
            parts.insert(0, f"{self.shed_rows:,} rows shed")
        if self.completeness is not None:
            parts[:0] = [str(self.completeness), f"{self.unprobed_rows:,} rows not looked up"]
        behind = f"; {max(0.0, self.lag_s):,.1f} s behind the clock" if self.lag_s is not None else ""
        kind = "exact" if self.completeness is None else "adapted"
        return f"since batch {self.since} {kind}: {', '.join(parts)}{behind}"

    @property
    def details(self) -> dict[str, Any]:
        """The same as plain values; a share of None is not known."""
        complete = self.completeness
        share, error = (1.0, 0.0) if complete is None else (complete.share, complete.error)
        return {
            "is_exact": complete is None, "since": self.since, "complete_share": share, "complete_error": error,
            "unprobed_rows": self.unprobed_rows, "shed_rows": self.shed_rows, "stale_rows": self.stale_rows,
            "stale_results": self.stale_results, "lag_s": self.lag_s,
        }  # fmt: skip


def left_out_of(batch: int, commit: QueryCommit, lag_s: float | None) -> LeftOut:
    """What a batch left out of a query."""
    sources, counted = commit.statistics.sources, commit.statistics
    return LeftOut(
        batch, completeness_of(batch, commit), sum(unprobed_rows(counted).values()),
        sum(each.shed_rows for each in sources.values()), sum(each.stale_rows for each in sources.values()),
        counted.stale_results, lag_s,
    )  # fmt: skip


def together(batches: Sequence[LeftOut]) -> LeftOut | None:
    """What batches left out, oldest first, since the newest of another kind."""
    found: LeftOut | None = None
    for each in batches:
        found = each if found is None else found.then(each)
    return found
