"""The runs behind the report, the most telling first.

A cell is a plain description of a run, and `run_cell` does it wherever it is called: in this
process, in another, or on another machine that shares the folders.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from neuralsort.runtime import files

from ..networks.orderings import BASELINES, NEURALSORT, WITHOUT_TAU
from ..record import Line
from ..studies import STUDIES
from ..studies.knn import FAST_TAU, UNTRAINED, KNNConfig
from ..studies.median import MedianConfig
from ..studies.running import MODEL, finished, run, told
from ..studies.sorting import SortConfig
from ..studies.study import StudyConfig
from ..training.checkpoint import CheckpointError
from ..training.plan import Plan

Data = Literal["digits", "mnist", "fashion-mnist", "cifar10"]
Recipe = Literal["fast", "paper", "tuned"]

SORT_LENGTHS = (5, 9, 15, 3, 7)
MEDIAN_LENGTHS = (5, 9, 15)

BY_ITEM = {"fast": (5, 3, 7), "tuned": (5,)}
"""Where Sinkhorn's matrix is also read as in the paper's code."""

STEPS = {"fast": 3_000, "tuned": 10_000}
"""Steps of runs on lists, whatever the method; the paper's recipe has its own."""

LONG, MORE = 12_000, 3
"""Steps of long runs of the tuned recipe, and how many times as many lists a step they have.
NeuralSort alone has them, in one seed. By their number of steps, which must be another than that of
the others, reports keep them in a table apart."""

TAUS = {"fast": (0.125, 0.5, 2.0, 8.0), "tuned": (1.0, 32.0, 1024.0)}
"""The temperatures that every method chooses from, in short runs, before its seeds are run; in the
tuned recipe the baselines, since those of NeuralSort belong to that recipe. The same short runs
show how gradients vary with the temperature."""

SHORT = 5
"""A short run has this fraction of the steps."""

APART = 4.0
"""With our recipe the stochastic form looks for neighbours twice: as all methods do, and with
points so many times as far apart, beside noise that stays. The temperature grows with the squared
distances, so that without noise nothing would change."""

KEPT_METHOD, KEPT_SEED, KEPT_K, KEPT_BYTES = "neuralsort", 0, 9, 2_000_000
"""The parameters of such runs are kept with the results, unless they are too large."""


@dataclass(frozen=True)
class Cell:
    """A run of the report.

    Attributes:
        study: Name of its study.
        config: Its options, with the folders of the run and of the results.
        chooser: A run that has to be there before: this one takes its temperature.
    """

    study: str
    config: StudyConfig
    chooser: "Cell | None" = None

    @property
    def folder(self) -> Path:
        """Of the run."""
        return self.config.folder(self.study)

    @property
    def images(self) -> int:
        """Images looked at in training, over all temperatures: what the time of a run goes with."""
        if self.config.method in ("constant", *UNTRAINED):
            return 0
        trainings = 1 if self.chooser else len(self.taus)
        in_batch = self._plan.batch * self.config.identity["sizes"].get("n", 1)
        return trainings * self._plan.steps * in_batch

    @property
    def threads(self) -> int:
        """Of its arithmetic."""
        return self._plan.threads

    @property
    def taus(self) -> tuple[float, ...]:
        """The temperatures that it tries; of one that a short run chooses, those of the recipe."""
        return self.config.tau or STUDIES[self.study].taus(self.config)

    def at(self, tau: float | None) -> "Cell":
        """The same run at a temperature that need not be chosen."""
        return Cell(self.study, replace(self.config, tau=(tau,)))

    def is_told_by(self, line: Line) -> bool:
        """Whether a line is of this run: its options, plan, and what the study says of itself.

        Lines of early versions do not tell enough to be sure: they have no digests.
        """
        study = STUDIES[self.study]
        if not line.digests:
            return False
        try:
            found, asked = told(line, study, self.config, self._plan, self.taus)
        except CheckpointError:
            return False
        return found == asked

    @property
    def _plan(self) -> Plan:
        return self.config.adjusted(STUDIES[self.study].plan(self.config))

    @property
    def is_done(self) -> bool:
        """Whether the run has finished."""
        return (self.folder / MODEL).exists()

    @property
    def kept(self) -> Path | None:
        """Where its parameters are kept with the results, if they are of that kind."""
        config = self.config
        kind = config.method, config.seed, config.identity["sizes"].get("k", KEPT_K)
        if kind != (KEPT_METHOD, KEPT_SEED, KEPT_K) or len(config.tau) > 1:
            return None
        return config.results / "weights" / f"{self.folder.name}.safetensors"

    @property
    def lacks_copy(self) -> bool:
        """Whether the run has finished here, and was killed before its parameters were kept."""
        if self.kept is None or not self.is_done or self.kept.exists():
            return False
        return (self.folder / MODEL).stat().st_size <= KEPT_BYTES

    @property
    def is_ready(self) -> bool:
        """Whether what it needs is there."""
        return self.chooser is None or self.chooser.is_done


