"""Patience: a batch waits for a database in which rows are looked up, if a user wants that (`lookup_failure="wait"`).

A lookup is asked again a few times by itself (`anabranch.place.databases.protocol`). If the database is gone for longer, or
too slow, the batch has done nothing yet: its tasks report that, and are run again, whole and with new snapshots, after a
pause. Pauses grow, up to a bound, and go on until the database is back or the run is stopped. What fails for another reason
(a table that is gone, a password that is wrong) is not waited for: that does not pass by itself.

Example: PostgreSQL is restarted for a minute in batch 7. The tasks of batch 7 run again after 1, 2, 4, 8, 16 and 32 seconds;
the last ones find what the table holds by then. Nobody has seen anything of the attempts before.
"""

from __future__ import annotations

import threading

FAIL, WAIT = "fail", "wait"
LOOKUP_FAILURES = (FAIL, WAIT)
"""What may be done about a database in which lookups fail."""

FIRST_PAUSE_S = 1.0
"""After so long a batch is tried again; each further pause is twice as long."""

LONGEST_PAUSE_S = 60.0
"""No pause is longer."""


def pause_s(tries: int) -> float:
    """How long to wait after so many tries.

    >>> [pause_s(tries) for tries in (1, 2, 3, 6, 7, 5000)]
    [1.0, 2.0, 4.0, 32.0, 60.0, 60.0]
    """
    return min(FIRST_PAUSE_S * 2.0 ** min(tries - 1, 20), LONGEST_PAUSE_S)


class Patience:
    """Whether a pipeline waits for databases, and for which one it does."""

    def __init__(self, failure: str = FAIL) -> None:
        self.is_endless = failure == WAIT
        self.waits_for = ""
        """What a database said that is waited for now; an empty text if none is."""
        self._stopped = threading.Event()

    def wait(self, tries: int, said: str) -> bool:
        """Waits, after so many tries; whether to try again."""
        self.waits_for = said
        return not self._stopped.wait(pause_s(tries))

    def stop(self) -> None:
        """Nobody waits any more. May be called from any thread."""
        self._stopped.set()
