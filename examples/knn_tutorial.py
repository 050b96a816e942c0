"""What changes when `KNeighborsClassifier` in a pipeline learns its representation.

Five folds on two data sets that ship with scikit-learn: accuracy, seconds to fit and to predict,
and the memory of the fitted model. With `--json` every row is also written as a line of results.

    python examples/knn_tutorial.py
"""

import argparse
import json
import pickle
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier, NeighborhoodComponentsAnalysis
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from torch import nn

from neuralsort.neighbors import DifferentiableKNeighborsClassifier


def as_images(X: np.ndarray) -> np.ndarray:  # noqa: N803 - scikit-learn's name
    """Digits as images of one channel, in [0, 1]."""
    return (X / 16).astype(np.float32).reshape(-1, 1, 8, 8)


def convolutional() -> nn.Module:
    """A small network for images of 8 x 8."""

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]

    torch.manual_seed(0)
    return nn.Sequential(
        *block(1, 16),
        *block(16, 32),
        nn.MaxPool2d(2),
        *block(32, 64),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(256, 32),
    )


def learned(**options: Any) -> DifferentiableKNeighborsClassifier:
    """Our estimator, with a seed."""
    return DifferentiableKNeighborsClassifier(random_state=0, **options)


def nca() -> NeighborhoodComponentsAnalysis:
    """Its linear relative in scikit-learn."""
    return NeighborhoodComponentsAnalysis(random_state=0)


MODELS: dict[str, dict[str, Callable[[], Any]]] = {
    "digits": {
        "`KNeighborsClassifier`": KNeighborsClassifier,
        "`NeighborhoodComponentsAnalysis`, then it": lambda: make_pipeline(
            nca(), KNeighborsClassifier()
        ),
        "`DifferentiableKNeighborsClassifier`": learned,
        "the same with a convolutional embedding": lambda: make_pipeline(
            FunctionTransformer(as_images),
            learned(embedding=convolutional(), learning_rate=3e-3, epochs=15),
        ),
    },
    "breast cancer": {
        "`KNeighborsClassifier`": lambda: make_pipeline(StandardScaler(), KNeighborsClassifier()),
        "`NeighborhoodComponentsAnalysis`, then it": lambda: make_pipeline(
            StandardScaler(), nca(), KNeighborsClassifier()
        ),
        "`DifferentiableKNeighborsClassifier`": lambda: make_pipeline(StandardScaler(), learned()),
    },
}
DATA = {"digits": load_digits, "breast cancer": load_breast_cancer}


def measure(make: Callable[[], Any], data: str, folds: int = 5) -> dict[str, float]:
    """Mean over the first of five folds of accuracy, seconds and MiB."""
    X, y = DATA[data](return_X_y=True)
    rows = []
    split = StratifiedKFold(5, shuffle=True, random_state=0).split(X, y)
    for train, test in islice(split, folds):
        model = make()
        start = time.perf_counter()
        model.fit(X[train], y[train])
        fitted = time.perf_counter()
        accuracy = model.score(X[test], y[test])
        predicted = time.perf_counter()
        size = len(pickle.dumps(model)) / 2**20
        rows.append((accuracy, fitted - start, predicted - fitted, size))
    names = ("accuracy", "fit", "predict", "size")
    return dict(zip(names, np.mean(rows, axis=0).tolist(), strict=True))


def rows() -> Iterator[dict[str, Any]]:
    """What every model does on its data."""
    for data, models in MODELS.items():
        for name, make in models.items():
            yield {"data": data, "model": name} | measure(make, data)


HEADER = "| data | model | accuracy | fit | predict | size |\n|---|---|---|---|---|---|"


def line(row: dict[str, Any]) -> str:
    """A row of the table, in Markdown."""
    return (
        f"| {row['data']} | {row['model']} | {100 * row['accuracy']:.2f} % | "
        f"{row['fit']:.2f} s | {1000 * row['predict']:.0f} ms | {row['size']:.2f} MiB |"
    )


def main() -> None:
    """Prints the table, and writes its rows if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="file for one JSON line per row")
    options = parser.parse_args()
    print(HEADER, flush=True)
    measured = []
    for row in rows():
        measured.append(row)
        print(line(row), flush=True)
    if options.json:
        from neuralsort.runtime import machine

        where = {
            "versions": machine.versions(("neuralsort", "torch", "numpy", "scikit-learn")),
            "commit": machine.commit(),
            "machine": machine.machine() | machine.arithmetic(),
        }
        options.json.write_text("".join(json.dumps(row | where) + "\n" for row in measured))


if __name__ == "__main__":
    main()
