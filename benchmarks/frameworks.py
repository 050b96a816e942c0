"""`python -m benchmarks.frameworks`: JAX beside OTT and PyTorch, TensorFlow beside the paper."""

import argparse
import functools
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bars import Bar
from benchmarks.record import Measurement, environment, write_lines
from benchmarks.table import markdown, milliseconds
from neuralsort.runtime.progress import Progress

FORWARD, BOTH = "forward", "forward+backward"
OTHERS = ("jax", "ott-jax", "tensorflow")

Call = Callable[[], Any]


@dataclass(frozen=True)
class Contender:
    """A soft sort or a matrix in some framework.

    Attributes:
        name: What the table calls it.
        prepare: From scores `(batch, n)` and a mode to a call that has finished when it returns.
        modes: What it can do.
    """

    name: str
    prepare: Callable[[np.ndarray, str], Call]
    modes: Sequence[str] = (FORWARD, BOTH)


# -- JAX -------------------------------------------------------------------------------------------


def _jitted(sort: Callable[[Any], Any], scores: np.ndarray, mode: str) -> Call:
    import jax

    x = jax.numpy.asarray(scores)
    run = jax.jit(sort if mode == FORWARD else jax.grad(lambda x: (sort(x) ** 2).sum()))
    return lambda: jax.block_until_ready(run(x))


def _jax(scores: np.ndarray, mode: str) -> Call:
    import neuralsort.jax as ns

    return _jitted(lambda x: ns.neuralsort(x, tau=1.0).sort(x), scores, mode)


def _ott(scores: np.ndarray, mode: str) -> Call:
    from ott.tools import soft_sort

    return _jitted(lambda x: soft_sort.sort(x, axis=-1), scores, mode)


# -- PyTorch ---------------------------------------------------------------------------------------


def _torch(scores: np.ndarray, mode: str) -> Call:
    import torch

    import neuralsort.torch as ns

    x = torch.tensor(scores, requires_grad=mode == BOTH)

    def forward() -> Any:
        return ns.neuralsort(x, tau=1.0).sort(x)

    def both() -> Any:
        return torch.autograd.grad(forward().square().sum(), x)

    return forward if mode == FORWARD else both


# -- TensorFlow ------------------------------------------------------------------------------------


def _printed_formula(scores: Any, tau: float) -> Any:
    """The paper's operator, step for step: A_s 1 as a product of two n x n matrices."""
    import tensorflow as tf

    column = scores[..., None]
    n = tf.shape(scores)[-1]
    one = tf.ones((n, 1), scores.dtype)
    distances = tf.abs(column - tf.linalg.matrix_transpose(column))
    sums = tf.matmul(distances, tf.broadcast_to(one @ tf.transpose(one), tf.shape(distances)))
    coefficient = tf.cast(n + 1 - 2 * tf.range(1, n + 1), scores.dtype)
    scaled = column * coefficient[None, None, :]
    return tf.nn.softmax(tf.linalg.matrix_transpose(scaled - sums) / tau, -1)


def _graph(relax: Callable[..., Any], compiled: bool, scores: np.ndarray, mode: str) -> Call:
    import tensorflow as tf

    x = tf.constant(scores)

    def forward(x: Any) -> Any:
        return relax(x, tau=1.0)

    def both(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = tf.reduce_sum(forward(x) ** 2)
        return tape.gradient(value, x)

    run = tf.function(forward if mode == FORWARD else both, jit_compile=compiled)
    return lambda: run(x).numpy()


def _tf(compiled: bool, scores: np.ndarray, mode: str) -> Call:
    import neuralsort.tf as ns

    return _graph(ns.neuralsort, compiled, scores, mode)


CONTENDERS = (
    Contender("ours in JAX, jitted: sort", _jax),
    # Its default loop has no end known in advance, which reverse mode does not take.
    Contender("OTT `soft_sort.sort`, jitted", _ott, (FORWARD,)),
    Contender("ours in PyTorch: sort", _torch),
    Contender("ours in TensorFlow, graph: matrix", functools.partial(_tf, False)),
    Contender("ours in TensorFlow, XLA: matrix", functools.partial(_tf, True)),
    Contender(
        "paper's TensorFlow formula: matrix", functools.partial(_graph, _printed_formula, False)
    ),
)


def _prepared(
    contender: Contender, scores: np.ndarray, mode: str
) -> tuple[Measurement, Call | None]:
    result = Measurement("seconds", contender.name, *scores.shape, 1.0, mode)
    try:
        call = contender.prepare(scores, mode)
        call()  # compiles
    except Exception as error:  # a peer that is missing or fails is a result like any other
        result.note = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:60]}"
        return result, None
    return result, call


def main(arguments: Sequence[str] | None = None) -> int:
    """Times everybody in turns and prints one table and one bar."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.frameworks", description=__doc__)
    parser.add_argument("--batch", type=int, default=16, help="lists (16)")
    parser.add_argument("--n", type=int, default=1000, help="items (1000)")
    parser.add_argument("--rounds", type=int, default=5, help="turns for each; the best counts (5)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="one JSON line per measurement")
    options = parser.parse_args(arguments)

    scores = np.random.default_rng(0).normal(size=(options.batch, options.n)).astype(np.float32)
    jobs: list[tuple[Measurement, Call | None]] = []
    cases = [(contender, mode) for contender in CONTENDERS for mode in contender.modes]
    with Progress("frameworks", len(cases) * (options.rounds + 1)) as progress:
        for contender, mode in cases:
            progress.step(f"compile: {contender.name} {mode}")
            jobs.append(_prepared(contender, scores, mode))
        for turn in range(options.rounds):
            for result, call in jobs:
                progress.step(f"round {turn + 1} of {options.rounds}: {result.contender}")
                if call is not None:
                    start = time.perf_counter()
                    call()
                    spent = time.perf_counter() - start
                    result.value = min(spent, result.value or spent)
                    result.rounds += 1
    results = [result for result, _ in jobs]
    if options.json:
        write_lines(options.json, results, OTHERS)

    where = environment(OTHERS)
    versions = ", ".join(f"{name} {where['versions'][name] or 'missing'}" for name in OTHERS)
    print(f"{versions}; {where['machine']['processor']}")
    print(f"float32, {options.batch} x {options.n}, best of {options.rounds} rounds in turns\n")
    print(table(results), end="\n\n")
    known = {r.contender: r.value for r in results if r.mode == FORWARD and r.value is not None}
    ours, ott = (known.get(contender.name) for contender in CONTENDERS[:2])
    gain = [ott / ours if ours and ott else None]
    bar = Bar("JAX against OTT, forward", gain, 5.0, None, "{:.1f}x".format, at_most=False)
    print(f"{bar.what}: {'-' if bar.worst is None else bar.form(bar.worst)}, bar 5x: {bar.verdict}")
    return 0


def table(results: Iterable[Measurement]) -> str:
    """Milliseconds of everybody, in Markdown."""
    rows = [(r.contender, r.mode, milliseconds(r.value), r.note) for r in results]
    return markdown(("what", "mode", "ms", "note"), rows)


if __name__ == "__main__":
    sys.exit(main())
