"""k-nearest neighbours with a learned representation, as scikit-learn estimators."""

from .estimators import DifferentiableKNeighborsClassifier, DifferentiableKNeighborsRegressor
from .search import Index
from .storage import StorageError

__all__ = [
    "DifferentiableKNeighborsClassifier",
    "DifferentiableKNeighborsRegressor",
    "Index",
    "StorageError",
]
