"""`make demo`: a three-way join over generated streams, under a plan that keeps a view and one that does not."""

from __future__ import annotations

import tempfile

import numpy as np
import pyarrow as pa

from anabranch.engine.local import LocalRun
from anabranch.plan.explain import explain_text
from anabranch.sql import parse_script
from anabranch.storage.filesystem import LocalFilesystem

SCRIPT = """
CREATE STREAM orders    (id BIGINT, customer BIGINT, amount DOUBLE, ts TIMESTAMP) TIME ts LATENESS 1 SECOND;
CREATE STREAM payments  (order_id BIGINT, method STRING, ts TIMESTAMP) TIME ts LATENESS 1 SECOND;
CREATE STREAM shipments (order_id BIGINT, carrier STRING, ts TIMESTAMP) TIME ts LATENESS 1 SECOND;

CREATE QUERY fulfilled AS
SELECT o.id, o.amount, p.method, s.carrier, RESULT_TIME
FROM orders [RANGE 30 SECONDS] AS o, payments [RANGE 20 SECONDS] AS p, shipments [RANGE 10 SECONDS] AS s
WHERE o.id = p.order_id AND o.id = s.order_id AND o.amount > 20
"""
PLANS = ("((o p) s)", "(o p s)")
BATCHES = 30
ROWS = 20_000


def batch(number: int, rng: np.random.Generator) -> dict[str, pa.Table]:
    """One second of the three streams: payments and shipments follow their orders."""
    first_us = number * 1_000_000

    def times(shift_s: float) -> pa.Array:
        times_us = first_us + rng.integers(0, 1_000_000, ROWS) - round(shift_s * 1e6)
        return pa.array(np.maximum(times_us, 0), pa.timestamp("us"))

    def orders(delay: int) -> pa.Array:
        return pa.array(rng.integers(max(0, number - delay - 2) * ROWS, (number + 1) * ROWS, ROWS))

    return {
        "orders": pa.table(
            {
                "id": np.arange(number * ROWS, (number + 1) * ROWS),
                "customer": rng.integers(0, 1000, ROWS),
                "amount": rng.gamma(2.0, 20.0, ROWS),
                "ts": times(0),
            }
        ),
        "payments": pa.table(
            {"order_id": orders(5), "method": rng.choice(["card", "transfer", "cash"], ROWS), "ts": times(0.2)}
        ),
        "shipments": pa.table({"order_id": orders(8), "carrier": rng.choice(["rail", "road"], ROWS), "ts": times(0.5)}),
    }


def main() -> None:
    query = parse_script(SCRIPT).queries[0].query
    totals = {}
    for plan in PLANS:
        rng = np.random.default_rng(11)
        with tempfile.TemporaryDirectory() as folder:
            run = LocalRun(query, LocalFilesystem(folder), plan)
            print(explain_text(run.plan, run.graph), "\n")
            found, cpu_ns = 0, 0
            for number in range(BATCHES):
                step = run.step(number, batch(number, rng))
                counted = step.statistics
                found += step.results.num_rows
                cpu_ns += sum(counted.cpu_ns.values()) + sum(s.cpu_ns for s in counted.steps)
                state_rows = sum(s.state_rows for s in counted.sources.values())
                late = sum(s.late_rows for s in counted.sources.values())
                print(
                    f"\rbatch {number + 1:3}/{BATCHES}  results {found:>8,}  late {late:>4,}  rows in state {state_rows:>9,}",
                    end="",
                    flush=True,
                )
            print(f"\nplan {plan}: {found:,} results, {cpu_ns / 1e9:.2f} s of CPU\n")
            totals[plan] = found
    assert len(set(totals.values())) == 1, totals
    print("both plans found the same number of results; the last of them:")
    print(step.results.slice(max(0, step.results.num_rows - 5)).to_pylist())


if __name__ == "__main__":
    main()
