"""Which probes get the CPU when there is too little for all: decisions, as pure functions.

The decisions are those of JAQPOT (*Join Adaptation at Query plan-level using Path-productivity for Optimizing
Throughput*; our copy of the paper names neither authors nor year), by the names that the paper gives them, and one of
our own. In the paper every row of a plan is stored, whatever the load; what is limited is how many rows per second
*probe*. A join of A and B has two *half-way joins*: new rows of A probe the state of B, and new rows of B that of A.
Each half-way join gets an *allowance*, in rows per second.

- `half_way`: plans as trees of half-way joins, what a probe costs, productivity (equations 1 to 3);
- `allocation`: the contract of all algorithms, and what a set of allowances gives (equations 2 and 4);
- `best_hjp`, `heuristics`: BestHJP for one join, and the four heuristics of appendix B for plans;
- `paths`: input paths, φ, the division of resources along a path, path productivity (equations 5 to 8);
- `jda_knapsack`: allocation in whole multiples, by greed and by dynamic programming (problem 1);
- `grepp`: the greedy knapsack of section 4.1;
- `freshness`, `gh_wmscp`: states that can become stale, their refresh rates, and the paths that keep them fresh
  (section 4.2);
- `jaqpot`: the integrated algorithm (section 4.3);
- `time_windows`: state sizes of windows in time (appendix A);
- `algorithms`: all of them by name;
- `by_cpu`: what the product allocates by: results per CPU second of the probes that find results.

Nothing here becomes stale by starving under our law, where a combined row ends with the first of its parts:
`freshness`, `gh_wmscp` and `jaqpot` speak of the paper's windows that count rows. docs/papers.md has where the paper
contradicts itself.
"""
