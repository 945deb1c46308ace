"""JAQPOT (paper 001, our copy names neither authors nor year): `python -m bench.papers.jaqpot [--quick] [--data DIR]`.

The experiments of section 5 by the algorithms of `anabranch.overload`: what formulas say where table 3 is too large to run
row by row (a row finds some 140 partners at each of three joins), and what a simulator counts where it is not.

- `settings`: table 3, plans, streams;
- `matching`, `count_windows`: the simulator of the paper's windows, which count rows;
- `time_windows`: the simulator of windows in time, by our law;
- `optimum`: the best allocations, as linear programmes;
- `examples`: the worked examples of fig. 2a, table 2 and table 4;
- `throughput`: fig. 6 and 7; `eighty`: for which parameters 60 % of the resources give over 80 % of the results;
- `sensors`: fig. 8; needs the files of the Intel lab, and is skipped, loudly, where they are not;
- `staleness`: fig. 9 and section 5.4;
- `verdicts`: each published claim, and what was measured; `plots`: the figures drawn.

Writes tables to bench/out/jaqpot_*.json and plots beside them.
"""
