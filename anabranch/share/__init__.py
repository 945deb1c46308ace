"""What queries that run together share, beyond what they store: which of them have a join in common, and how it is run.

The decisions are those of Wang, Rundensteiner, Ganguly, Bhatnagar: State-Slice (VLDB 2006), by the names that the paper
gives them; `reference` has the paper's operators, slow and literal.
"""
