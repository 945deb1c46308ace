"""What plans cost: rates and sizes of sets of streams, and the CPU and memory of a join tree."""
