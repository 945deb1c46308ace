"""How to get from one plan to another: which states they share, what each strategy costs, and which to take."""
