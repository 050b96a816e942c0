"""The command `neuralsort reproduce`."""

from pathlib import Path
from typing import Literal

from .. import record
from ..studies import STUDIES
from ..training.plan import ConfigError
from .cells import Data, Recipe, cells, in_order, placed, unpublished
from .processes import Processes
from .queue import Queue
from .ray_tasks import connected


def reproduce(
    data: Data = "mnist",
    recipe: Recipe = "fast",
    only: Literal["sort", "median", "knn", "lists", "all"] = "all",
    first: int | None = None,
    seeds: int = 3,
    steps: int | None = None,
    jobs: int = 1,
    ray: str | None = None,
    data_dir: Path | None = None,
    results: Path = Path("results"),
    runs_dir: Path = Path("runs"),
    dry_run: bool = False,
) -> None:
    """Do every run of the report on a data set that is not done yet, the most telling first.

    On lists every method has the same number of steps, and chooses its temperature, if it has one,
    from the same ones, by validation in short runs. Interrupted, the same command goes on with the
    runs it was in. Runs whose lines are in the results are done, wherever that was.

    Args:
        data: Set of images; lists of numbers are made of `digits` and `mnist` alone.
        recipe: `fast`: ours, for a CPU; `paper`: as in the paper; `tuned`: its network for sorting,
            trained better.
        only: One study, those on lists of numbers, or all.
        first: How many of the runs that are left to do, the most telling first. Not given: all.
        seeds: How many seeds each cell of the tables has.
        steps: Limits every run to so many. Not given: those of the report.
        jobs: How many runs to do side by side, each with threads of its own.
        ray: Do the runs on a Ray cluster: its address, or `auto` for that of this machine.
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
    if ray is not None and jobs > 1:
        raise ConfigError(
            f"--jobs {jobs} is for this machine. With --ray there are as many runs side by side as "
            "the cluster has cores for. Leave one of the two out."
        )
    # Workers on other machines start in other folders.
    runs_dir, results = (one.expanduser().absolute() for one in (runs_dir, results))
    data_dir = data_dir and data_dir.expanduser().absolute()
    cells_there = [placed(one, runs_dir, results, data_dir, steps) for one in wanted]
    queue = unpublished(in_order(cells_there), record.read(results, studies))
    # Those that have finished in their folders only lack their lines, and come besides.
    left = [cell for cell in queue if not cell.is_done][:first]
    queue = [cell for cell in queue if cell.is_done or cell in left]
    if dry_run:
        for cell in queue:
            print(cell.folder.name)
        return
    if ray is None:
        Queue(queue, Processes(jobs) if jobs > 1 else None).run()
    else:
        with connected(ray) as workers:
            Queue(queue, workers).run()
