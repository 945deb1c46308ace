"""How the process gets its memory: what a batch frees, the next one uses again.

By default the C library returns large blocks to the system as soon as they are free, and the system hands every page out
again with a fault, zeroed. Under a hypervisor that can cost more than what is computed in the block.
"""

from __future__ import annotations

import ctypes
from functools import cache

KEPT_BYTES = 256 << 20
"""So much free memory is kept at the end of the heap."""

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_LARGEST_MMAP_THRESHOLD = 32 << 20
_TOP_PAD_BYTES = 16 << 20


@cache
def keep_freed_memory() -> bool:
    """Asks the C library to keep what is freed, once per process. Returns whether it does; only glibc can."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    options = ((_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD), (_TRIM_THRESHOLD, KEPT_BYTES), (_TOP_PAD, _TOP_PAD_BYTES))
    kept = [mallopt(option, value) == 1 for option, value in options]
    return all(kept)
