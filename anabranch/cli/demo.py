"""`anabranch demo`: orders, payments and shipments, joined as they arrive; generated, with nothing to install or start.

Three queries run in one session. At first few orders are paid for and all are shipped in many parcels; half-way that turns
round (`anabranch.cli.demo_data`). The join goes over to a plan that is better then, and the journal tells why and what it
saved.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import textwrap
import time
from typing import TYPE_CHECKING

from anabranch.cli.arguments import count
from anabranch.cli.waits import saying

if TYPE_CHECKING:
    from anabranch.cli.arguments import Commands

JOIN, WIDTH, SHOWN = "to_stop", 100, 3
"""The query that is told about, the columns of a line, and how many results of a query are shown."""

STREAMS = """
CREATE STREAM orders (id BIGINT, customer BIGINT, amount DOUBLE, ts TIMESTAMP)
  TIME ts LATENESS 1 SECOND FROM '{folder}/orders/*.parquet';
CREATE STREAM payments (order_id BIGINT, instalment BIGINT, paid DOUBLE, method STRING, ts TIMESTAMP)
  TIME ts LATENESS 1 SECOND FROM '{folder}/payments/*.parquet';
CREATE STREAM scans (order_id BIGINT, station BIGINT, ts TIMESTAMP)
  TIME ts LATENESS 1 SECOND FROM '{folder}/scans/*.parquet';
"""
QUERIES = """
-- Parcels that are on their way although an instalment was far too small.
CREATE QUERY to_stop AS
SELECT o.id, o.amount, p.paid, s.station, RESULT_TIME AS at
FROM orders [RANGE 30 SECONDS] AS o, payments [RANGE 20 SECONDS] AS p, scans [RANGE 10 SECONDS] AS s
WHERE o.id = p.order_id AND o.id = s.order_id AND p.paid < 0.1 * o.amount;

-- What was paid in the last ten seconds, by method.
CREATE QUERY revenue AS
SELECT p.method, COUNT(*) AS payments, SUM(p.paid) AS paid, RESULT_TIME AS at
FROM payments [RANGE 10 SECONDS] AS p GROUP BY p.method SLIDE 5 SECONDS;

-- How many scans each station had in the last five seconds.
CREATE QUERY stations AS
SELECT s.station, COUNT(*) AS scans, RESULT_TIME AS at
FROM scans [RANGE 5 SECONDS] AS s GROUP BY s.station SLIDE 5 SECONDS;
"""


def add(commands: Commands) -> None:
    demo = commands.add_parser("demo", help="three queries over generated streams that change")
    demo.add_argument("--seconds", type=count, default=36, help="seconds of event time (default: %(default)s)")
    demo.add_argument("--rate", type=count, default=4_000, help="orders per second (default: %(default)s)")
    demo.set_defaults(command=command)


def command(given: argparse.Namespace) -> int:
    """Generates the streams, joins them second by second, and tells what happened."""
    from anabranch.cli.demo_data import write_shop
    from anabranch.cli.watch import As, warm_up_visibly, watch
    from anabranch.session import Session
    from anabranch.show.journal import stories
    from anabranch.spark import sinks
    from anabranch.spark.create import create_session

    folder = tempfile.mkdtemp(prefix="anabranch-demo-")
    script = os.path.join(folder, "shop.sql")
    with open(script, "w", encoding="utf-8") as file:
        file.write(STREAMS.format(folder=folder).lstrip() + QUERIES)
    _say(f"An online shop, {given.seconds} seconds of it: {given.rate:,} orders a second, their payments in instalments, "
         "and scans of parcels on their way. Half-way every parcel is scanned at every station. Three queries run "
         "together over these streams:")  # fmt: skip
    print(QUERIES.rstrip())
    write_shop(folder, int(time.time()) - given.seconds, given.seconds, given.rate)
    warm_up_visibly()
    with saying("starting Spark"):
        spark = create_session(settings={"spark.log.level": "OFF"}, quiet=not given.debug)
    session = Session(spark, f"{folder}/checkpoint")
    with open(script, encoding="utf-8") as file:
        session.script(file.read(), lambda name: sinks.parquet(f"{folder}/results/{name}"), max_files_per_trigger=1)
    _head("The first plan", "by what is assumed of the streams: nothing is measured yet")
    _say(" ".join(session.explain(JOIN).split("\n\n")[0].split()))
    _head("It runs", "a batch is a second of the streams")
    run = watch(lambda: session.start(availableNow=True), As.BLOCKS if sys.stderr.isatty() else As.LINES)
    _head("What was decided", f"about {JOIN}, and why")
    for story in stories(run.journal[JOIN]):
        _say(str(story))
    _head("The last results", "of each query")
    for name in run.progress:
        print(f"{name}\n{_last_rows(os.path.join(folder, 'results', name))}\n")
    _head("What is left", "all files stay")
    print(f"{folder}\n  shop.sql, orders/, payments/, scans/, results/, checkpoint/\ntry")
    print(f"  anabranch journal --checkpoint {folder}/checkpoint")
    print(f"  anabranch explain {script} --checkpoint {folder}/checkpoint")
    return 0


def _head(title: str, more: str) -> None:
    print(f"\n── {title}: {more} ".ljust(WIDTH, "─"), flush=True)


def _say(text: str) -> None:
    print(textwrap.fill(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False), flush=True)


def _last_rows(folder: str) -> str:
    """The results of the latest time."""
    from anabranch.show.rows import rows_text
    from anabranch.spark.sinks import read

    rows = read(folder).to_table()
    if not rows.num_rows:
        return "none yet"
    rows = rows.drop_columns(["batch"]).sort_by("at")
    shown = rows.slice(max(0, rows.num_rows - SHOWN))
    return rows_text(shown, shown.num_rows)
