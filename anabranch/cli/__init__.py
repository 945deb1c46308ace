"""The command line: one file for each command, and one for those that ask a run that goes on."""

from __future__ import annotations

import argparse
import logging
import sys
import traceback
from collections.abc import Sequence

from anabranch.cli import calibrate, change, check, demo, explain, journal, run, top
from anabranch.errors import INTERRUPTED, AnabranchError, exit_code
from anabranch.version import __version__

COMMANDS = (run, explain, check, top, journal, change, calibrate, demo)
"""In the order in which help names them."""

CODES = "exit codes: 0 done, 1 the run failed, 2 wrong arguments, 65 wrong SQL, file or setting, 130 interrupted"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; errors are told in a few lines, with a stack trace only if asked for."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.command is None:
        parser.print_help()
        return 0
    given.arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not given.debug and not logging.root.handlers:
        logging.root.addHandler(logging.NullHandler())  # Py4J logs an interruption at length
    try:
        return int(given.command(given) or 0)
    except KeyboardInterrupt as interruption:
        print(str(interruption) or "stopped", file=sys.stderr)
        return INTERRUPTED
    except AnabranchError as error:
        return _tell(error, given.debug)
    except Exception as error:
        return _tell(_cause(error), given.debug)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="anabranch",
        description="Continuous SQL over several streams on Apache Spark.",
        epilog=CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"anabranch {__version__}")
    parser.add_argument("--debug", action="store_true", help="show stack traces, and what Spark and Java print")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(metavar="command")
    for each in COMMANDS:
        each.add(commands)
    return parser


def _cause(error: BaseException) -> BaseException:
    """The error of ours that Spark wrapped, if it can be told."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, AnabranchError):
            return seen
        seen = seen.__cause__ or seen.__context__
    return error


def _tell(error: BaseException, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    else:
        text = str(error).strip() or type(error).__name__
        print(f"anabranch: {text[:2000]}", file=sys.stderr)
        if not isinstance(error, AnabranchError):
            print("(anabranch --debug … shows where)", file=sys.stderr)
    return exit_code(error)
