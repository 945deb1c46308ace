"""004 again: where operators run, in a stream engine or in a database (Ji, Jerzak, Nica, Hackenbroich, Fetzer).

`--part search`: table 2 (plans that are looked at, and how long that takes), table 3 (times for CQ1 to CQ6), phase one.
`--part model`: figures 5 and 6 by the cost model of section 5: which placement is chosen at which rate, with the check of
feasibility and without.
`--part measured`: placements that run. Blocks cannot be placed by hand yet, so there is nothing to measure.
"""
