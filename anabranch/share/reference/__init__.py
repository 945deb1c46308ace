"""The operators of the paper, executed row by row (State-Slice, VLDB 2006): slow, plain, and exact in results.

A row of A that comes to a chain of two slices [0, 2) and [2, 4), after b1 at 1 s and b2 at 3 s, itself at 4 s:

1. two references to the row are made, a *male* one, which purges and probes, and a *female* one, which is stored (fig. 9);
2. the male reference purges the first slice: b1 is 3 s old, so b1 goes into the queue to the second slice;
3. the male reference probes the rows of B that are left, and finds (a, b2); then it goes into the queue, behind b1;
4. the female reference is stored in the first slice;
5. the second slice takes b1 from the queue and stores it, then takes the male reference, which finds (a, b1);
6. the male reference leaves the chain. Each query that reads the second slice has a union, to which the reference says that
   no result of an earlier row is to come: the union hands (a, b1), (a, b2) on.

An operator takes one item from its queue at a time, and whoever runs the plan chooses which operator is next; neither
results nor their order for a query depend on it.

- `rows`: rows, references to them, the condition of the join;
- `joins`: the state of a stream in a slice, and the sliced join (definitions 1 and 3, fig. 6 and 9);
- `outlets`: what becomes of the results of a join: router, selections, unions, receivers;
- `plans`: chains (fig. 7, 8, 12, 13, 15, 16), pull-up (fig. 3), push-down (fig. 4), unshared (fig. 2).

Rows are purged when they are at least W old, as definitions 1 to 3, fig. 6 and lemma 1 have it; fig. 9 and table 2 keep
a row that is exactly W old. Comparisons are counted by the size of the state that is probed, and not executed one by
one: partners are found by their key.
"""
