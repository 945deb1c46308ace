"""Finding plans whose CPU and memory stay within a budget: the papers' algorithms, each by its name, and an exact search."""