def run_cell(cell: Cell) -> Line:
    """Does a run, or goes on with it; one that has finished is not done again.

    Returns:
        Its line, which is in the results.
    """
    config = cell.config
    if cell.chooser is not None:
        config = replace(config, tau=(_choice(cell.folder, cell.chooser.folder).tau,))
    line = run(STUDIES[cell.study], config)
    model = cell.folder / MODEL
    if cell.kept is not None and model.stat().st_size <= KEPT_BYTES:
        files.replace(cell.kept, model.read_bytes())
    return line


def _choice(own: Path, chooser: Path) -> Line:
    """A line with the temperature that was chosen for a run."""
    try:
        return finished(own)[1]  # the short runs may have been on another machine
    except CheckpointError:
        return finished(chooser)[1]


# -- which runs ------------------------------------------------------------------------------------


def cells(data: Data, recipe: Recipe = "fast", *, seeds: int = 3) -> Iterator[Cell]:
    """Every run of the report, the most telling first; folders are those of the options alone."""
    if data in ("digits", "mnist"):
        yield from list_cells(data, recipe, seeds)
    if recipe != "tuned":
        for config in neighbour_configs(data, recipe, seeds):
            yield Cell("knn", config)


def list_cells(data: Any, recipe: Any, seeds: int) -> Iterator[Cell]:
    """The runs on lists of large numbers: each length trained on its own, budgets all equal.

    But for the long runs of the tuned recipe.
    """

    def sort(method: str, n: int, seed: int) -> Cell:
        return _chosen("sort", SortConfig(data=data, recipe=recipe, method=method, n=n, seed=seed))

    def median(method: str, n: int, seed: int) -> Cell:
        return _chosen(
            "median", MedianConfig(data=data, recipe=recipe, method=method, n=n, seed=seed)
        )

    longer = [_long(data, n) for n in SORT_LENGTHS] if recipe == "tuned" else []
    yield from longer[:1]
    # One seed of everything tells more than three seeds of something.
    for seed in range(seeds):
        for n in SORT_LENGTHS:
            yield from (sort(method, n, seed) for method in (*NEURALSORT, *BASELINES))
        if seed == 0:
            yield from (sort("sinkhorn_by_item", n, 0) for n in BY_ITEM.get(recipe, ()))
        if recipe == "fast" and seed == 0:
            yield sort("reinforce", 5, 0)
        if recipe != "tuned":
            methods = (*NEURALSORT, *BASELINES, *(["constant"] if seed == 0 else []))
            for n in MEDIAN_LENGTHS:
                yield from (median(method, n, seed) for method in methods)
    yield from longer[1:]


def _chosen(study: str, config: StudyConfig) -> Cell:
    """The run with the budget of its recipe, at the temperature that short runs choose."""
    if config.recipe not in STEPS:
        return Cell(study, config)
    config = replace(config, steps=STEPS[config.recipe])
    if config.method in WITHOUT_TAU or (config.recipe == "tuned" and config.method in NEURALSORT):
        return Cell(study, config)
    return Cell(study, config, Cell(study, _short(config)))


