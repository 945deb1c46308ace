"""`anabranch top`: the queries of a checkpoint as they run, seen from another process; nothing is written."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

    from anabranch.cli.arguments import Commands
    from anabranch.control.journal import Journal
    from anabranch.control.progress import Progress
    from anabranch.storage.location import Folder

ENDS = ("ended", "stopped", "failed", "left")
"""Events of a journal after which a query does not run."""
ENTRIES = 8
"""So many entries of a journal are read for the last decision."""


def add(commands: Commands) -> None:
    top = commands.add_parser("top", help="watch the queries of a checkpoint from another process")
    top.add_argument("--checkpoint", default="checkpoint", help="path or URI where state is kept (default: %(default)s)")
    top.add_argument("--query", help="only this one")
    top.add_argument("--every", type=float, default=1.0, metavar="SECONDS", help="how often to look (default: %(default)s)")
    top.add_argument("--once", action="store_true", help="look once (without a terminal it always does)")
    top.add_argument("--json", action="store_true", help="for programs: the last batch of each query as a line of JSON")
    top.set_defaults(command=command)


def command(given: argparse.Namespace) -> int:
    from rich.console import Console, Group
    from rich.live import Live

    from anabranch.control.journal import journals_in
    from anabranch.errors import UsageError, known_names
    from anabranch.show.progress import json_line
    from anabranch.storage.location import located

    if given.every <= 0:
        raise UsageError(f"--every {given.every:g}: give more than 0 seconds")
    place = located(given.checkpoint)
    journals = journals_in(place)
    if given.query is not None and given.query not in journals:
        raise UsageError(f"no query {given.query} in {place}; {known_names(given.query, journals)}")
    wanted = [given.query] if given.query is not None else [*journals]
    console = Console()
    if given.json:
        for name, steps in progress_in(place, 1).items():
            if name in wanted and steps:
                print(json_line(name, steps[-1]))
        return 0
    if given.once or not console.is_terminal:
        console.print(Group(*blocks(place, {name: journals[name] for name in wanted}, console.width)))
        return 0
    with Live(console=console, auto_refresh=False) as live:
        while True:
            shown = blocks(place, {name: journals[name] for name in wanted}, console.width)
            live.update(Group(*shown), refresh=True)
            try:
                time.sleep(given.every)
            except KeyboardInterrupt:
                return 0


def progress_in(place: Folder, batches: int) -> dict[str, list[Progress]]:
    """The latest batches of all queries of a checkpoint. A query that ran in several pipelines is shown in the newest."""
    from anabranch.control.pipelines import pipeline_names
    from anabranch.control.progress import read_progress

    found: dict[str, list[Progress]] = {}
    for name in pipeline_names(place):
        found |= read_progress(place.below(name), batches)
    return found


def blocks(place: Folder, journals: dict[str, Journal], width: int) -> list[RenderableType]:
    """A block for each query."""
    from anabranch.show.journal import last_decision
    from anabranch.show.progress import RATE_BATCHES, block, span

    progress, made = progress_in(place, RATE_BATCHES + 1), []
    for name, journal in journals.items():
        steps, entries = progress.get(name, []), journal.entries(last=ENTRIES)
        names = steps[-1].names if steps else {}
        ended = ""
        if entries and entries[-1].event in ENDS:
            ended = f"{entries[-1].event}: {entries[-1].text}"
        elif steps:
            ended = f"the last batch was over {span(max(0.0, time.time() - steps[-1].at_s))} ago"
        made.append(block(name, steps, last_decision(entries, names), "", ended, width))
    return made
