"""Progress on stderr: a bar where `rich` and a terminal are there, plain lines otherwise."""

import importlib
import sys
import time
from typing import Any

_PLAIN_SECONDS = 2.0
"""Plain lines come at most this often."""


class Progress:
    """Counts steps towards a total; a context manager."""

    def __init__(self, part: str, total: int | None = None):
        """Prepares to count `total` steps of a part, or any number of them."""
        self.part = part
        self.total = total
        self.done = 0
        self.last_line = -_PLAIN_SECONDS
        self.bar: Any = None
        self.task: Any = None
        if sys.stderr.isatty():
            try:
                rich = importlib.import_module("rich.progress")
                console = importlib.import_module("rich.console").Console(stderr=True)
            except ImportError:
                return
            columns = (
                rich.BarColumn(bar_width=20),
                rich.MofNCompleteColumn(),
                rich.TimeElapsedColumn(),
                rich.TextColumn("{task.description}"),
            )
            self.bar = rich.Progress(*columns, console=console, transient=True)
            self.task = self.bar.add_task("", total=total)

    def __enter__(self) -> "Progress":
        """Shows the bar."""
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Clears the bar."""
        if self.bar is not None:
            self.bar.stop()

    def step(self, text: str) -> None:
        """Says what starts now."""
        if self.bar is not None:
            self.bar.update(self.task, completed=self.done, description=f"{self.part}: {text}")
        elif time.monotonic() - self.last_line >= _PLAIN_SECONDS:
            self.last_line = time.monotonic()
            total = "" if self.total is None else f"/{self.total}"
            print(f"{self.part} [{self.done + 1}{total}] {text}", file=sys.stderr, flush=True)
        self.done += 1
