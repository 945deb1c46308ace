"""What a command says while somebody waits for it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

SAY_AFTER_S = 1.0
"""A shorter wait needs no word."""


@contextmanager
def saying(what: str, after_s: float = SAY_AFTER_S) -> Iterator[None]:
    """Says what is waited for, on standard error, once that has taken a while; and how long it took."""
    began, lock, state = time.monotonic(), threading.Lock(), {"said": False, "over": False}

    def say() -> None:
        with lock:
            if not state["over"]:
                state["said"] = True
                print(f"{what} …", end="", file=sys.stderr, flush=True)

    timer = threading.Timer(after_s, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            state["over"] = True
        if state["said"]:
            print(f" {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
