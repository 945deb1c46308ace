"""`anabranch calibrate`: what single operations cost on this machine, or in a database."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from anabranch.errors import UsageError

if TYPE_CHECKING:
    from anabranch.cli.arguments import Commands


def add(commands: Commands) -> None:
    calibrate = commands.add_parser("calibrate", help="measure what single operations cost on this machine (seconds)")
    calibrate.add_argument("--database", metavar="NAME", help="measure a database instead")
    calibrate.add_argument("--table", help="the table of the database to look keys up in")
    calibrate.add_argument("--key", help="its column with the keys, which has an index")
    calibrate.set_defaults(command=command)


def command(given: argparse.Namespace) -> int:
    if given.database is not None:
        return _database(given)
    if given.table or given.key:
        raise UsageError("--table and --key are of a database: name it with --database")
    return _machine()


def _machine() -> int:
    from anabranch.cli.watch import warm_up_visibly
    from anabranch.cost.units import remember
    from anabranch.drive.calibrate import calibrate

    warm_up_visibly()
    print("measuring …", file=sys.stderr)
    units = calibrate()
    for what, cost in (
        ("a row taken in", units.accept), ("a row into an index", units.insert),
        ("a combined row kept", units.view_insert or units.insert), ("a row looked up", units.lookup),
        ("… for each further run", units.lookup_run), ("a pair that matches", units.join), ("a result", units.result),
        ("a lookup of a batch", units.step), ("a batch", units.batch),
    ):  # fmt: skip
        print(f"{what:<24}{cost * 1e9:12,.1f} ns")
    print(f"{'a row in an index':<24}{units.index_bytes:12.1f} bytes")
    print(f"kept in {remember(units)}", file=sys.stderr)
    return 0


def _database(given: argparse.Namespace) -> int:
    from anabranch.place.calibrate import measure_blocks, measure_lookups, remember
    from anabranch.place.databases.embedded import NAMES, open_embedded, plain_name
    from anabranch.place.databases.registry import database
    from anabranch.plan.statement import StatementError

    is_embedded = given.database.lower() in NAMES
    if is_embedded and (given.table or given.key):
        raise UsageError(f"{given.database} keeps no tables: leave out --table and --key")
    if not is_embedded and (not given.table or not given.key):
        raise UsageError("name the table to look keys up in, and its column: --table public.customers --key id")
    print("measuring …", file=sys.stderr)
    if is_embedded:
        try:
            embedded = open_embedded(given.database)
        except StatementError as error:
            raise UsageError(f"{error}: {error.hint}") from None
        measured = measure_blocks(embedded)
        embedded.close()
    else:
        measured = measure_lookups(database(given.database), given.table, given.key)
    print(f"{'a round trip':<24}{measured.round_trip_s * 1e6:12,.1f} µs")
    for what, sizes in measured.row_s.items():
        for size, seconds in sizes.items():
            print(f"{f'{what}, {size:,} rows':<24}{seconds * 1e9:12,.1f} ns a row")
    print(f"kept in {remember(plain_name(given.database), measured)}", file=sys.stderr)
    return 0
