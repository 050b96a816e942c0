"""Estimators and data that the tests of neighbours share."""

import pytest
from sklearn.datasets import load_diabetes, load_iris

from neuralsort.neighbors import (
    DifferentiableKNeighborsClassifier,
    DifferentiableKNeighborsRegressor,
)
from neuralsort.neighbors.engines import has_faiss

NEEDS_FAISS = pytest.mark.skipif(not has_faiss(), reason="FAISS is not installed")
EXACT = [
    pytest.param("torch"),
    pytest.param("sklearn"),
    pytest.param("faiss", marks=NEEDS_FAISS),
]
IRIS = load_iris(return_X_y=True)
DIABETES = load_diabetes(return_X_y=True)


def classifier(**options):
    return DifferentiableKNeighborsClassifier(**{"epochs": 3, "random_state": 0} | options)


def regressor(**options):
    return DifferentiableKNeighborsRegressor(**{"epochs": 3, "random_state": 0} | options)
