"""Doing runs in order, here or wherever there are workers, and saying how long the rest takes."""

import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ..training.trainer import Interrupted
from .cells import Cell
from .processes import attempt


class Unfinished(Exception):
    """Runs that failed; the message says which, and where to look."""


class Workers(Protocol):
    """Whoever does several runs at a time."""

    def has_room(self) -> bool:
        """Whether another run may start."""
        ...

    def start(self, cell: Cell) -> None:
        """Starts a run, or goes on with it."""
        ...

    def ended(self) -> list[tuple[Cell, bool]]:
        """The runs that have ended since the last look, and whether well; waits a moment."""
        ...

    def stop(self) -> None:
        """Asks all runs for a checkpoint, and waits for them to end."""
        ...


class Queue:
    """Runs of the report, some of them side by side.

    Args:
        cells: In the order in which they are to be done.
        workers: Who does them; not given: this process, one after the other.
    """

    def __init__(self, cells: Sequence[Cell], workers: Workers | None = None) -> None:
        self.cells, self.workers = list(cells), workers
        self.began: dict[Path, float] = {}  # the runs that are being done
        self.side_by_side = 1
        self.seconds, self.images = 0.0, 0  # of the runs that have ended
        self.failed: list[Cell] = []
        self.waiting: list[Cell] = []

    def run(self) -> None:
        """Does what is not done yet.

        Raises:
            Unfinished: If some failed; all others are done.
            Interrupted: After Ctrl-C or a SIGTERM; every run has left a checkpoint.
        """
        done = [cell for cell in self.cells if cell.is_done]
        # The line of one that was killed at that moment may be missing.
        self.failed += [cell for cell in done if not attempt(cell)]
        self.waiting = [cell for cell in self.cells if not cell.is_done]
        print(f"{len(self.waiting)} runs to do, {len(done)} done before.", flush=True)
        if self.workers is None:
            for cell in self.waiting:
                if not self._is_lost(cell):
                    self._begin(cell)
                    self._finished(cell, attempt(cell))
        else:
            self._side_by_side(self.workers)
        if self.failed:
            names = ", ".join(cell.folder.name for cell in self.failed)
            where = "above, or in log.txt in their folders" if self.workers else "above"
            raise Unfinished(
                f"{len(self.failed)} runs did not finish: {names}. What they said is {where}. "
                "The same command tries them again."
            )

    def _side_by_side(self, workers: Workers) -> None:
        waiting, running = list(self.waiting), 0
        before = signal.signal(signal.SIGTERM, _interrupt)
        try:
            while waiting or running:
                waiting = [cell for cell in waiting if not self._is_lost(cell)]
                for cell in [cell for cell in waiting if cell.is_ready]:
                    if not workers.has_room():
                        break
                    waiting.remove(cell)
                    self._begin(cell)
                    workers.start(cell)
                    running += 1
                for cell, good in workers.ended():
                    running -= 1
                    self._finished(cell, good)
        except KeyboardInterrupt:
            workers.stop()
            raise Interrupted from None
        finally:
            signal.signal(signal.SIGTERM, before)

    def _is_lost(self, cell: Cell) -> bool:
        """Whether the run that chooses its temperature has failed, and this one with it."""
        lost = cell.chooser in self.failed
        if lost:
            self.failed.append(cell)
        return lost

    def _begin(self, cell: Cell) -> None:
        self.began[cell.folder] = time.monotonic()
        self.side_by_side = max(self.side_by_side, len(self.began))

    def _finished(self, cell: Cell, good: bool) -> None:
        seconds = time.monotonic() - self.began.pop(cell.folder)
        if good:
            self.seconds += seconds
            self.images += cell.images
        else:
            self.failed.append(cell)
        left = [one for one in self.waiting if not one.is_done and one not in self.failed]
        word = "done" if good else "failed"
        text = f"{word}  {cell.folder.name}  ({len(left)} runs left"
        seconds = self.seconds_left(left)
        print(text + (")" if seconds is None else f", about {_hours(seconds)})"), flush=True)

    def seconds_left(self, left: Sequence[Cell]) -> float | None:
        """By the speed of the runs that have ended; None while there is none."""
        if not self.images:
            return None
        now, each = time.monotonic(), self.seconds / self.images
        alone = [
            max(0.0, each * one.images - (now - self.began.get(one.folder, now))) for one in left
        ]
        return sum(alone) / max(1, min(self.side_by_side, len(left)))


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds > 5400 else f"{seconds / 60:.0f} minutes"
