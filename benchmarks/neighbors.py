"""`python -m benchmarks.neighbors`: predictions against a large index, by every exact engine.

Each engine answers in a process of its own: the best time of some rounds, and the most memory that
a prediction takes beyond the fitted estimator and the queries.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from benchmarks.memory import Peak
from benchmarks.record import environment
from neuralsort.neighbors import DifferentiableKNeighborsClassifier

ENGINES = ("faiss", "torch", "sklearn")
SECONDS, MEBIBYTES = 10.0, 1024
"""The bars, for 10,000 queries against 50,000 points of 500 features."""


def measure(engine: str, queries: int, points: int, features: int, rounds: int) -> dict[str, float]:
    """Seconds and MiB of a prediction, in this process."""
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
    return {"seconds": min(times), "mebibytes": peak.bytes() / 2**20}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures every engine and prints one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.neighbors", description=__doc__)
    parser.add_argument("--engines", nargs="+", default=ENGINES, choices=ENGINES)
    parser.add_argument("--queries", type=int, default=10_000)
    parser.add_argument("--points", type=int, default=50_000)
    parser.add_argument("--features", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3, help="the best counts (3)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    sizes = (options.queries, options.points, options.features, options.rounds)
    if options.here:
        torch.set_num_threads(options.threads)
        print(json.dumps(measure(options.engines[0], *sizes)))
        return 0
    where = environment()["machine"]
    print(f"{options.queries:,} queries, {options.points:,} x {options.features} points, k = 9")
    print(f"torch {torch.__version__}, {where['processor']}, {options.threads} threads\n")
    print(f"bars: {SECONDS:g} s, {MEBIBYTES} MiB\n\n| engine | seconds | MiB |\n|---|---|---|")
    names = ("queries", "points", "features", "rounds", "threads")
    flags = [text for name in names for text in (f"--{name}", str(getattr(options, name)))]
    for engine in options.engines:
        command = [sys.executable, "-m", "benchmarks.neighbors", "--here", "--engines", engine]
        done = subprocess.run([*command, *flags], capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"| {engine} | {done.stderr.strip().splitlines()[-1]} | |")
            continue
        found = json.loads(done.stdout)
        print(f"| {engine} | {found['seconds']:.2f} | {found['mebibytes']:.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
