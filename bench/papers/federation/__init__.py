"""004 again: where operators run, in a stream engine or in a database (Ji, Jerzak, Nica, Hackenbroich, Fetzer).

`--part search`: table 2 (plans that are looked at, and how long that takes), table 3 (times for CQ1 to CQ6), phase one.
`--part model`: figures 5 and 6 by the cost model of section 5: which placement is chosen at which rate, with the check of
feasibility and without.
`--part measured`: placements of CQ1 to CQ6 that run, engine-local, each beside the one that the optimizer chooses.
`--part spark`: on Spark, the chosen one, all in the engine, and all in the database. Only where it is asked for.
"""
