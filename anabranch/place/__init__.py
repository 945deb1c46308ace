"""Where each operator of a query runs: in the stream engine, or in a database (paper 004).

Ji, Jerzak, Nica, Hackenbroich, Fetzer: Optimization of Continuous Queries in Federated Database and Stream Processing
Systems. `operators` has trees of what queries do, `tree` that of a query of ours, `cost` what operators take in either
place, `placement` what a placement uses and which one is better, `search` finds the best, `parts` does so for trees that are
too large for one search. `calibrate` measures what a database takes, `wishes` has what hints ask. All but `calibrate` are
pure functions; databases themselves are in `databases`.
"""
