"""`python -m benchmarks.steps`: a training step of the studies, with other arithmetic.

Instruction set and threads are settings of a process, so every way has a process of its own. They
take turns, and of each the best round counts. Images are noise, which costs as much as any other.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.record import Measurement, environment, write_lines
from benchmarks.table import markdown, milliseconds
from neuralsort.experiments.data.images import CLASSES, SPLITS, Images
from neuralsort.experiments.data.numbers import Digits
from neuralsort.experiments.studies.knn import KNNConfig, KNNStudy
from neuralsort.experiments.studies.sorting import SortConfig, SortStudy
from neuralsort.experiments.training.trainer import Trainer, make_fabric
from neuralsort.runtime import process
from neuralsort.runtime.progress import Progress


def _sort(**options: Any) -> tuple[SortStudy, SortConfig]:
    return SortStudy(), SortConfig(data="mnist", validation_lists=2, **options)


KINDS = {
    "sort-n5": _sort(),
    "sort-n5-overlap1": _sort(overlap=1),
    "sort-n15": _sort(n=15),
    "sort-n15-overlap1": _sort(n=15, overlap=1),
    "sort-n5-tuned": _sort(recipe="tuned"),
    "knn-mnist": (KNNStudy(), KNNConfig(data="mnist")),
    "knn-cifar10": (KNNStudy(), KNNConfig(data="cifar10")),
}
"""Deterministic NeuralSort, with the batches of its recipe; overlap 1 is without shared images."""

SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}


class Way(NamedTuple):
    """How to do the arithmetic.

    Attributes:
        title: For people.
        isa: The instruction set, as torch says it.
        settings: Of the process.
        precision: Of the network.
        threads: How many.
    """

    title: str
    isa: str
    settings: dict[str, str]
    precision: str
    threads: int


def _wide(limit: str) -> dict[str, str]:
    return {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": limit}


WAYS = (
    Way("AVX2", "AVX2", {}, "32-true", 1),
    Way("AVX2, two threads", "AVX2", {}, "32-true", 2),
    Way("AVX-512", "AVX512", _wide("AVX512_CORE"), "32-true", 1),
    Way("AVX-512, bfloat16", "AVX512", _wide("AVX512_CORE_BF16"), "bf16-mixed", 1),
    Way("AVX-512, bfloat16 emulated", "AVX512", _wide("AVX512_CORE"), "bf16-mixed", 1),
)
"""The first is what the others are compared with; the last is what a processor does that has no
instructions for bfloat16."""


def stepper(kind: str, precision: str, folder: Path) -> Callable[[int], float]:
    """A training that does so many steps when called, and returns the seconds of one."""
    study, config = KINDS[kind]
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (5_000, *SHAPES[config.data]), generator=generator).byte()
    images = Images(pixels, torch.arange(len(pixels)) % CLASSES)
    part = images if kind.startswith("knn") else Digits.of(pixels.squeeze(1), images.labels)
    plan = config.adjusted(study.plan(config))  # type: ignore[arg-type]
    (tau,) = study.taus(config)  # type: ignore[arg-type]
    task = study.task(config, dict.fromkeys(SPLITS, part), tau, plan)  # type: ignore[arg-type]
    trainer = Trainer(
        task,
        plan,
        seed=0,
        folder=folder,
        fabric=make_fabric("cpu", precision),
        identity={},
        checkpoint_seconds=3600.0,
    )

    def several(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            trainer.step()
        return (time.perf_counter() - start) / count

    return several


def _answer(kind: str, precision: str, threads: int) -> None:
    """Says what instruction set there is, then does as many steps as every line asks for."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        several = stepper(kind, precision, Path(folder))
        several(2)  # memory, and what is compiled at the first use
        print(torch.backends.cpu.get_cpu_capability(), flush=True)
        for line in sys.stdin:
            print(several(int(line)), flush=True)


@contextmanager
def _asked(kind: str, way: Way) -> Iterator[Callable[[int], str]]:
    """A process that does steps in that way, and what to ask it with; 0 asks how it began."""
    own = os.environ | {process.DONE: "1"} | process.settings(way.settings) | way.settings
    here = ("--here", kind, way.precision, str(way.threads))
    with subprocess.Popen(
        (sys.executable, "-m", "benchmarks.steps", *here),
        env=own,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        asks, answers = child.stdin, child.stdout
        assert asks is not None
        assert answers is not None

        def ask(steps: int) -> str:
            if steps:
                print(steps, file=asks, flush=True)
            return answers.readline().strip()

        yield ask
        asks.close()


def measure(kind: str, rounds: int, steps: int, progress: Progress) -> list[Measurement]:
    """Seconds of a step in every way, the best of several rounds in turns."""
    study, config = KINDS[kind]
    plan = study.plan(config)  # type: ignore[arg-type]
    size = plan.batch, config.sizes and getattr(config, config.sizes[0])
    found = [Measurement("seconds", kind, *size, 0.0, way.title, rounds=rounds) for way in WAYS]
    with ExitStack() as stack:
        there = []
        for way, one in zip(WAYS, found, strict=True):
            ask = stack.enter_context(_asked(kind, way))
            isa = ask(0)
            if isa == way.isa:
                there.append((ask, one))
            else:
                one.note, one.rounds = f"there is {isa or 'no answer'} here", 0
        for turn in range(rounds):
            progress.step(f"{kind}, round {turn + 1} of {rounds}")
            for ask, one in there[turn % len(there) :] + there[: turn % len(there)]:
                seconds = float(ask(steps))
                one.value = min(seconds, one.value or seconds)
    return found


def table(measured: Sequence[Measurement]) -> str:
    """Milliseconds of the first way, and how many times as long the others take."""
    value = {(one.contender, one.mode): one.value for one in measured}
    first, *others = (way.title for way in WAYS)
    rows = []
    for kind in dict.fromkeys(one.contender for one in measured):
        base = value[kind, first]
        told = (
            f"{here / base:.2f}x" if base and (here := value[kind, title]) else "–"
            for title in others
        )
        rows.append((f"`{kind}`", milliseconds(base), *told))
    return markdown(("a step of", f"{first}, ms", *others), rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures every kind of step and prints one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps", description=__doc__)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--rounds", type=int, default=7, help="the best counts (7)")
    parser.add_argument("--steps", type=int, default=8, help="of a round (8)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="one JSON line per measurement")
    parser.add_argument("--here", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.here:
        kind, precision, threads = options.here
        _answer(kind, precision, int(threads))
        return 0
    measured = []
    with Progress("steps", options.rounds * len(options.kinds)) as progress:
        for kind in options.kinds:
            measured += measure(kind, options.rounds, options.steps, progress)
    where = environment()["machine"]
    print(f"torch {torch.__version__}, {where['processor']}\n")
    print(table(measured))
    if options.json:
        write_lines(options.json, measured)
    return 0


if __name__ == "__main__":
    sys.exit(main())
