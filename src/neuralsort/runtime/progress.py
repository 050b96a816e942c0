"""Progress on stderr: a live line on a terminal, a plain line now and then elsewhere."""

import sys
import time
from typing import Any


class Progress:
    """Counts towards a total, and says what is being done; a context manager.

    Args:
        title: What is being done.
        total: How much there is; None if nobody knows.
        show: False for silence.
        plain_seconds: Plain lines come at most this often.
    """

    def __init__(
        self,
        title: str,
        total: int | None = None,
        *,
        show: bool = True,
        plain_seconds: float = 2.0,
    ) -> None:
        self.title, self.total, self.show = title, total, show
        self.plain_seconds = plain_seconds
        self.done = 0
        self.last_line, self.unsaid = -plain_seconds, ""
        self.bar: Any = _bar() if show else None
        if self.bar is not None:
            self.task = self.bar.add_task(title, total=total, text="")

    def __enter__(self) -> "Progress":
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()
        self._say()

    def step(self, text: str) -> None:
        """Says what starts now, and counts it."""
        self.done += 1
        self.update(self.done, text, completed=self.done - 1)

    def update(self, done: int, text: str, *, completed: int | None = None) -> None:
        """Says where things are.

        Args:
            done: What is done or being done.
            text: About it.
            completed: What is done; not given: `done`.
        """
        if self.bar is not None:
            self.bar.update(
                self.task, completed=done if completed is None else completed, text=text
            )
        elif self.show:
            total = "" if self.total is None else f"/{self.total}"
            self.unsaid = f"{self.title}  {done}{total}  {text}"
            if time.monotonic() - self.last_line >= self.plain_seconds:
                self.last_line = time.monotonic()
                self._say()

    def _say(self) -> None:
        if self.unsaid:
            print(self.unsaid, file=sys.stderr, flush=True)
        self.unsaid = ""


class TrainingProgress(Progress):
    """Shows loss, metric, speed and time left of a training.

    Args:
        title: What is being trained.
        steps: How many steps there are.
        unit: What a step is.
        show: False for silence.
    """

    def __init__(self, title: str, steps: int, *, unit: str = "steps", show: bool = True) -> None:
        super().__init__(title, steps, show=show, plain_seconds=60.0)
        self.steps, self.unit = steps, unit
        self.first: tuple[int, float] | None = None
        self.last_line = time.monotonic()  # the first plain line can wait

    def __enter__(self) -> "TrainingProgress":
        super().__enter__()
        return self

    def trained(self, step: int, loss: float, metric: tuple[str, float] | None) -> None:
        """Says where training is.

        Args:
            step: Steps done.
            loss: Of the last batch.
            metric: Name and value at the last validation, if there was one.
        """
        now = time.monotonic()
        if self.first is None:
            self.first = (step, now)
        speed = (step - self.first[0]) / max(now - self.first[1], 1e-9)
        text = f"loss {loss:.3f}" + (f"  {metric[0]} {metric[1]:.4g}" if metric else "")
        text += f"  {speed:.1f} {self.unit}/s"
        if self.bar is None:
            left = (self.steps - step) / speed if speed else 0.0
            text += f"  {left / 60:.0f} min left"
        self.update(step, text)


def _bar() -> Any:
    """A live line of `rich`; None where there is no terminal, or no `rich`."""
    try:
        from rich import progress
        from rich.console import Console
    except ImportError:
        return None
    console = Console(stderr=True)
    if not (console.is_terminal or console.is_jupyter):
        return None
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=20),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[text]}"),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
    )
    return progress.Progress(*columns, console=console)
