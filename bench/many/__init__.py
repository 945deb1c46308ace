"""Many queries over the same streams, in each of the ways that `bench.many_queries` compares."""
