"""Time: every contender in one process, in turns, and the best of several rounds."""

import gc
import math
import time
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from benchmarks.contenders import Contender, failure
from benchmarks.record import Measurement

MODES = ("forward", "forward+backward")

_SAMPLE_SECONDS = 0.02
"""A sample repeats short calls for this long."""


class Inputs:
    """Standard normal scores and, per output shape, one fixed upstream gradient."""

    def __init__(self, batch: int, n: int):
        """Draws the scores, the same ones for the same sizes."""
        self.generator = torch.Generator().manual_seed(0)
        self.scores = torch.randn(batch, n, generator=self.generator)
        self.variable = self.scores.clone().requires_grad_()
        self.upstream: dict[torch.Size, Tensor] = {}

    def gradient_of(self, output: Tensor) -> Tensor:
        """The upstream gradient for an output."""
        if output.shape not in self.upstream:
            self.upstream[output.shape] = torch.randn(output.shape, generator=self.generator)
        return self.upstream[output.shape]


class Job:
    """One contender at one size, temperature and mode."""

    def __init__(self, contender: Contender, inputs: Inputs, tau: float, mode: str):
        """Notes what to measure; nothing is imported or run yet."""
        batch, n = inputs.scores.shape
        self.contender = contender
        self.inputs = inputs
        self.result = Measurement("seconds", contender.name, batch, n, tau, mode)
        self.call: Callable[[], object] | None = None

    def __str__(self) -> str:
        """What the progress line says."""
        at = self.result
        return f"{at.contender} {at.batch}x{at.n} tau={at.tau:g} {at.mode}"

    def prepare(self) -> None:
        """Imports and warms up; whatever goes wrong is the result's note."""
        at = self.result
        at.note = self.contender.sits_out(at.batch, at.n) or ""
        if at.note:
            return
        sorter, at.note = self.contender.build(at.n, at.tau)
        if sorter is None:
            return

        def forward() -> None:
            with torch.no_grad():
                sorter(self.inputs.scores)

        def forward_backward() -> None:
            output = sorter(self.inputs.variable)
            torch.autograd.grad(output, self.inputs.variable, self.inputs.gradient_of(output))

        call = forward if at.mode == "forward" else forward_backward
        try:
            call()  # thread pools, upstream gradient
        except Exception as error:  # a peer's failure is a result, not ours
            at.note = failure(error)
        else:
            self.call = call

    def sample(self) -> None:
        """Times a few calls more and keeps the best of all."""
        if self.call is None:
            return
        best = self.result.value or math.inf
        gc.collect()
        gc.disable()
        try:
            now = time.perf_counter()
            end = now + _SAMPLE_SECONDS
            while now < end:
                start = now
                self.call()
                now = time.perf_counter()
                best = min(best, now - start)
        finally:
            gc.enable()
        self.result.value = best
        self.result.rounds += 1


def jobs_for(contenders: Iterable[Contender], batch: int, n: int, tau: float) -> list[Job]:
    """Both modes of every contender, on shared inputs."""
    inputs = Inputs(batch, n)
    return [Job(contender, inputs, tau, mode) for contender in contenders for mode in MODES]


def take_turns(jobs: Sequence[Job], rounds: int, step: Callable[[str], None]) -> None:
    """Runs `jobs` round-robin, starting each round at another one.

    Results stand in `job.result` after every sample, so an interrupted run keeps what it has.
    """
    for job in jobs:
        step(f"warm-up: {job}")
        job.prepare()
    for turn in range(rounds):
        shift = turn % len(jobs)
        for job in (*jobs[shift:], *jobs[:shift]):
            step(f"round {turn + 1} of {rounds}: {job}")
            job.sample()
