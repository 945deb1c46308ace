"""A file of a checkpoint is damaged or lost while no driver runs: the next one gives what it should, or refuses. It never
gives anything else, and never less without a word."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st

from anabranch.errors import AnabranchError
from anabranch.storage.filesystem import MemoryFilesystem
from tests.support import oracle
from tests.support.fixed_scenarios import groups_that_wait, many_batches
from tests.support.scenarios import properties
from tests.support.simulation import Broken, Simulation

FILES, FUNCTION, WAITING, GROUPS = KINDS = ("files", "a function", "a function that was away", "groups")
HOW = ("flip", "delete", "cut", "zero", "foreign")
BEFORE = {FILES: 5, FUNCTION: 5, WAITING: 5, GROUPS: 2}
"""So many triggers are over when it happens."""


def simulation(kind: str) -> Simulation:
    scenario = groups_that_wait() if kind == GROUPS else many_batches(7)
    to_files = kind == FILES
    return Simulation([scenario.query], scenario.arrow_batches, {}, scenario.plans, to_files=to_files, release_every=2)


@cache
def left_of(kind: str) -> tuple[MemoryFilesystem, int, dict[int, list[oracle.Bag]], oracle.Bag]:
    """What is left after some triggers: files, the last trigger, what the function had; and what should arrive."""
    case = simulation(kind)
    if kind == WAITING:
        case.function.fails = Broken()
    case.live(BEFORE[kind])
    brought = {} if kind == FILES else case.function.brought
    assert isinstance(case.world.inner, MemoryFilesystem)
    return case.world.inner, case.done, dict(brought), case.expected()["q"]


def damage(disk: MemoryFilesystem, path: str, how: str, position: int) -> None:
    content = bytearray(disk.get(path).to_pybytes())
    if how == "delete":
        disk.delete(path)
        return
    if how == "flip" and content:
        content[position % len(content)] ^= 1 << position % 8
    changed = {"cut": content[: position % (len(content) or 1)], "zero": bytes(len(content)), "foreign": b"not ours\n" * 9}
    disk.put(path, [bytes(changed.get(how, content))])


def check_damage(kind: str, which: int, how: str, position: int, is_again: bool) -> None:
    """`is_again`: the source brings the last trigger again, for it had not noted that it was done."""
    files, done, brought, expected = left_of(kind)
    paths = sorted(path for path in files._files if path.startswith("checkpoint/"))
    case, path = simulation(kind), paths[which % len(paths)]
    case.world.inner, case.done = files.copied(), done - is_again
    if kind != FILES:
        case.function.brought.update({batch: [*bags] for batch, bags in brought.items()})
    damage(case.world.inner, path, how, position)
    what: tuple[Any, ...] = kind, path, how, position, is_again
    try:
        case.live()
    except AnabranchError:
        more = case.found()["q"] - expected
        assert not more, f"{what}: {more}"
    else:
        wrong = oracle.difference(case.found()["q"], expected)
        assert not wrong, f"{what}: {wrong}"


test_damage, test_damage_long = properties(
    check_damage, 120, 2_000, kind=st.sampled_from(KINDS), which=st.integers(0, 999), how=st.sampled_from(HOW),
    position=st.integers(0, 100_000), is_again=st.booleans(),
)  # fmt: skip
