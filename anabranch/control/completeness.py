"""How complete the results of a query are while some may be missing: delivered results beside the number that was estimated,
with the standard error of that.

Example: in a batch every second row of an input looked up its partners, and 500 results were found. Each of them counts for
two, so about 1,000 were to be found, and half of them are there. How far from 1,000 the true number may be follows from how
unevenly rows find partners: `Limited.variance`. Only results that are as fresh as promised count.
"""

from __future__ import annotations

import math

import msgspec

from anabranch.control.records import Limit, QueryCommit

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

    def __add__(self, later: Completeness) -> Completeness:
        return Completeness(
            self.since, self.results + later.results, self.estimated + later.estimated,
            self.variance + later.variance + later.covariance, self.is_known and later.is_known,
        )  # fmt: skip

    @property
    def share(self) -> float | None:
        """Of the results that were to be found, those that were delivered; None where that is not known."""
        if not self.is_known:
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


def completeness_of(batch: int, commit: QueryCommit, is_shed: bool) -> Completeness | None:
    """How complete the results of a batch are; None if nothing is missing. `is_shed`: rows of streams were shed in it."""
    limited = commit.statistics.limited
    results = sum(each.results for each in limited.values())
    estimated = sum(each.estimated for each in limited.values())
    is_missing = abs(estimated - results) > BY_CHANCE * max(estimated, 1.0)
    if not (commit.limits or is_shed or is_missing):
        return None
    unseen = [alias for alias, each in limited.items() if each.rows and commit.limits.get(alias, Limit()).share == 0]
    variance, covariance = (sum(getattr(each, what) for each in limited.values()) for what in ("variance", "covariance"))
    return Completeness(batch, results, estimated, variance, not unseen, covariance)


def since_adapted(before: Completeness | None, batch: Completeness | None) -> Completeness | None:
    """The sums since results were last all there: of the batches before this one, and this one. None if it is exact."""
    if batch is None or before is None:
        return batch
    return before + batch
