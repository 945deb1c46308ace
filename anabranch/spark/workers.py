"""What a Python worker of Spark's does once, before its first task of ours.

After each task pyspark's worker collects garbage, which looks at every object that is alive: with numba, pandas and pyarrow
loaded that costs more than a small task. They stay for as long as the process does, so
`settle` has the collector pass them over from then on (`gc.freeze`). It does so before a task has made any state: what a
task drops must still be collected.
"""

from __future__ import annotations

import gc

import numpy as np

_settled = False


def settle() -> None:
    """Loads what tasks use, and has the collector of garbage leave it alone; does nothing the second time."""
    global _settled
    if _settled:
        return
    _settled = True
    import anabranch.spark.reader
    import anabranch.spark.task  # noqa: F401
    from anabranch.engine.kernels.cells import coordinates

    # The first kernel that is called loads most of numba.
    coordinates(np.zeros(1, np.uint64), 2, np.zeros(1, np.int64))
    gc.collect()
    gc.freeze()
