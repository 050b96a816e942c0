"""What the paper reports, for the cells of the report: the only place with its numbers.

Grover, Wang, Zweig, Ermon: Stochastic Optimization of Sorting Networks via Continuous Relaxations.
ICLR 2019. Tables 1, 2 and 3, and the tables of its appendix on the distance from hard permutations
and on neighbours by k.
"""

SORT_LENGTHS = (3, 5, 7, 9, 15)
MEDIAN_LENGTHS = (5, 9, 15)

NAMES = {
    "pixels": "kNN",
    "pca": "kNN + PCA",
    "autoencoder": "kNN + autoencoder",
    "constant": "Constant",
    "vanilla": "Vanilla",
    "sinkhorn": "Sinkhorn",
    "sinkhorn_by_item": "Sinkhorn, rows of items",
    "gumbel_sinkhorn": "Gumbel-Sinkhorn",
    "reinforce": "REINFORCE",
    "neuralsort": "Deterministic NeuralSort",
    "stochastic_neuralsort": "Stochastic NeuralSort",
    "cross_entropy": "CNN without kNN",
}

EXACT_MATCH = {
    "vanilla": (0.467, 0.093, 0.009, 0.0, 0.0),
    "sinkhorn": (0.462, 0.038, 0.001, 0.0, 0.0),
    "gumbel_sinkhorn": (0.484, 0.033, 0.001, 0.0, 0.0),
    "neuralsort": (0.930, 0.837, 0.738, 0.649, 0.386),
    "stochastic_neuralsort": (0.927, 0.835, 0.741, 0.646, 0.418),
}

ELEMENT_WISE = {
    "vanilla": (0.801, 0.603, 0.492, 0.113, 0.067),
    "sinkhorn": (0.561, 0.293, 0.197, 0.143, 0.078),
    "gumbel_sinkhorn": (0.575, 0.295, 0.189, 0.146, 0.078),
    "neuralsort": (0.951, 0.927, 0.909, 0.896, 0.857),
    "stochastic_neuralsort": (0.950, 0.926, 0.909, 0.895, 0.862),
}

RERUN_BY = "Prillo and Eisenschlos (2020)"

RERUN = {
    ("neuralsort", "exact_match"): (0.921, 0.797, 0.663, 0.547, 0.253),
    ("neuralsort", "element_wise"): (0.946, 0.911, 0.882, 0.862, 0.802),
}
"""What they print for NeuralSort, means of ten runs: the paper's network
at a learning rate of 5e-3, over 100 passes."""

SQUARED_DIFFERENCE = {
    "neuralsort": (0.0052, 0.0272, 0.0339, 0.0105, 0.0220),
    "stochastic_neuralsort": (0.0095, 0.0327, 0.0189, 0.0111, 0.0179),
}

MSE_TEN_THOUSANDS = {
    "constant": (356.79, 227.31, 146.94),
    "vanilla": (1004.70, 699.15, 562.97),
    "sinkhorn": (343.60, 231.87, 156.27),
    "gumbel_sinkhorn": (344.28, 232.56, 157.34),
    "neuralsort": (45.50, 34.98, 34.78),
    "stochastic_neuralsort": (33.80, 31.43, 29.34),
}

R2 = {
    "constant": (0.0, 0.0, 0.0),
    "vanilla": (0.85, 0.82, 0.79),
    "sinkhorn": (0.25, 0.19, 0.04),
    "gumbel_sinkhorn": (0.25, 0.23, 0.06),
    "neuralsort": (0.95, 0.94, 0.92),
    "stochastic_neuralsort": (0.94, 0.93, 0.90),
}

KNN_DATA = ("mnist", "fashion-mnist", "cifar10")

KNN_ACCURACY = {
    "pixels": (0.972, 0.858, 0.354),
    "pca": (0.976, 0.859, 0.409),
    "autoencoder": (0.976, 0.875, 0.442),
    "neuralsort": (0.995, 0.935, 0.907),
    "stochastic_neuralsort": (0.994, 0.934, 0.895),
    "cross_entropy": (0.994, 0.934, 0.951),
}

KNN_KS = (1, 3, 5, 9)

KNN_ACCURACY_BY_K = {
    ("mnist", "neuralsort"): (0.992, 0.995, 0.993, 0.993),
    ("mnist", "stochastic_neuralsort"): (0.991, 0.993, 0.994, 0.994),
    ("fashion-mnist", "neuralsort"): (0.926, 0.932, 0.935, 0.930),
    ("fashion-mnist", "stochastic_neuralsort"): (0.922, 0.931, 0.933, 0.934),
    ("cifar10", "neuralsort"): (0.887, 0.900, 0.902, 0.907),
    ("cifar10", "stochastic_neuralsort"): (0.851, 0.878, 0.880, 0.895),
}
