"""Closing steps while a query runs: when input pauses, what the last rows have made final does not wait for more of them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from anabranch.spark.failures import told
from anabranch.spark.host import Host

LOOKS = 4
"""How often the input is looked at within the time after which it counts as paused."""


class Pauses:
    """Watches a query from a thread of its own. When nothing has come for `idle_s` seconds, and Spark has recorded that the
    last trigger is done, it runs a closing step. A batch that comes meanwhile waits for it."""

    def __init__(self, host: Host, streaming: StreamingQuery, spark: SparkSession, idle_s: float) -> None:
        self.host, self.streaming, self.spark, self.idle_s = host, streaming, spark, idle_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="anabranch-pauses", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends watching; a closing step under way is waited for, unless it is its sink that asks."""
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _watch(self) -> None:
        is_done = self._committed_by_spark()
        while not self._stopped.wait(self.idle_s / LOOKS):
            if not self.streaming.isActive:
                return
            try:
                self.host.close_if_paused(self.spark, self.idle_s, is_done)
            except Exception as error:
                if not self._stopped.is_set():
                    self.host.error = told(error)
                    self.streaming.stop()
                return

    def _committed_by_spark(self) -> Callable[[int], bool]:
        log = self.streaming._jsq.streamingQuery().commitLog()

        def is_done(trigger: int) -> bool:
            latest = log.getLatestBatchId()
            return bool(latest.isDefined() and latest.get() >= trigger)

        return is_done
