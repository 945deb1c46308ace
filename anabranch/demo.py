"""`anabranch demo`: orders, payments and shipments, joined as they arrive; generated, with nothing to install or start.

At first many parcels are shipped and few are paid for; half-way that turns round. The query goes over to a plan that is
better then, and the journal tells so.
"""

from __future__ import annotations

import os
import sys
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SCRIPT = """
CREATE STREAM orders    (id BIGINT, customer BIGINT, amount DOUBLE, ts TIMESTAMP) TIME ts LATENESS 1 SECOND
  FROM '{folder}/orders/*.parquet';
CREATE STREAM payments  (order_id BIGINT, method STRING, ts TIMESTAMP) TIME ts LATENESS 1 SECOND
  FROM '{folder}/payments/*.parquet';
CREATE STREAM shipments (order_id BIGINT, carrier STRING, ts TIMESTAMP) TIME ts LATENESS 1 SECOND
  FROM '{folder}/shipments/*.parquet';

CREATE QUERY fulfilled AS
SELECT o.id, o.amount, p.method, s.carrier, RESULT_TIME
FROM orders [RANGE 30 SECONDS] AS o, payments [RANGE 20 SECONDS] AS p, shipments [RANGE 10 SECONDS] AS s
WHERE o.id = p.order_id AND o.id = s.order_id AND o.amount > 20;
"""


def second(number: int, rows: int, rng: np.random.Generator, changed: bool) -> dict[str, pa.Table]:
    """One second of the three streams: payments and shipments follow their orders."""
    few, many = max(1, rows // 8), 6 * rows
    paid, shipped = (many, few) if changed else (few, many)

    def times(shift_s: float, count: int) -> pa.Array:
        times_us = number * 1_000_000 + rng.integers(0, 1_000_000, count) - round(shift_s * 1e6)
        return pa.array(np.maximum(times_us, 0), pa.timestamp("us", "UTC"))

    def orders(delay: int, count: int) -> pa.Array:
        return pa.array(rng.integers(max(0, number - delay - 2) * rows, (number + 1) * rows, count))

    numbers = np.arange(number * rows, (number + 1) * rows)
    return {
        "orders": pa.table(
            {
                "id": numbers,
                "customer": rng.integers(0, 1000, rows),
                "amount": rng.gamma(2.0, 20.0, rows),
                "ts": times(0, rows),
            }
        ),
        "payments": pa.table({
            "order_id": orders(5, paid), "method": rng.choice(["card", "transfer", "cash"], paid), "ts": times(0.2, paid),
        }),
        "shipments": pa.table({
            "order_id": orders(8, shipped), "carrier": rng.choice(["rail", "road"], shipped), "ts": times(0.5, shipped),
        }),
    }  # fmt: skip


def run(seconds: int, rows: int) -> int:
    """Generates the streams, joins them second by second, and sums up."""
    from anabranch.cli import warm_up_visibly, watch
    from anabranch.session import Session
    from anabranch.spark import sinks
    from anabranch.spark.create import create_session

    warm_up_visibly()
    rng = np.random.default_rng(11)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(seconds):
            for name, table in second(number, rows, rng, changed=number >= seconds // 2).items():
                os.makedirs(f"{folder}/{name}", exist_ok=True)
                path = f"{folder}/{name}/{number:06d}.parquet"
                pq.write_table(table, path)
                os.utime(path, (number, number))
        spark = create_session(settings={"spark.log.level": "OFF"})
        session = Session(spark, f"{folder}/checkpoint")
        session.script(
            SCRIPT.format(folder=folder), lambda name: sinks.parquet(f"{folder}/{name}"), max_files_per_trigger=1
        )
        print(session.explain("fulfilled"), "\n")
        started = watch(lambda: session.start(availableNow=True), sys.stderr.isatty())
        steps = started.progress["fulfilled"]
        results = pq.read_table(f"{folder}/fulfilled")
        print(
            f"\n{sum(sum(s.rows.values()) for s in steps):,} rows sent to {session.slots} slots in {len(steps)} batches, "
            f"{sum(s.results for s in steps):,} results, {results.num_rows:,} of them in parquet"
        )
        print("what was decided:")
        for entry in started.journal["fulfilled"]:
            print(" ", entry)
        print("the last results:")
        for row in results.slice(max(0, results.num_rows - 3)).to_pylist():
            print(" ", row)
    return 0
