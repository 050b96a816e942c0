"""Progress of a training: a live line on a terminal, a plain line now and then elsewhere."""

import time

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import (
    Progress as Bar,
)

_PLAIN_SECONDS = 60.0
"""Plain lines come at most this often."""


class Progress:
    """Shows loss, metric, speed and time left; a context manager.

    Args:
        title: What is being trained.
        steps: How many steps there are.
        unit: What a step is.
        show: False for silence.
    """

    def __init__(self, title: str, steps: int, *, unit: str = "steps", show: bool = True) -> None:
        self.title, self.steps, self.unit, self.show = title, steps, unit, show
        self.console = Console(stderr=True)
        self.first: tuple[int, float] | None = None
        self.last_line, self.unsaid = time.monotonic(), ""
        self.bar = None
        if show and (self.console.is_terminal or self.console.is_jupyter):
            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TextColumn("{task.fields[text]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
            )
            self.bar = Bar(*columns, console=self.console)
            self.task = self.bar.add_task(title, total=steps, text="")

    def __enter__(self) -> "Progress":
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()
        self._say()

    def update(self, step: int, loss: float, metric: tuple[str, float] | None) -> None:
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
        if self.bar is not None:
            self.bar.update(self.task, completed=step, text=text)
        elif self.show:
            left = (self.steps - step) / speed if speed else 0.0
            self.unsaid = f"{self.title}  {step}/{self.steps}  {text}  {left / 60:.0f} min left"
            if now - self.last_line >= _PLAIN_SECONDS:
                self.last_line = now
                self._say()

    def _say(self) -> None:
        if self.unsaid:
            self.console.print(self.unsaid, highlight=False, soft_wrap=True)
        self.unsaid = ""
