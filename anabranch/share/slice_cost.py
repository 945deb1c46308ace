"""What a slice of a source costs on this engine (State-Slice, VLDB 2006, sections 5.2 and 6.2, in seconds and bytes).

w_1 < … < w_N are the windows of those who read a source. Of its rows f_m come per second that are wanted for w_m and no
longer, and g_k rows of other streams come per second that look it up, and look back no further than w_k. The slice from w_i
to w_j has the rows that are wanted for w_{i+1} to w_j, and keeps all of them for w_j (`anabranch.engine.slices`):

    bytes      Σ f_m · (w_j + slack) · (a row, and an entry in each index)
    upkeep     a spine of each index, brought up to date with each batch, and a lookup of the whole batch in it
    lookups    Σ g_k · runs(w_j): a new row looks into each run of the slice, whether it finds anything there or not
    pairs      Σ g_k · f_m · σ · min(w_k, w_j): what is found; rows that are older than w_m are found, and thrown away

m is from i+1 to j. No term depends on how the rest is cut (lemma 2), so that `cpu_opt` is exact. A slice
that no row goes to is not there, and costs nothing. (Where a slice ends, what is left of a segment is copied. In
`bench.slices` that cannot be told from what a slice costs anyway.)

The paper's chain also saves *routing*: a result is compared with the windows of the queries that read its slice. Here the
age of a combination is looked up in a table of all windows, in every chain (`anabranch.engine.lineage`), so a finer chain
saves nothing of it. What is left for a chain to save are the rows and probes that a selection spares (section 6.2); without
selections all rows are wanted for w_N, and there is one slice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from anabranch.cost.facts import HORIZON_S
from anabranch.cost.model import Cost, UnitCosts
from anabranch.plan.query import FOREVER_US

SLICE_S = 160e-6
"""A slice of an index, for each batch: a spine is kept, and each lookup of a batch visits it (`python -m bench.slices`)."""

SET_S = 8e-9
"""A pair in a shared join, more than in a query by itself: whose it is must be told, also if it is nobody's (a candidate by
the same, less a pair of `anabranch.cost.units.DEFAULT`)."""

SliceCost = Callable[[int, int], Cost]
"""What the slice from w_i to w_j costs, by (i, j) with 0 <= i < j <= N."""

NOTHING = Cost(0.0, 0.0)


@dataclass(frozen=True)
class SourceLoad:
    """How the rows of a source are wanted and looked up, by all who read it."""

    source: str
    windows_us: tuple[int, ...]
    """w_1 < … < w_N."""
    wanted_per_s: tuple[float, ...]
    """f_1 … f_N."""
    probes_per_s: tuple[float, ...]
    """g_1 … g_N, added up over all lookups in its indexes."""
    match: float
    """σ: which share of the rows that are kept a row finds that looks them up."""
    row_bytes: float
    indexes: int = 1

    def __post_init__(self) -> None:
        count = len(self.windows_us)
        if not count or list(self.windows_us) != sorted(set(self.windows_us)) or self.windows_us[0] <= 0:
            raise ValueError(f"windows of {self.source} are longer than 0, sorted and distinct: {self.windows_us}")
        if (len(self.wanted_per_s), len(self.probes_per_s)) != (count, count):
            raise ValueError(f"of {self.source} there are {count} windows, and as many rates of rows and of lookups")

    @cached_property
    def windows_s(self) -> tuple[float, ...]:
        """A window without end counts as an hour, or as twice the longest that has one."""
        ending = [us / 1e6 for us in self.windows_us if us != FOREVER_US]
        never = max([HORIZON_S, *(2 * window_s for window_s in ending)])
        return (*ending, *([never] if len(ending) < len(self.windows_us) else []))

    @property
    def rate_per_s(self) -> float:
        return sum(self.wanted_per_s)

    @property
    def is_choosy(self) -> bool:
        """Whether some rows are wanted for shorter than others: else there is one slice, however it is cut."""
        return sum(rate > 0 for rate in self.wanted_per_s) > 1

    def ends(self, limits_us: tuple[int, ...]) -> tuple[int, ...]:
        """A chain by the numbers of its windows, for how slices are cut: where a slice ends between two windows, or beyond
        the last, its rows are wanted for the window before.

        >>> SourceLoad("s", (5, 9, 60), (1, 1, 1), (1, 1, 1), 0.1, 8.0).ends((5, 30, 60))
        (1, 2, 3)
        """
        found = {sum(1 for us in self.windows_us if us <= limit_us) for limit_us in limits_us}
        return tuple(sorted((found | {len(self.windows_us)}) - {0}))


def slice_cost(load: SourceLoad, units: UnitCosts, set_s: float = SET_S) -> SliceCost:
    """What each slice costs: all terms of the module's text. A pair costs `set_s` more than in a query by itself."""
    w, f, g = load.windows_s, load.wanted_per_s, load.probes_per_s
    up_to = [0.0, *accumulate(f)]
    probes, entry_bytes = sum(g), load.row_bytes + load.indexes * units.index_bytes
    # Σ g_k · min(w_k, w_j), for each j.
    back = [sum(rate * min(window, limit) for rate, window in zip(g, w, strict=True)) for limit in w]

    def cost(i: int, j: int) -> Cost:
        rows = up_to[j] - up_to[i]
        if rows <= 0:
            return NOTHING
        limit_s = w[j - 1]
        fixed = load.indexes * SLICE_S / units.batch_s
        lookups = probes * units.lookup_run * units.runs(limit_s)
        pairs = rows * load.match * back[j - 1] * (units.join + set_s)
        return Cost(fixed + lookups + pairs, rows * (limit_s + units.slack_s) * entry_bytes)

    return cost
