"""State-Slice (Wang, Rundensteiner, Ganguly, Bhatnagar, VLDB 2006): `python -m bench.papers.state_slice [--quick]`.

The experiments of section 7, figures 17 to 19, and figure 11, with the paper's operators executed row by row
(`anabranch.share.reference`), at the paper's settings: Poisson arrivals for 90 s, 20 to 80 rows/s, measured from second
30 on, when windows of 30 s are full; ten seeds. The paper's machine is not there any more, so CPU is counted in its own
unit, comparisons of nested-loop joins, beside the formulas; and the *service rate*, which the paper measures in results
per second of running time, is the number of results per comparison.

- `settings`: tables 3 and 4, streams;
- `measure`: one run;
- `figures`: figures 11, 17, 18, 19 as tables;
- `verdicts`: each published claim, and what was measured;
- `plots`: the figures drawn;
- `engine`: the queries of section 7.2 on our engine, at a thousand times the rate, by five ways.

Writes tables to bench/out/state_slice_*.json and plots beside them.
"""
