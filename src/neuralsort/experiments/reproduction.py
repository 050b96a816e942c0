"""The runs behind the report, one after the other."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from .knn import KNNConfig
from .median import MedianConfig
from .options import StudyConfig
from .plan import ConfigError
from .sorting import SortConfig
from .studies import STUDIES
from .study import run

SORT_LENGTHS = (3, 5, 7, 9, 15)
MEDIAN_LENGTHS = (5, 9, 15)
VARIANCE_TAUS, VARIANCE_STEPS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0), 500
BASELINES = ("vanilla", "sinkhorn", "gumbel_sinkhorn")


Data = Literal["digits", "mnist", "fashion-mnist", "cifar10"]


def runs(data: Data, recipe: Literal["fast", "paper"]) -> Iterator[tuple[str, StudyConfig]]:
    """Every run of the report, the most telling first, with the name of its study."""
    if data in ("digits", "mnist"):
        yield from list_runs(data, recipe)
    for method in ("pixels", "pca"):
        yield "knn", KNNConfig(data=data, recipe=recipe, method=method)
    yield from neighbour_runs(data, recipe, k=9)
    for method in ("autoencoder", "cross_entropy"):
        yield "knn", KNNConfig(data=data, recipe=recipe, method=method)
    for k in (5, 3, 1):
        yield from neighbour_runs(data, recipe, k)


def neighbour_runs(
    data: Data, recipe: Literal["fast", "paper"], k: int
) -> Iterator[tuple[str, StudyConfig]]:
    """The runs that sort neighbours; the paper's at both of its learning rates."""
    for method in ("neuralsort", "stochastic_neuralsort"):
        config = KNNConfig(data=data, recipe=recipe, method=method, k=k)
        yield "knn", config
        if recipe == "paper":
            yield "knn", replace(config, lr=1e-5)


def list_runs(
    data: Literal["digits", "mnist"], recipe: Literal["fast", "paper"]
) -> Iterator[tuple[str, StudyConfig]]:
    """The runs on lists of large numbers."""

    def sort(method: str, n: int, seed: int = 0) -> tuple[str, StudyConfig]:
        return "sort", SortConfig(data=data, recipe=recipe, method=method, n=n, seed=seed)

    def median(method: str, n: int) -> tuple[str, StudyConfig]:
        return "median", MedianConfig(data=data, recipe=recipe, method=method, n=n)

    yield from (sort("neuralsort", n) for n in SORT_LENGTHS)
    yield from (sort("stochastic_neuralsort", n) for n in (5, 15))
    yield from (sort(method, n) for n in (3, 5) for method in BASELINES)
    yield from (sort("neuralsort", 5, seed) for seed in (1, 2))
    yield sort("reinforce", 5)
    # How gradients vary with the temperature, in short runs at each.
    for n in (5, 15):
        yield (
            "sort",
            SortConfig(data=data, recipe=recipe, n=n, tau=VARIANCE_TAUS, steps=VARIANCE_STEPS),
        )
    for n in MEDIAN_LENGTHS:
        yield from (median(one, n) for one in ("constant", "neuralsort", "stochastic_neuralsort"))
    yield from (median(method, 5) for method in ("vanilla", "sinkhorn"))


def reproduce(
    data: Data = "mnist",
    recipe: Literal["fast", "paper"] = "fast",
    only: Literal["sort", "median", "knn", "all"] = "all",
    steps: int | None = None,
    data_dir: Path | None = None,
    results: Path = Path("results"),
    runs_dir: Path = Path("runs"),
    dry_run: bool = False,
) -> None:
    """Do every run of the report that is not done yet, one after the other.

    Interrupted, the same command goes on with the run it was in.

    Args:
        data: Source of the images; lists of numbers are made of `digits` and `mnist` alone.
        recipe: The paper's networks and optimisation, or ours for two cores.
        only: One study, or all.
        steps: Limits every run to so many. Not given: the recipe's.
        data_dir: Folder with the data; else NEURALSORT_DATA, else the user's cache and a download.
        results: Folder of the result lines.
        runs_dir: Folder of the runs' checkpoints.
        dry_run: Only say what would be done.
    """
    wanted = [(name, config) for name, config in runs(data, recipe) if only in (name, "all")]
    if not wanted:
        raise ConfigError(f"The study {only} has no runs on {data}: its lists are made of digits.")
    for name, config in wanted:
        config = replace(config, steps=config.steps or steps)
        folder = runs_dir / config.folder(name).name
        print(folder.name)
        if not dry_run:
            options = replace(config, data_dir=data_dir, results=results, run=folder)
            run(STUDIES[name].study, options)
