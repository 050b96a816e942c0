"""k-nearest neighbours with a learned representation, as scikit-learn estimators."""

from .classifier import DifferentiableKNeighborsClassifier
from .regressor import DifferentiableKNeighborsRegressor
from .search import Index
from .storage import StorageError

__all__ = [
    "DifferentiableKNeighborsClassifier",
    "DifferentiableKNeighborsRegressor",
    "Index",
    "StorageError",
]
