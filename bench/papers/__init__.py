"""The experiments of the papers, reproduced: each script writes a table to bench/out/ and a plot beside it."""
