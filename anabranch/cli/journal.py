"""`anabranch journal`: what was decided about the queries of a checkpoint, and why."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from anabranch.errors import UsageError, known_names

if TYPE_CHECKING:
    from anabranch.cli.arguments import Commands
    from anabranch.control.journal import Entry, Journal

LOOK_S = 1.0
"""How often `--follow` looks for new entries."""


def add(commands: Commands) -> None:
    journal = commands.add_parser("journal", help="show what was decided about the queries of a checkpoint, and why")
    journal.add_argument("--checkpoint", default="checkpoint", help="path or URI where state is kept (default: %(default)s)")
    journal.add_argument("--query", help="only this one")
    journal.add_argument("--last", type=int, metavar="N", help="only the last N entries of each query")
    journal.add_argument("--follow", action="store_true", help="go on with entries as they come, until Ctrl-C")
    journal.add_argument("--json", action="store_true", help="for programs: each entry as it is recorded, a line of JSON")
    journal.set_defaults(command=command)


def command(given: argparse.Namespace) -> int:
    from anabranch.control.journal import journals_in
    from anabranch.storage.location import located

    if given.last is not None and given.last < 0:
        raise UsageError(f"--last {given.last}: give the number of entries, 0 or more")
    place = located(given.checkpoint)
    journals = journals_in(place)
    if given.query is not None and given.query not in journals:
        raise UsageError(f"no query {given.query} in {place}; {known_names(given.query, journals)}")
    told = [_Told(name, journal, given.json) for name, journal in journals.items() if given.query in (None, name)]
    for each in told:
        each.show(given.last)
    try:
        while given.follow:
            time.sleep(LOOK_S)
            for each in told:
                each.show_more()
    except KeyboardInterrupt:
        pass
    return 0


class _Told:
    """The journal of a query, as far as it is printed."""

    def __init__(self, name: str, journal: Journal, as_json: bool) -> None:
        self._name, self._journal, self._as_json = name, journal, as_json
        self._names: dict[str, str] = {}
        """What aliases of the query stand for."""
        self._newest = -1
        """The number of the entry that was printed last."""

    def show(self, last: int | None) -> None:
        """Prints what there is, or the last so many entries; those about one change together."""
        entries = self._new()
        self._print(entries if last is None else entries[max(0, len(entries) - last) :])

    def show_more(self) -> None:
        """Prints what has come since, each entry by itself: what comes of it comes later."""
        for entry in self._new():
            self._print([entry])

    def _new(self) -> list[Entry]:
        found = self._journal.numbered(after=self._newest)
        for number, entry in found:
            self._newest = number
            self._names |= entry.details.get("names", {})
        return [entry for _, entry in found]

    def _print(self, entries: Sequence[Entry]) -> None:
        import msgspec

        from anabranch.show.journal import stories

        if self._as_json:
            for entry in entries:
                print(msgspec.json.encode({"query": self._name, **msgspec.structs.asdict(entry)}).decode(), flush=True)
            return
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 1 << 20
        for story in stories(entries, self._names):
            line = f"{self._name}: {story}"
            print(textwrap.fill(line, max(40, width), subsequent_indent="    ", break_on_hyphens=False), flush=True)