def _long(data: Any, n: int) -> Cell:
    config = SortConfig(data=data, recipe="tuned", n=n, steps=LONG)
    batch = STUDIES["sort"].plan(config).batch
    return Cell("sort", replace(config, batch=MORE * batch))


def _short(config: StudyConfig) -> StudyConfig:
    steps = max(1, (config.steps or 0) // SHORT)
    return replace(config, seed=0, steps=steps, tau=TAUS[config.recipe])


def neighbour_configs(data: Any, recipe: Any, seeds: int) -> Iterator[KNNConfig]:
    """The runs that look for neighbours; the paper's at both of its learning rates.

    With our recipe the stochastic form has two distances between points (see `APART`). Colours and
    clothes take hours: they have one seed, and other k only in the paper's recipe.
    """
    is_small = data in ("digits", "mnist")

    def learned(k: int, seed: int = 0) -> Iterator[KNNConfig]:
        for method in NEURALSORT:
            config = KNNConfig(data=data, recipe=recipe, method=method, k=k, seed=seed)
            yield config
            if recipe == "paper":
                yield replace(config, lr=1e-5)
            elif method == "stochastic_neuralsort":
                yield replace(config, scale=APART, tau=(FAST_TAU * APART**2,))

    for method in ("pixels", "pca"):
        yield KNNConfig(data=data, recipe=recipe, method=method)
    for seed in range(seeds if is_small else 1):
        yield from learned(9, seed)
        for method in ("autoencoder", "cross_entropy"):
            yield KNNConfig(data=data, recipe=recipe, method=method, seed=seed)
        if seed == 0 and (is_small or recipe == "paper"):
            for k in (5, 3, 1):
                yield from learned(k)


def in_order(wanted: Sequence[Cell]) -> list[Cell]:
    """Every run once, each after the one that chooses its temperature."""
    found: dict[Path, Cell] = {}
    for cell in wanted:
        for one in (cell.chooser, cell):
            if one is not None:
                found.setdefault(one.folder, one)
    return list(found.values())


def unpublished(wanted: Sequence[Cell], lines: Sequence[Line]) -> list[Cell]:
    """The runs whose lines are not there yet; a temperature that a line tells need not be chosen.

    Args:
        wanted: Runs, each after the one that chooses its temperature.
        lines: Those of the results, wherever the runs were done.
    """
    by_method = defaultdict(list)
    for line in lines:
        if not line.tested:  # else of another test of the same run
            by_method[line.study, line.method].append(line)

    def published(cell: Cell) -> Line | None:
        found = reversed(by_method[cell.study, cell.config.method])  # the last counts, as in tables
        return next((line for line in found if cell.is_told_by(line)), None)

    left = []
    for cell in wanted:
        choice = published(cell.chooser) if cell.chooser else None
        if choice is not None:
            cell = cell.at(choice.tau)
        # Without the line of the choice, the run may be there at any of the temperatures.
        taus = cell.chooser.taus if cell.chooser else ()
        known = [cell.at(tau) for tau in taus] or [cell]
        if cell.lacks_copy or not any(map(published, known)):
            left.append(cell)
    return left


def placed(cell: Cell, runs: Path, results: Path, data_dir: Path | None, steps: int | None) -> Cell:
    """The same run in other folders, with at most so many steps."""
    config = cell.config
    if steps is not None:
        few = max(1, steps // SHORT) if len(config.tau) > 1 else steps  # several: a short run
        config = replace(config, steps=few) if few < cell._plan.steps else config
    folder = runs / config.folder(cell.study).name
    config = replace(config, run=folder, results=results, data_dir=data_dir)
    chooser = cell.chooser and placed(cell.chooser, runs, results, data_dir, steps)
    return Cell(cell.study, config, chooser)
