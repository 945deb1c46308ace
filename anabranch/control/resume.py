"""What a checkpoint goes on with: which batch a trigger of Spark's stands for, what is done already, what is refused.

**A batch whose commit is whole is never run again.** Let c be the newest whole commit:

- Spark brings c's trigger: nothing is computed; what has not been delivered is delivered from the files that tasks staged;
- Spark brings the next trigger: it runs as batch c+1, from the control record that is there if there is one;
- a control record of batch c+1 that has c's own trigger is a closing step cut short (a closing step has no trigger of its
  own): it runs to its end before Spark brings anything;
- anything else is refused. A torn newest commit counts as none, so that the same rules tell whether its batch can run again.

Example: batch 4 came with trigger 3, batch 5 was the closing step after it, and its commit was torn by a crash. The newest
whole commit is that of batch 4, control record 5 has trigger 3: the closing step runs again, with the token it had. Had the
commit of batch 4 been lost as well, c were batch 3 of trigger 2; Spark, which knows that trigger 3 is over, brings 4:
refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from anabranch.control.ledger import Ledger
from anabranch.control.records import Commit, Control
from anabranch.errors import StateError

REMEDY = "the checkpoint's parts do not belong together; restore all of it, or start with an empty one"


class Meaning(Enum):
    """What is done when Spark brings a trigger."""

    RUN = "run the batch after the newest commit"
    DONE = "the newest commit has it: there is nothing to run"


@dataclass(frozen=True)
class Standing:
    """Where a checkpoint stands."""

    commit: Commit | None = None
    """The newest that is whole."""
    begun: Control | None = None
    """What the batch after it started from, if it was begun."""
    torn: tuple[str, ...] = ()
    """Commits after it, which are not whole."""

    @property
    def trigger(self) -> int:
        """The last trigger that is committed; -1 before the first."""
        return self.commit.trigger if self.commit is not None else -1

    @property
    def batch(self) -> int:
        """The last batch that is committed; -1 before the first."""
        return self.commit.batch if self.commit is not None else -1

    @property
    def is_cut_short(self) -> bool:
        """Whether a closing step was begun and is not committed."""
        return self.begun is not None and self.begun.trigger == self.trigger

    def meaning(self, trigger: int) -> Meaning:
        """What to do about a trigger of Spark's."""
        if self.commit is not None and trigger == self.trigger:
            return Meaning.DONE
        if trigger != self.trigger + 1:
            raise StateError(f"Spark brings trigger {trigger}, but {self._newest()}: {REMEDY}")
        return Meaning.RUN

    def _newest(self) -> str:
        found = "there is no whole commit"
        if self.commit is not None:
            found = f"the newest whole commit is that of batch {self.batch}, of trigger {self.trigger}"
        return f"{found} ({' and '.join(self.torn)} torn or changed)" if self.torn else found


def standing_of(commits: Ledger[Commit], controls: Ledger[Control]) -> Standing:
    """Where a checkpoint stands, by its records."""
    latest = commits.latest()
    commit = latest[1] if latest is not None else None
    batch = commit.batch if commit is not None else -1
    found = Standing(commit, controls.find(batch + 1), tuple(commits.torn(after=batch)))
    if (newest := max(controls.numbers(), default=-1)) > batch + 1:
        raise StateError(f"batch {newest} was begun ({controls.path_of(newest)}), but {found._newest()}: {REMEDY}")
    if found.begun is not None and found.begun.trigger not in (found.trigger, found.trigger + 1):
        begun = f"batch {newest} was begun for trigger {found.begun.trigger} ({controls.path_of(newest)})"
        raise StateError(f"{begun}, but {found._newest()}: {REMEDY}")
    return found
