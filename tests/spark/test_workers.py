"""Python workers: what the collector of garbage looks at after each task. What they have loaded when they begin is tested in
`tests/spark/test_create.py`."""

from __future__ import annotations

import subprocess
import sys

SETTLES = """
import gc, weakref
from anabranch.spark.workers import settle, settle_with

class Node: pass

def node():
    made = Node()
    made.itself = made
    return made

settle()
frozen = gc.get_freeze_count()
assert frozen > 50_000, frozen
gone = weakref.ref(node())
settle()
assert gc.get_freeze_count() <= frozen, "what is made later is not frozen"
gc.collect()
assert gone() is None, "and still collected"
kept = {"slot 0": node()}
settle_with(kept)
assert gc.get_freeze_count() > frozen, "what is kept between tasks is passed over, too"
frozen, before = gc.get_freeze_count(), weakref.ref(kept["slot 0"])
other = node()
settle_with(kept)
assert gc.get_freeze_count() <= frozen, "as long as it is the same"
kept = {"slot 0": node()}
settle_with(kept)
assert before() is None, "and collected when something else takes its place"
gone = weakref.ref(kept.pop("slot 0"))
settle_with(kept)
assert gone() is None, "or nothing does"
print("settled")
"""


def test_what_tasks_make_is_still_collected() -> None:
    done = subprocess.run([sys.executable, "-c", SETTLES], capture_output=True, text=True, timeout=120, check=False)
    assert "settled" in done.stdout, done.stderr
