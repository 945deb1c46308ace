"""What queries that run together share, beyond what they store: which of them have a join in common, and how it is run.

The decisions are those of Wang, Rundensteiner, Ganguly, Bhatnagar: State-Slice (VLDB 2006), by the names that the paper
gives them. The paper joins two streams A and B for queries that differ in their windows and selections. Each window
ends a *slice*: the rows of one age. A row waits in the first slice, and is handed to the next one when it is too old; a
new row looks up one slice after the other. A query reads the slices up to its own window, so each pair of rows is
compared once for all queries.

- `window_queries`, `chain`: the queries and the chains of the paper, as values;
- `formulas`: its equations for two queries; `nested_loop`: its cost model for any number of queries;
- `mem_opt`, `cpu_opt`: its two ways to build a chain, by any cost of a slice that they are handed;
- `reference`: its operators, executed row by row, slow and literal, which count comparisons and stored rows;
- `canonical`: which queries have a join in common;
- `slice_cost`, `source_chain`: what a slice costs on this engine, and how the rows of a source are cut;
- `join_load`, `ways`: a join as what its members ask of it, and the ways to run it by one contract: Mem-Opt, CPU-Opt,
  pull-up, push-down, unshared; `pipeline_chains`: the same for all queries of a pipeline.
"""
