"""Runs as tasks of a Ray cluster, whose machines share the folders of runs and results.

Nothing else knows Ray, and nothing imports it before somebody asks for it.
"""

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from neuralsort.runtime import process

from ..training.plan import ConfigError
from ..training.trainer import Interrupted
from .cells import Cell
from .processes import POLL_SECONDS, attempt_with_log

RETRIES = 10
"""How often a run goes on from its checkpoint after its worker, or the machine, has died."""

LOCK_SECONDS = 300.0
"""How long a run waits for the lock of its folder. Storage may keep that of a dead machine."""

SHARED_SECONDS = 60.0
"""How long what another machine wrote may take to appear here."""

STOP_SECONDS = 120.0
"""How long runs that are asked to stop may take for their checkpoints."""


@contextmanager
def connected(address: str) -> Iterator["RayTasks"]:
    """A cluster to give runs to.

    Args:
        address: Of the cluster, or `"auto"` for the one that this machine belongs to.

    Raises:
        ConfigError: If there is no Ray, or no cluster.
    """
    try:
        import ray
    except ImportError:
        raise ConfigError(
            '--ray needs Ray. Install it with pip install "neuralsort[ray]" '
            '(in a clone: pip install ".[ray]").'
        ) from None
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"Could not connect to the Ray cluster {address!r}: {error} Start one with `ray start "
            "--head`, or join this machine to one with `ray start --address=HOST:6379`, then give "
            "`--ray auto`."
        ) from None
    try:
        yield RayTasks(ray)
    finally:
        ray.shutdown()


class RayTasks:
    """Does runs on the machines of a cluster, as many as there are cores for their threads.

    Args:
        ray: The package, connected to a cluster.
    """

    def __init__(self, ray: Any) -> None:
        self.ray = ray
        # A process of its own for every run, as on one machine.
        decorate = ray.remote(
            max_calls=1,
            max_retries=RETRIES,
            retry_exceptions=[Interrupted],  # the machine was told to stop, not the queue
            runtime_env={"env_vars": settings_of_workers()},
        )
        self.task = decorate(_attempt)
        self.running: dict[Any, tuple[Cell, float]] = {}
        """The run of every task, and its cores."""

    def has_room(self) -> bool:
        """Whether another run may start: one waits, for whichever core is free next."""
        cores = sum(cores for _, cores in self.running.values())
        return cores <= self.ray.cluster_resources().get("CPU", 0)

    def start(self, cell: Cell) -> None:
        """Hands a run to the cluster."""
        machines = [one["Resources"].get("CPU", 0) for one in self.ray.nodes() if one["Alive"]]
        # Where every machine is smaller, threads share the cores that there are.
        cores = min(cell.threads, max([1, *machines]))
        self.running[self.task.options(num_cpus=cores).remote(cell)] = cell, cores

    def ended(self) -> list[tuple[Cell, bool]]:
        """The runs that have ended since the last look, and whether they ended well."""
        tasks = list(self.running)
        if not tasks:
            return []
        ended, _ = self.ray.wait(tasks, num_returns=len(tasks), timeout=POLL_SECONDS)
        cells = [self.running.pop(task)[0] for task in ended]
        return [
            (cell, self._went_well(task, cell)) for task, cell in zip(ended, cells, strict=True)
        ]

    def stop(self) -> None:
        """Asks all runs for a checkpoint, and waits for them to end."""
        tasks = list(self.running)
        for task in tasks:
            self.ray.cancel(task)  # as Ctrl-C does
        if tasks:
            self.ray.wait(tasks, num_returns=len(tasks), timeout=STOP_SECONDS)

    def _went_well(self, task: Any, cell: Cell) -> bool:
        try:
            good = self.ray.get(task)
        except self.ray.exceptions.RayError as error:
            print(f"{cell.folder.name}: {error}", file=sys.stderr, flush=True)
            return False
        if good and not _appears(cell):
            print(
                f"{cell.folder.name}: the run has ended well, but {cell.folder} is not to be seen "
                "here. Give a --runs-dir and --results that all machines share.",
                file=sys.stderr,
                flush=True,
            )
            return False
        return good


def settings_of_workers() -> dict[str, str]:
    """Those of this process, which `neuralsort` has given itself, and where it looks for data."""
    names = (*process.settings({}), process.DONE, "NEURALSORT_DATA")
    return {name: os.environ[name] for name in names if name in os.environ}


def _attempt(cell: Cell) -> bool:
    """What a worker does; the folder may seem to belong to one that has died."""
    return attempt_with_log(cell, LOCK_SECONDS)


def _appears(cell: Cell) -> bool:
    """Whether the end of a run is to be seen from here, if need be after a while."""
    until = time.monotonic() + SHARED_SECONDS
    while not cell.is_done:
        if time.monotonic() > until:
            return False
        time.sleep(POLL_SECONDS)
    return True
