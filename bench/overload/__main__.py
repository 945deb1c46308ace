"""`python -m bench.overload [--engine] [--quick]`: what is left under overload, of the engine alone, or on Spark.

See `bench.overload.engine_part` and `bench.overload.spark_part` for what is measured, and how.
"""

from __future__ import annotations

import argparse

from bench.overload import engine_part, pictures, spark_part
from bench.overload.cases import LOADS, PARTS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", action="store_true", help="the engine alone, in one process")
    parser.add_argument("--quick", action="store_true", help="small")
    parser.add_argument("--seeds", type=int, help="of the engine's part")
    parser.add_argument("--part", action="append", choices=PARTS, help="of what runs on Spark (may be given again)")
    parser.add_argument("--load", action="append", type=float, choices=LOADS, help="of the part load (may be given again)")
    parser.add_argument("--pictures", action="store_true", help="draw the burst that was last measured, into docs/pictures")
    given = parser.parse_args()
    if given.engine:
        engine_part.main(given.quick, given.seeds)
    elif given.pictures:
        pictures.main()
    else:
        spark_part.main(given.part or PARTS, given.quick, given.load)


if __name__ == "__main__":
    main()
