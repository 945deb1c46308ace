"""Whether a change is worth it: the same for another plan and for another form of the query, whoever found it.

Keeping things as they are is always allowed. A change must need less than `WORTH` of the CPU of what runs, or bring the
query into its budget; and what it saves while things stay as they are must pay for the way there.
"""

from __future__ import annotations

from dataclasses import dataclass

WORTH = 0.9
"""A change must need less than this share of the CPU of what runs, or bring the query into its budget."""

FREE_WORTH = 0.95
"""And less than this one where the way there costs nothing, as that to other slices does."""


@dataclass(frozen=True)
class Change:
    """What a policy found: the cores that the query needs now, and those that it would need."""

    now: float
    then: float
    becomes_qualified: bool
    """Whether the query is over its budget now, and would not be."""
    share: float = WORTH
    """The share of the CPU of what runs than which it must need less."""

    @property
    def is_better(self) -> bool:
        """Whether it is better by enough to think of the way there."""
        return self.becomes_qualified or self.then < self.share * self.now

    def gain_s(self, life_s: float) -> float:
        """The seconds of CPU that it saves if things stay as they are for so long."""
        return (self.now - self.then) * life_s

    def pays(self, cost_s: float, life_s: float) -> bool:
        """Whether what it saves pays for the way there, in seconds of CPU."""
        return self.becomes_qualified or self.gain_s(life_s) > cost_s

    def pays_after_s(self, cost_s: float) -> float | None:
        """How long things must stay as they are for it to pay; None: it never would."""
        saved = self.now - self.then
        return cost_s / saved if saved > 0 else None
