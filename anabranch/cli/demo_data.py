"""The streams of `anabranch demo`: an online shop, second by second.

Every order is paid for in instalments, which begin two seconds after it was placed; one in twenty is far too small. Parcels
are scanned on their way: at first one order in eight, once; later the parcels of every order, at each station. An order has
each instalment and each station once, so that no row comes twice.
"""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

INSTALMENTS, STATIONS = 6, 12
FEW = 8
"""One order in so many is scanned at first."""
SHORT = 0.05
"""So many instalments are too small."""

Numbers = npt.NDArray[np.int64]


def write_shop(folder: str, start_s: int, seconds: int, orders: int, seed: int = 11) -> None:
    """Writes one file per stream and second, with so many orders each; half-way scans become many."""
    rng = np.random.default_rng(seed)
    amounts = rng.gamma(2.0, 20.0, orders).round(2) + 1
    for number in range(seconds):
        for name, table in second(number, start_s, amounts, number >= seconds // 2, rng).items():
            os.makedirs(f"{folder}/{name}", exist_ok=True)
            path = f"{folder}/{name}/{number:04d}.parquet"
            pq.write_table(table, path)
            os.utime(path, (start_s + number, start_s + number))


def second(
    number: int, start_s: int, amounts: npt.NDArray[np.float64], is_busy: bool, rng: np.random.Generator
) -> dict[str, pa.Table]:
    """What one second brings; the orders of every second have the same amounts.

    >>> found = second(9, 0, np.full(16, 30.0), False, np.random.default_rng(1))
    >>> {name: table.num_rows for name, table in found.items()}
    {'orders': 16, 'payments': 96, 'scans': 2}
    """
    rows = len(amounts)
    paid, instalment = _parts(number - 2, rows, np.arange(rows), INSTALMENTS, rng)
    scanned = np.arange(rows) if is_busy else rng.choice(rows, max(1, rows // FEW), replace=False)
    shipped, station = _parts(number - 4, rows, scanned, STATIONS if is_busy else 1, rng)
    is_short = rng.random(len(paid)) < SHORT
    share = np.where(is_short, rng.uniform(0.01, 0.05, len(paid)), rng.uniform(0.12, 0.2, len(paid)))

    def at(count: int) -> pa.Array:
        times_us = (start_s + number) * 1_000_000 + np.sort(rng.integers(0, 1_000_000, count))
        return pa.array(times_us, pa.timestamp("us", "UTC"))

    return {
        "orders": pa.table({
            "id": np.arange(number * rows, (number + 1) * rows), "customer": rng.integers(0, 1_000, rows),
            "amount": amounts, "ts": at(rows),
        }),
        "payments": pa.table({
            "order_id": paid, "instalment": instalment, "paid": (amounts[paid % rows] * share).round(2),
            "method": rng.choice(["card", "transfer", "cash"], len(paid)), "ts": at(len(paid)),
        }),
        "scans": pa.table({"order_id": shipped, "station": station, "ts": at(len(shipped))}),
    }  # fmt: skip


def _parts(second: int, rows: int, orders: Numbers, each: int, rng: np.random.Generator) -> tuple[Numbers, Numbers]:
    """So many parts of each of some orders of a second, which has `rows`: the numbers of the orders, and of the parts."""
    if second < 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    numbers, parts = np.repeat(orders, each), np.tile(np.arange(1, each + 1), len(orders))
    order = rng.permutation(len(numbers))
    return second * rows + numbers[order], parts[order]
