"""Ctrl-C while Java is being called, or started."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_kept() -> Iterator[threading.Event]:
    """Ctrl-C only sets a mark; a second one interrupts. PySpark's way, to call Java from within the signal, fails if the
    signal comes while Java is being called, and says so at length. A JVM whose start is interrupted is not ended by PySpark:
    it does not find the folder any more in which it was to say its port, and stays for ever."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # signals are not ours to handle
        yield interrupted
        return

    def mark(number: int, frame: object) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    before = signal.signal(signal.SIGINT, mark)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
