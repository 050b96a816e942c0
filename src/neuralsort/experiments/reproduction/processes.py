"""Runs side by side on this machine, each in a process of its own."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from multiprocessing.process import BaseProcess

from neuralsort.runtime.files import Busy

from ..studies.running import FAILURES
from ..training.trainer import Interrupted
from .cells import Cell, run_cell

POLL_SECONDS = 0.2
"""Between looks at runs in other processes."""

LOCK_SECONDS = 60.0
"""How long a run waits for its folder: a process whose queue was killed is about to leave it."""


class Processes:
    """Does runs side by side; one that is killed from outside goes on once from its checkpoint.

    Args:
        jobs: How many at a time.
    """

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.context = multiprocessing.get_context("spawn")
        self.running: list[tuple[Cell, BaseProcess]] = []
        self.killed: list[Cell] = []

    def has_room(self) -> bool:
        """Whether another run may start."""
        return len(self.running) < self.jobs

    def start(self, cell: Cell) -> None:
        """Starts a run, or goes on with it."""
        process = self.context.Process(target=_work, args=(cell,))
        process.start()
        self.running.append((cell, process))

    def ended(self) -> list[tuple[Cell, bool]]:
        """The runs that have ended since the last look, and whether they ended well."""
        time.sleep(POLL_SECONDS)
        ended = []
        for cell, process in list(self.running):
            if process.exitcode is None:
                continue
            self.running.remove((cell, process))
            if process.exitcode < 0 and cell not in self.killed:
                self.killed.append(cell)
                self.start(cell)
            else:
                ended.append((cell, process.exitcode == 0))
        return ended

    def stop(self) -> None:
        """Asks all runs for a checkpoint, and waits for them to end."""
        for _, process in self.running:
            process.terminate()
        for _, process in self.running:
            process.join()


def _work(cell: Cell) -> None:
    """What a process does."""
    threading.Thread(target=_stop_when_left_alone, daemon=True).start()
    try:
        good = attempt_with_log(cell, LOCK_SECONDS)
    except (Interrupted, KeyboardInterrupt):
        good = False
    except OSError as error:  # there can be no folder, or no file in it
        print(f"{cell.folder.name}: {error}", file=sys.stderr, flush=True)
        good = False
    sys.exit(0 if good else 1)


def _stop_when_left_alone() -> None:
    """Asks this process for a checkpoint once the queue that started it has died."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def attempt_with_log(cell: Cell, patience: float) -> bool:
    """Does a run; from now on, what this process has to say goes into a file in its folder."""
    cell.folder.mkdir(parents=True, exist_ok=True)
    with (cell.folder / "log.txt").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    return attempt(cell, patience)


def attempt(cell: Cell, patience: float = 0.0) -> bool:
    """Does a run in this process, and says on stderr why it failed, if it did.

    Args:
        cell: The run.
        patience: Seconds to wait while its folder is another process's.
    """
    until = time.monotonic() + patience
    while True:
        try:
            run_cell(cell)
            return True
        except (*FAILURES, MemoryError, RuntimeError) as error:
            if isinstance(error, Busy) and time.monotonic() < until:
                time.sleep(1.0)
                continue
            why = str(error) or type(error).__name__
            print(f"{cell.folder.name}: {why}", file=sys.stderr, flush=True)
            return False
