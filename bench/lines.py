"""Lines of the package by room, at some commits, and its largest files: `python -m bench.lines --since 5f952ed`.

A room is a folder of the package; the modules at its top are one room together. All lines of Python count. Rooms that were
not there at the first commit stand apart, below the sum of those that were.
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from bench import report
from bench.processes import ROOT

PACKAGE, TOP = "anabranch", "modules at the top"
LARGEST = 5


def lines_at(commit: str) -> dict[str, int]:
    """The modules of the package at a commit, and how many lines each has."""
    found = _git("grep", "--count", "", commit, "--", f"{PACKAGE}/*.py").splitlines()
    files = (line.removeprefix(f"{commit}:").rpartition(":") for line in found)
    return {path: int(count) for path, _, count in files}


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def by_room(files: Mapping[str, int]) -> dict[str, int]:
    """Lines by room.

    >>> by_room({"anabranch/engine/box.py": 3, "anabranch/engine/kernels/runs.py": 4, "anabranch/cli.py": 2})
    {'engine': 7, 'modules at the top': 2}
    """
    found: dict[str, int] = {}
    for path, count in files.items():
        _, *room, _ = path.split("/")
        name = room[0] if room else TOP
        found[name] = found.get(name, 0) + count
    return found


def rooms(counted: Sequence[tuple[str, Mapping[str, int]]]) -> list[dict[str, Any]]:
    """A row for each room, with its lines at each commit; those that are new after the sum of the others.

    >>> for row in rooms([("a1", {"plan": 5, "sql": 4}), ("b2", {"plan": 6, "drive": 2})]):
    ...     print(*row.values())
    plan 5 6
    sql 4 0
    all of these 9 6
    drive (new) None 2
    all 9 8
    """
    old = sorted(counted[0][1])
    new = sorted({name for _, found in counted for name in found} - set(old))
    rows = [_row(name, counted, [name]) for name in old]
    if new:
        rows.append(_row("all of these", counted, old))
        rows += [{**_row(f"{name} (new)", counted, [name]), counted[0][0]: None} for name in new]
    return [*rows, _row("all", counted, [*old, *new])]


def _row(room: str, counted: Sequence[tuple[str, Mapping[str, int]]], names: Sequence[str]) -> dict[str, Any]:
    return {"room": room, **{commit: sum(found.get(name, 0) for name in names) for commit, found in counted}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", action="append", required=True, help="a commit to compare with (may be given again)")
    parser.add_argument("--at", default="HEAD", help="the commit that is compared (default: %(default)s)")
    given = parser.parse_args()
    files = {commit: lines_at(commit) for commit in (*given.since, given.at)}
    print(report.table(rooms([(commit, by_room(found)) for commit, found in files.items()])))
    largest = sorted(files[given.at].items(), key=lambda file: (-file[1], file[0]))[:LARGEST]
    rows = [{"file": path, **{commit: found.get(path) for commit, found in files.items()}} for path, _ in largest]
    print(f"\n{report.table(rows)}")


if __name__ == "__main__":
    main()
