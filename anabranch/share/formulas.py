"""The equations of the paper for two queries (State-Slice, VLDB 2006, sections 3, 4.3 and 5.2).

Q1 is A[W1] ⋈ B[W1], Q2 is σ(A[W2]) ⋈ B[W2] with W1 < W2; both streams have the rate λ. CPU is counted in comparisons
per second of a nested-loop join: a row is compared with each row of the state that it looks up, and a purge, a
selection, a routing step and a merging step are one comparison each.

| symbol of the paper | here |
|---|---|
| λ | `rate_per_s` |
| W1, W2 | `short_s`, `long_s` |
| Mt | `row_kb` |
| S_σ, S_⋈ | `selectivity`, `join_selectivity` |
| ρ = W1 / W2 | `ratio` |
| C_m, C_p | `Cost.memory_kb`, `Cost.comparisons_per_s` |

Equation 2 is not legible in the copies of the paper that we have. `push_down` is derived from the text beside it, term
by term, and together with equations 1 and 3 gives equation 4. In equation 4, the left sides of rows 3 and 4 are read as
C_p(1) − C_p(3) and C_p(2) − C_p(3), which is what the right sides are.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TwoQueries:
    """Table 1."""

    rate_per_s: float
    short_s: float
    long_s: float
    selectivity: float
    join_selectivity: float
    row_kb: float = 1.0

    @property
    def ratio(self) -> float:
        """ρ."""
        return self.short_s / self.long_s


@dataclass(frozen=True)
class Cost:
    """C_m and C_p. The terms of C_p that are linear in λ (purging, splitting, filtering, merging by punctuation) stand
    apart, because equation 4 leaves them out."""

    memory_kb: float
    quadratic_per_s: float
    linear_per_s: float

    @property
    def comparisons_per_s(self) -> float:
        return self.quadratic_per_s + self.linear_per_s


def pull_up(given: TwoQueries) -> Cost:
    """Equation 1: one join over the longer window, a router and a selection above it (fig. 3).

    >>> pull_up(TwoQueries(10.0, 1.0, 60.0, 0.01, 0.1)).memory_kb
    1200.0
    """
    rate, long_s, joins = given.rate_per_s, given.long_s, given.join_selectivity
    probing = 2 * rate**2 * long_s
    routing = selecting = 2 * rate**2 * long_s * joins
    purging = 2 * rate
    return Cost(2 * rate * long_s * given.row_kb, probing + routing + selecting, purging)


def push_down(given: TwoQueries) -> Cost:
    """Equation 2: A is split by σ; the rows that fail meet B[W1], the others B[W2], whose results are routed (fig. 4)."""
    rate, short_s, long_s = given.rate_per_s, given.short_s, given.long_s
    passing, joins = given.selectivity, given.join_selectivity
    memory = (2 - passing) * rate * short_s + (1 + passing) * rate * long_s
    probing = 2 * (1 - passing) * rate**2 * short_s + 2 * passing * rate**2 * long_s
    routing = 2 * passing * rate**2 * long_s * joins
    merging = 2 * rate**2 * short_s * joins
    splitting, purging = rate, 3 * rate
    return Cost(memory * given.row_kb, probing + routing + merging, splitting + purging)


def state_slice(given: TwoQueries) -> Cost:
    """Equation 3: the slices [0, W1) and [W1, W2), with σ between them, and on the results of the first for Q2 (fig. 10)."""
    rate, short_s, long_s = given.rate_per_s, given.short_s, given.long_s
    passing, joins = given.selectivity, given.join_selectivity
    memory = 2 * rate * short_s + (1 + passing) * rate * (long_s - short_s)
    probing = 2 * rate**2 * short_s + 2 * passing * rate**2 * (long_s - short_s)
    selecting = 2 * rate**2 * joins * short_s
    filtering, purging, merging = rate, 4 * rate, 2 * rate
    return Cost(memory * given.row_kb, probing + selecting, filtering + purging + merging)


@dataclass(frozen=True)
class Savings:
    """Equation 4: what state-slice saves, as shares of what the other way needs; of CPU without the linear terms."""

    memory_of_pull_up: float
    memory_of_push_down: float
    cpu_of_pull_up: float
    cpu_of_push_down: float


def savings(ratio: float, selectivity: float, join_selectivity: float) -> Savings:
    """Equation 4, by ρ, S_σ and S_⋈.

    >>> savings(0.5, 0.5, 0.1).memory_of_pull_up
    0.125
    """
    passing, joins = selectivity, join_selectivity
    return Savings(
        (1 - ratio) * (1 - passing) / 2,
        ratio / (1 + 2 * ratio + (1 - ratio) * passing),
        ((1 - ratio) * (1 - passing) + (2 - ratio) * joins) / (1 + 2 * joins),
        passing * joins / (ratio * (1 - passing) + passing + passing * joins + ratio * joins),
    )


def crossover_with_pull_up(ratio: float, selectivity: float, join_selectivity: float) -> float:
    """The rows λ·W2 in the longer window below which state-slice needs *more* CPU than pull-up.

    From equations 1 and 3 with all their terms: 2λ²W2[(1−ρ)(1−S_σ) + (2−ρ)S_⋈] = 5λ. Not in the paper, whose equation 4
    drops the linear terms and finds all savings positive.

    >>> round(crossover_with_pull_up(0.5, 1.0, 0.025), 2)
    66.67
    """
    return 5 / (2 * ((1 - ratio) * (1 - selectivity) + (2 - ratio) * join_selectivity))


def crossover_with_push_down(selectivity: float, join_selectivity: float) -> float:
    """The rows λ·W2 in the longer window below which state-slice needs *more* CPU than push-down: 2Sλ²W2J = 3λ.

    >>> round(crossover_with_push_down(0.2, 0.025), 2)
    300.0
    """
    return 3 / (2 * selectivity * join_selectivity)


def merging_saves(
    slices: int, span_s: float, rates_per_s: tuple[float, float], join_selectivity: float, overhead: float
) -> float:
    """C_p(a) − C_p(b) of section 5.2: the comparisons per second that merging slices J_i … J_j into one saves (fig. 13).

    `slices` is j − i + 1, `span_s` is w_j − w_{i−1}, `rates_per_s` are λ_A and λ_B, and `overhead` is C_sys, what one
    operator costs for each row that comes, in comparisons. The paper prints C_sys(j − i + 1); merging removes j − i
    operators, so here it is C_sys(j − i), and merging one slice with nothing saves nothing.

    >>> merging_saves(1, 5.0, (20.0, 20.0), 0.025, 7.0)
    0.0
    """
    rate_a, rate_b = rates_per_s
    removed = slices - 1
    purging, system = (rate_a + rate_b) * removed, overhead * removed * (rate_a + rate_b)
    routing = 2 * rate_a * rate_b * span_s * join_selectivity * removed
    return purging - routing + system
