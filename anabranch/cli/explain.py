"""`anabranch explain`: the plans of a SQL file, without running it."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from anabranch.cli.arguments import add_budget, add_overload, count, numbers, overload_of, read_file, with_queries
from anabranch.errors import LocationError

if TYPE_CHECKING:
    from anabranch.cli.arguments import Commands
    from anabranch.planning import Planning


def add(commands: Commands) -> None:
    explain = commands.add_parser("explain", help="show the plans of a SQL file without running it")
    explain.add_argument("file")
    explain.add_argument("--slots", type=count, help="tasks per batch (default: as the checkpoint has, else a core each)")
    explain.add_argument(
        "--checkpoint", default="checkpoint", help="where queries that ran before keep their state (default: %(default)s)"
    )
    explain.add_argument("--verbose", action="store_true", help="also what rows do under the plan, and how they are spread")
    explain.add_argument("--json", action="store_true", help="for programs")
    explain.add_argument("--draw", metavar="plan.svg", help="draw the plan; of several queries each in a file of its own")
    explain.add_argument(
        "--rate", action="append", default=[], metavar="STREAM=ROWS", help="rows per second of a stream, as far as known"
    )
    explain.add_argument(
        "--distinct", action="append", default=[], metavar="KEY=VALUES", help="distinct values of a key, like a.k=1000"
    )
    add_budget(explain)
    add_overload(explain)
    explain.set_defaults(command=command)


def command(given: argparse.Namespace) -> int:
    import json

    from anabranch.cost.facts import Given
    from anabranch.place.databases.registry import describe
    from anabranch.planning import Planning
    from anabranch.settings import Budget
    from anabranch.sql import parse_script
    from anabranch.storage.location import located

    facts = Given(numbers("--rate", given.rate), {}, numbers("--distinct", given.distinct))
    budget = Budget(given.cpu, given.memory, given.strict)
    planning = Planning(budget, facts, given.slots, located(given.checkpoint), overload_of(given))
    planning.add_script(with_queries(parse_script(read_file(given.file), planning.catalog, describe=describe), given.file))
    planning.check_facts("--rate", distinct="--distinct")
    if given.json:
        print(json.dumps([planning.explain_json(name) for name in planning.queries], indent=1))
    else:
        print("\n\n\n".join(planning.explain(name, verbose=given.verbose) for name in planning.queries))
    if given.draw:
        _draw(planning, given.draw)
    return 0


def _draw(planning: Planning, path: str) -> None:
    """Writes a picture of each plan; of several queries each to a file with its name."""
    root, ending = os.path.splitext(path)
    for name in planning.queries:
        own = path if len(planning.queries) == 1 else f"{root}-{name}{ending}"
        try:
            with open(own, "w", encoding="utf-8") as file:
                file.write(planning.draw(name))
        except OSError as error:
            raise LocationError(f"cannot write {own}: {error.strerror}") from None
        print(f"drawn to {own}", file=sys.stderr)
