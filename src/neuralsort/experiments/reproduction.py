"""The runs behind the report, the most telling first: one after the other, or side by side.

A cell is a plain description of a run, and `run_cell` does it wherever it is called: in this
process, in another, or on another machine that shares the folders.
"""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

from neuralsort.runtime import files

from .data.downloads import DataError
from .networks.orderings import WITHOUT_TAU
from .record import Line
from .studies import STUDIES
from .studies.config import StudyConfig
from .studies.knn import KNNConfig
from .studies.median import MedianConfig
from .studies.running import MODEL, finished, run
from .studies.sorting import SortConfig
from .training.checkpoint import CheckpointError
from .training.plan import ConfigError
from .training.trainer import Diverged, Interrupted

Data = Literal["digits", "mnist", "fashion-mnist", "cifar10"]
Recipe = Literal["fast", "paper", "tuned"]

SORT_LENGTHS = (5, 9, 15, 3, 7)
MEDIAN_LENGTHS = (5, 9, 15)
BASELINES = ("vanilla", "sinkhorn", "gumbel_sinkhorn")
LONGER = ("neuralsort", "stochastic_neuralsort")
VARIANCE_TAUS, VARIANCE_STEPS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0), 500

STEPS = {"fast": 3_000, "tuned": 10_000}
"""Steps of every run on lists, whatever the method; the paper's recipe has its own."""

TAUS = {"fast": (0.125, 0.5, 2.0, 8.0), "tuned": (16.0, 128.0, 1024.0)}
"""The temperatures that every method chooses from, in short runs, before its seeds are run."""

POLL_SECONDS = 0.2
"""Between looks at runs in other processes."""

SHORT = 10
"""A short run has this fraction of the steps."""

KEPT_METHOD, KEPT_SEED, KEPT_BYTES = "neuralsort", 0, 2_000_000
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
    def steps(self) -> int:
        """Steps over all temperatures: what the time of the run goes with."""
        study, config = STUDIES[self.study], self.config
        if config.method in ("constant", "pixels", "pca"):
            return 0
        taus = config.tau or (0.0,) * (1 if self.chooser else len(study.taus(config)))
        return len(taus) * config.adjusted(study.plan(config)).steps

    @property
    def is_done(self) -> bool:
        """Whether the run has finished."""
        return (self.folder / MODEL).exists()

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
        _, choice = finished(cell.chooser.folder)
        config = replace(config, tau=(choice.tau,))
    line = run(STUDIES[cell.study], config)
    model = cell.folder / MODEL
    is_kept = (line.method, line.seed) == (KEPT_METHOD, KEPT_SEED) and not cell.config.tau
    if is_kept and model.stat().st_size <= KEPT_BYTES:
        kept = config.results / "weights" / f"{cell.folder.name}.safetensors"
        files.replace(kept, model.read_bytes())
    return line


# -- which runs ------------------------------------------------------------------------------------


def cells(data: Data, recipe: Recipe = "fast", *, seeds: int = 3) -> Iterator[Cell]:
    """Every run of the report, the most telling first; folders are those of the options alone."""
    if data in ("digits", "mnist"):
        yield from list_cells(data, recipe, seeds)
    if recipe != "tuned":
        for config in neighbour_configs(data, recipe):
            yield Cell("knn", config)


def list_cells(data: Any, recipe: Any, seeds: int) -> Iterator[Cell]:
    """The runs on lists of large numbers: each length trained on its own, budgets all equal."""

    def sort(method: str, n: int, seed: int) -> Cell:
        return _chosen("sort", SortConfig(data=data, recipe=recipe, method=method, n=n, seed=seed))

    def median(method: str, n: int, seed: int) -> Cell:
        return _chosen(
            "median", MedianConfig(data=data, recipe=recipe, method=method, n=n, seed=seed)
        )

    every = range(seeds)
    with_medians = recipe != "tuned"
    yield from (sort("neuralsort", n, seed) for n in SORT_LENGTHS for seed in every)
    if with_medians:
        for n in MEDIAN_LENGTHS:
            yield from (median(method, n, seed) for method in LONGER for seed in every)
    for seed in every:
        for n in SORT_LENGTHS:
            yield from (sort(method, n, seed) for method in ("stochastic_neuralsort", *BASELINES))
        if with_medians:
            for n in MEDIAN_LENGTHS:
                rest = (*BASELINES, "constant") if seed == 0 else BASELINES
                yield from (median(method, n, seed) for method in rest)
    if recipe == "fast":
        yield sort("reinforce", 5, 0)
        # How gradients vary with the temperature, in short runs at each.
        for n in (5, 9, 15):
            for method in LONGER:
                config = SortConfig(data=data, method=method, n=n, tau=VARIANCE_TAUS)
                yield Cell("sort", replace(config, steps=VARIANCE_STEPS))


