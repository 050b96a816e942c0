"""Products with relaxed permutations of long lists, without their matrix.

What it rests on is derived in docs/numerics.md; its words are explained there too. In the order in
which they build on each other:

- `tiles`: sums of gaps over aligned tiles, and how far a weight reaches;
- `chebyshev`: how many rows of a block give all the others;
- `blocks`: a block of rows with its window of columns;
- `bands`: all blocks of all lists, and the sweep over them;
- `queries`: what a matrix may be asked, with its gradients;
- `differentiate`: the queries as functions that autograd knows;
- `recurrence`: sums that decay along a list, for kernels that are exponentials of distances;
- `between`: how far one item lies below another, in logits.
"""
