"""Python workers: what the collector of garbage looks at after each task. What they have loaded when they begin is tested in
`tests/spark/test_create.py`."""

from __future__ import annotations

import subprocess
import sys

SETTLES = """
import gc, weakref
from anabranch.spark.workers import settle

class Node: pass

settle()
frozen = gc.get_freeze_count()
assert frozen > 50_000, frozen
node = Node()
node.itself, gone = node, weakref.ref(node)
del node
settle()
assert gc.get_freeze_count() <= frozen, "what is made later is not frozen"
gc.collect()
assert gone() is None, "and still collected"
print("settled")
"""


def test_what_tasks_make_is_still_collected() -> None:
    done = subprocess.run([sys.executable, "-c", SETTLES], capture_output=True, text=True, timeout=120, check=False)
    assert "settled" in done.stdout, done.stderr
