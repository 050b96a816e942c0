"""A progress bar for training: one line that is written over."""

import sys
import time
from types import TracebackType


class Progress:
    """Counts epochs on standard error; a context manager.

    Args:
        title: What is being trained.
        epochs: How many there are.
        show: False for silence.
    """

    _WIDTH = 20

    def __init__(self, title: str, epochs: int, *, show: bool) -> None:
        self.title, self.epochs, self.show = title, epochs, show
        self.done, self.start = 0, time.monotonic()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.show and self.done:
            sys.stderr.write("\n")

    def advance(self, loss: float, score: float | None) -> None:
        """One more epoch, with its mean loss and its score if there is one."""
        self.done += 1
        if not self.show:
            return
        filled = self._WIDTH * self.done // self.epochs
        bar = "#" * filled + "." * (self._WIDTH - filled)
        text = f"loss {loss:.4f}" + ("" if score is None else f"  validation {score:.4f}")
        seconds = time.monotonic() - self.start
        line = f"{self.title} [{bar}] {self.done}/{self.epochs}  {text}  {seconds:.0f} s"
        sys.stderr.write(f"\r{line}")
        sys.stderr.flush()
