"""`anabranch calibrate`: what single operations cost on this machine."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anabranch.cli.arguments import Commands


def add(commands: Commands) -> None:
    calibrate = commands.add_parser("calibrate", help="measure what single operations cost on this machine (seconds)")
    calibrate.set_defaults(command=command)


def command(given: argparse.Namespace) -> int:
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
