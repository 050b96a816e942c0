"""`python -m benchmarks.neighbors`: predictions against a large index, by every exact engine.

Each engine answers in a process of its own: the best time of some rounds, and the most memory that
a prediction takes beyond the fitted estimator and the queries.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.memory import Peak
from benchmarks.record import Measurement, environment, write_lines
from benchmarks.table import markdown
from neuralsort.neighbors import DifferentiableKNeighborsClassifier

ENGINES = ("faiss", "torch", "sklearn")
SECONDS, MEBIBYTES = 10.0, 1024
"""The bars, for 10,000 queries against 50,000 points of 500 features."""


def measure(engine: str, queries: int, points: int, features: int, rounds: int) -> dict[str, float]:
    """Seconds and bytes of a prediction, in this process."""
    generator = np.random.default_rng(0)
    labels = generator.integers(10, size=points)
    # Classes that overlap, as embeddings do: neighbours of several labels.
    centres = generator.normal(size=(10, features)).astype(np.float32)

    def draw(classes: np.ndarray) -> np.ndarray:
        noise = generator.normal(size=(len(classes), features)).astype(np.float32)
        return centres[classes] + 3 * noise

    model = DifferentiableKNeighborsClassifier(
        epochs=0, embedding=nn.Identity(), index=engine, n_neighbors=9
    ).fit(draw(labels), labels)
    asked = draw(generator.integers(10, size=queries))
    model.predict(asked[:100])  # warm up
    peak = Peak()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        model.predict(asked)
        times.append(time.perf_counter() - start)
    return {"seconds": min(times), "bytes": peak.bytes()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures every engine and prints one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.neighbors", description=__doc__)
    parser.add_argument("--engines", nargs="+", default=ENGINES, choices=ENGINES)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--points", type=int, default=50_000)
    parser.add_argument("--features", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3, help="the best counts (3)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="PATH", help="one JSON line per measurement")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    sizes = (options.queries, options.points, options.features, options.rounds)
    torch.set_num_threads(options.threads)
    if options.here:
        print(json.dumps(measure(options.engines[0], *sizes)))
        return 0
    where = environment()["machine"]
    print(f"{options.queries:,} queries, {options.points:,} x {options.features} points, k = 9")
    print(f"torch {torch.__version__}, {where['processor']}, {options.threads} threads\n")
    names = ("queries", "points", "features", "rounds", "threads")
    flags = [text for name in names for text in (f"--{name}", str(getattr(options, name)))]
    measured = []
    # FAISS and scikit-learn have threads of their own.
    threads = os.environ | {"OMP_NUM_THREADS": str(options.threads)}
    for engine in options.engines:
        command = [sys.executable, "-m", "benchmarks.neighbors", "--here", "--engines", engine]
        done = subprocess.run(
            [*command, *flags], capture_output=True, text=True, check=False, env=threads
        )
        found: dict[str, float] = {} if done.returncode else json.loads(done.stdout)
        note = done.stderr.strip().splitlines()[-1] if done.returncode else ""
        for kind in ("seconds", "bytes"):
            mode = f"predict, {options.features} features"
            size = (options.queries, options.points)
            value = found.get(kind)
            measured.append(
                Measurement(kind, engine, *size, 0.0, mode, value, note, options.rounds)
            )
    print(table(measured))
    if options.json:
        write_lines(options.json, measured)
    return 1 if any(one.value is None for one in measured) else 0


def table(measured: Sequence[Measurement]) -> str:
    """Seconds and memory of every engine, in Markdown."""
    value = {(one.contender, one.kind): one.value for one in measured}
    notes = {one.contender: one.note for one in measured}
    rows: list[tuple[str, ...]] = [("bar", f"{SECONDS:g}", f"{MEBIBYTES}")]
    for engine, note in notes.items():
        seconds, size = value[engine, "seconds"], value[engine, "bytes"]
        told = seconds is not None and size is not None
        numbers = (f"{seconds:.2f}", f"{size / 2**20:.0f}") if told else (note, "")
        rows.append((f"`{engine}`", *numbers))
    return markdown(("engine", "seconds", "MiB"), rows)


if __name__ == "__main__":
    sys.exit(main())
