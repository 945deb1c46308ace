"""A paced writer: files of streams whose rows are of now, at a rate that changes by the clock. A process of its own.

`python -m bench.overload.traffic --spec '{…}'` writes a first file of each stream, so that whoever reads them can warm up,
waits until the file `go` is there, writes a file of each stream every `EVERY_S`, and ends when its schedule does or the file
`stop` is there. Files appear complete, under a name that tells their order. `v` numbers the rows of a stream: it tells
results apart. Keys are drawn from domains that do not change with the rate, so a row finds more partners where more rows
come. `hot` is the share of rows of `a` and `b` that have one key `k1`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

EVERY_S = 0.5
GO, STOP = "go", "stop"


@dataclass(frozen=True)
class Traffic:
    """What is written, and where."""

    folder: str
    streams: str
    domains: tuple[int, ...]
    """From how many values k1, k2, … are drawn."""
    schedule: tuple[tuple[float, int], ...]
    """For so many seconds so many rows per second and stream, one after another."""
    hot: float = 0.0
    seed: int = 1

    @property
    def seconds(self) -> float:
        return sum(seconds for seconds, _ in self.schedule)

    def rate_at(self, second: float) -> int:
        """
        >>> traffic = Traffic("", "ab", (10,), ((4, 100), (2, 300)))
        >>> [traffic.rate_at(second) for second in (0, 3.5, 4, 7)]
        [100, 100, 300, 300]
        """
        for seconds, rate in self.schedule:
            if second < seconds:
                return rate
            second -= seconds
        return self.schedule[-1][1]

    def rows(self, number: int, stream: str, before: int, rate_per_s: int, from_us: int) -> pa.Table:
        """The rows of one file, of half a second from some instant on. `before` rows of the stream came earlier."""
        count = max(1, round(rate_per_s * EVERY_S))
        rng = np.random.default_rng((self.seed, number, ord(stream)))
        columns = {f"k{n + 1}": rng.integers(0, values, count) for n, values in enumerate(self.domains)}
        if self.hot and stream in "ab":
            columns["k1"][rng.random(count) < self.hot] = 0
        times = from_us + np.arange(count) * round(EVERY_S * 1e6) // count
        ids = np.arange(before, before + count, dtype=np.float64)
        return pa.table({**columns, "v": ids, "ts": pa.array(times, pa.timestamp("us", "UTC"))})

    def start(self) -> subprocess.Popen[bytes]:
        for stream in self.streams:
            Path(self.folder, stream).mkdir(parents=True, exist_ok=True)
        root = Path(__file__).parents[2]
        command = [sys.executable, "-m", "bench.overload.traffic", "--spec", json.dumps(asdict(self))]
        return subprocess.Popen(command, cwd=root)

    def write_all(self) -> None:
        """Writes everything at once, as if it had come in the past: for runs that find out what a batch takes."""
        began_s, counts = time.time() - self.seconds - 1, dict.fromkeys(self.streams, 0)
        for number in range(round(self.seconds / EVERY_S)):
            self._write(number, began_s + number * EVERY_S, self.rate_at(number * EVERY_S), counts)
            for stream in self.streams:  # a reader takes the oldest first
                os.utime(self._path(number, stream), (began_s + number, began_s + number))

    def run(self) -> None:
        """Writes as time goes by."""
        counts, number = dict.fromkeys(self.streams, 0), 0
        self._write(number, time.time() - EVERY_S, self.schedule[0][1], counts)
        while not Path(self.folder, GO).exists():
            time.sleep(0.02)
        began_s = time.time()
        for number in range(1, 1 + round(self.seconds / EVERY_S)):
            time.sleep(max(0.0, began_s + number * EVERY_S - time.time()))
            if Path(self.folder, STOP).exists():
                return
            self._write(number, began_s + (number - 1) * EVERY_S, self.rate_at((number - 1) * EVERY_S), counts)

    def _write(self, number: int, from_s: float, rate_per_s: int, counts: dict[str, int]) -> None:
        for stream in self.streams:
            rows = self.rows(number, stream, counts[stream], rate_per_s, round(from_s * 1e6))
            counts[stream] += rows.num_rows
            path = self._path(number, stream)
            path.parent.mkdir(parents=True, exist_ok=True)
            hidden = path.with_name(f".{path.stem}")
            pq.write_table(rows, hidden, compression="none", use_dictionary=False, write_statistics=False)
            hidden.rename(path)

    def _path(self, number: int, stream: str) -> Path:
        return Path(self.folder, stream, f"{number:06d}.parquet")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", required=True)
    given = json.loads(parser.parse_args().spec)
    schedule = tuple((float(seconds), int(rate)) for seconds, rate in given.pop("schedule"))
    Traffic(**{**given, "schedule": schedule, "domains": tuple(given["domains"])}).run()


if __name__ == "__main__":
    main()
