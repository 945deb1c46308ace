"""The process that Python workers of Spark's are forked from, with our code loaded: a new worker begins with its task.

Spark starts `pyspark.daemon` once on each machine for each kind of worker, and has it fork one when it wants one. Each
then imports what its task needs, which for ours takes longer than a small batch. `spark.python.daemon.module` names this
module instead. It must be importable before Spark ships any files, so it is named only in sessions that we make
(`anabranch.spark.create`).

A fork copies no threads. What is loaded here starts none but that of jemalloc, which knows of forks.
"""

from __future__ import annotations

import os
import sys

from pyspark import daemon

TASKS = "pyspark.worker"
"""The module that Spark runs in workers that run tasks; in others it looks up, makes and plans data sources."""


def main() -> None:
    # numpy starts the threads of its BLAS when it is imported, and nothing of ours multiplies matrices.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    kind = sys.argv[1] if len(sys.argv) > 1 else TASKS
    if kind == TASKS:
        import pyspark.worker  # noqa: F401

        from anabranch.spark.workers import settle

        settle()
    elif kind.startswith("pyspark.sql.worker."):
        from importlib import import_module

        import_module(kind)
        import_module("anabranch.spark.reader")
    daemon.manager()


if __name__ == "__main__":
    main()