def _chosen(study: str, config: StudyConfig) -> Cell:
    """The run with the budget of its recipe, at the temperature that short runs choose."""
    if config.recipe not in STEPS:
        return Cell(study, config)
    config = replace(config, steps=STEPS[config.recipe])
    if config.method in WITHOUT_TAU:
        return Cell(study, config)
    return Cell(study, config, Cell(study, _short(config)))


def _short(config: StudyConfig) -> StudyConfig:
    steps = max(1, (config.steps or 0) // SHORT)
    return replace(config, seed=0, steps=steps, tau=TAUS[config.recipe])


def neighbour_configs(data: Any, recipe: Any) -> Iterator[KNNConfig]:
    """The runs that look for neighbours; the paper's at both of its learning rates."""

    def learned(k: int) -> Iterator[KNNConfig]:
        for method in LONGER:
            config = KNNConfig(data=data, recipe=recipe, method=method, k=k)
            yield config
            if recipe == "paper":
                yield replace(config, lr=1e-5)

    for method in ("pixels", "pca"):
        yield KNNConfig(data=data, recipe=recipe, method=method)
    yield from learned(9)
    for method in ("autoencoder", "cross_entropy"):
        yield KNNConfig(data=data, recipe=recipe, method=method)
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


def placed(cell: Cell, runs: Path, results: Path, data_dir: Path | None, steps: int | None) -> Cell:
    """The same run in other folders, with at most so many steps."""
    config = cell.config
    if steps is not None:
        few = steps if cell.chooser or not config.tau else max(1, steps // SHORT)
        config = replace(config, steps=min(config.steps or few, few))
    folder = runs / config.folder(cell.study).name
    config = replace(config, run=folder, results=results, data_dir=data_dir)
    chooser = cell.chooser and placed(cell.chooser, runs, results, data_dir, steps)
    return Cell(cell.study, config, chooser)


# -- doing them ------------------------------------------------------------------------------------


class Unfinished(Exception):
    """Runs that failed; the message says which, and where to look."""


class Queue:
    """Runs of the report, some of them side by side.

    Args:
        cells: In the order in which they are to be done.
        jobs: How many at a time.
    """

    def __init__(self, cells: Sequence[Cell], jobs: int) -> None:
        self.cells, self.jobs = list(cells), jobs
        self.started = time.monotonic()
        self.steps = 0
        self.failed: list[Cell] = []

    def run(self) -> None:
        """Does what is not done yet.

        Raises:
            Unfinished: If some failed; all others are done.
            Interrupted: After Ctrl-C or a SIGTERM; every run has left a checkpoint.
        """
        done = [cell for cell in self.cells if cell.is_done]
        for cell in done:
            run_cell(cell)  # whose line may be missing, if it was killed at that moment
        self.waiting = [cell for cell in self.cells if not cell.is_done]
        print(f"{len(self.waiting)} runs to do, {len(done)} done before.", flush=True)
        if self.jobs == 1:
            for cell in self.waiting:
                if not self._is_lost(cell):
                    self._finished(cell, _attempt(cell))
        else:
            self._side_by_side()
        if self.failed:
            names = ", ".join(cell.folder.name for cell in self.failed)
            raise Unfinished(
                f"{len(self.failed)} runs did not finish: {names}. What they said is in log.txt in "
                "their folders. The same command tries them again."
            )

    def _side_by_side(self) -> None:
        context = multiprocessing.get_context("spawn")
        running: list[tuple[Cell, BaseProcess]] = []
        waiting, again = list(self.waiting), []
        before = signal.signal(signal.SIGTERM, _interrupt)
        try:
            while waiting or running:
                waiting = [cell for cell in waiting if not self._is_lost(cell)]
                ready = [cell for cell in waiting if cell.is_ready]
                for cell in ready[: self.jobs - len(running)]:
                    waiting.remove(cell)
                    process = context.Process(target=_work, args=(cell,))
                    process.start()
                    running.append((cell, process))
                ended = [one for one in running if one[1].exitcode is not None]
                for cell, process in ended:
                    running.remove((cell, process))
                    if (process.exitcode or 0) < 0 and cell not in again:
                        again.append(cell)  # killed from outside: it goes on from its checkpoint
                        waiting.insert(0, cell)
                    else:
                        self._finished(cell, process.exitcode == 0)
                if not ended:
                    time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            for _, process in running:
                process.terminate()  # which asks for a checkpoint
            for _, process in running:
                process.join()
            raise Interrupted from None
        finally:
            signal.signal(signal.SIGTERM, before)

    def _is_lost(self, cell: Cell) -> bool:
        """Whether the run that chooses its temperature has failed, and this one with it."""
        lost = cell.chooser in self.failed
        if lost:
            self.failed.append(cell)
        return lost

    def _finished(self, cell: Cell, good: bool) -> None:
        if good:
            self.steps += cell.steps
        else:
            self.failed.append(cell)
        left = [one for one in self.waiting if not one.is_done and one not in self.failed]
        word = "done" if good else "failed"
        text = f"{word}  {cell.folder.name}  ({len(left)} runs left"
        seconds = self.seconds_left(left)
        print(text + (")" if seconds is None else f", about {_hours(seconds)})"), flush=True)

    def seconds_left(self, left: Sequence[Cell]) -> float | None:
        """By the speed so far; None while there is none."""
        if not self.steps:
            return None
        return (time.monotonic() - self.started) / self.steps * sum(one.steps for one in left)


def _attempt(cell: Cell) -> bool:
    """Does a run in this process, and says on stderr why it failed, if it did."""
    try:
        run_cell(cell)
    except (CheckpointError, ConfigError, DataError, Diverged, OSError, RuntimeError) as error:
        print(f"{cell.folder.name}: {error}", file=sys.stderr, flush=True)
        return False
    return True


def _work(cell: Cell) -> None:
    """Does a run in a process of its own, which says what it has to say in a file."""
    cell.folder.mkdir(parents=True, exist_ok=True)
    with (cell.folder / "log.txt").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            good = _attempt(cell)
        except (Interrupted, KeyboardInterrupt):
            good = False
    sys.exit(0 if good else 1)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds > 5400 else f"{seconds / 60:.0f} minutes"


def reproduce(
    data: Data = "mnist",
    recipe: Recipe = "fast",
    only: Literal["sort", "median", "knn", "lists", "all"] = "all",
    first: int | None = None,
    seeds: int = 3,
    steps: int | None = None,
    jobs: int = 1,
    data_dir: Path | None = None,
    results: Path = Path("results"),
    runs_dir: Path = Path("runs"),
    dry_run: bool = False,
) -> None:
    """Do every run of the report that is not done yet, the most telling first.

    Every method has the same number of steps, and chooses its temperature from the same ones, by
    validation in short runs. Interrupted, the same command goes on with the runs it was in.

    Args:
        data: Set of images; lists of numbers are made of `digits` and `mnist` alone.
        recipe: The paper's networks and optimisation; its network, tuned; or ours for two cores.
        only: One study, those on lists of numbers, or all.
        first: How many of the runs to do, from the most telling one. Not given: all.
        seeds: How many seeds each cell of the tables has.
        steps: Limits every run to so many. Not given: those of the report.
        jobs: How many runs to do side by side, each with threads of its own.
        data_dir: Folder with the data; else NEURALSORT_DATA, else the user's cache and a download.
        results: Folder of the result lines.
        runs_dir: Folder of the runs' checkpoints.
        dry_run: Only say what would be done.
    """
    for name, value in (("first", first), ("seeds", seeds), ("steps", steps), ("jobs", jobs)):
        if value is not None and value < 1:
            raise ConfigError(f"--{name} must be at least 1, got {value}.")
    studies = {"lists": ("sort", "median"), "all": tuple(STUDIES)}.get(only, (only,))
    wanted = [cell for cell in cells(data, recipe, seeds=seeds) if cell.study in studies]
    if not wanted:
        raise ConfigError(
            f"There are no runs of the study {only} on {data} with the recipe {recipe}. Choose "
            "another --only, --data or --recipe."
        )
    queue = in_order([placed(one, runs_dir, results, data_dir, steps) for one in wanted[:first]])
    if dry_run:
        for cell in queue:
            print(cell.folder.name)
        return
    Queue(queue, jobs).run()
