"""`python -m benchmarks.frameworks`: JAX beside OTT and PyTorch, TensorFlow beside the paper."""

import argparse
import functools
import json
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
from neuralsort.runtime import files
from neuralsort.runtime.progress import Progress

FORWARD, BOTH = "forward", "forward+backward"
OTHERS = ("jax", "ott-jax", "tensorflow")

LONG_TAUS = (1.0, 0.01)
# How many times as long as PyTorch JAX may take, for lists of up to so many items.
SLOWER = ((1000, 3.0), (50_000, 5.0), (10**7, 10.0))
TIMES = "{:.1f}x".format

Call = Callable[[], Any]


@dataclass(frozen=True)
class Contender:
    """A soft sort or a matrix in some framework.

    Attributes:
        name: What the table calls it.
        prepare: From scores `(batch, n)`, a mode and a temperature to a call that has finished when
            it returns.
        modes: What it can do.
        long: Whether it can do with long lists.
    """

    name: str
    prepare: Callable[[np.ndarray, str, float], Call]
    modes: Sequence[str] = (FORWARD, BOTH)
    long: bool = False


# -- JAX -------------------------------------------------------------------------------------------


def _jitted(sort: Callable[[Any], Any], scores: np.ndarray, mode: str) -> Call:
    import jax

    x = jax.numpy.asarray(scores)
    run = jax.jit(sort if mode == FORWARD else jax.grad(lambda x: (sort(x) ** 2).sum()))
    return lambda: jax.block_until_ready(run(x))


def _jax(scores: np.ndarray, mode: str, tau: float) -> Call:
    import neuralsort.jax as ns

    return _jitted(lambda x: ns.neuralsort(x, tau=tau).sort(x), scores, mode)


def _ott(scores: np.ndarray, mode: str, _: float) -> Call:
    from ott.tools import soft_sort

    return _jitted(lambda x: soft_sort.sort(x, axis=-1), scores, mode)


# -- PyTorch ---------------------------------------------------------------------------------------


def _torch(scores: np.ndarray, mode: str, tau: float) -> Call:
    import torch

    import neuralsort.torch as ns

    x = torch.tensor(scores, requires_grad=mode == BOTH)

    def forward() -> Any:
        return ns.neuralsort(x, tau=tau).sort(x)

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


def _graph(
    relax: Callable[..., Any], compiled: bool, scores: np.ndarray, mode: str, tau: float
) -> Call:
    import tensorflow as tf

    x = tf.constant(scores)

    def forward(x: Any) -> Any:
        return relax(x, tau=tau)

    def both(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = tf.reduce_sum(forward(x) ** 2)
        return tape.gradient(value, x)

    run = tf.function(forward if mode == FORWARD else both, jit_compile=compiled)
    return lambda: run(x).numpy()


def _tf(compiled: bool, scores: np.ndarray, mode: str, tau: float) -> Call:
    import neuralsort.tf as ns

    return _graph(ns.neuralsort, compiled, scores, mode, tau)


CONTENDERS = (
    Contender("ours in JAX, jitted: sort", _jax, long=True),
    # Its default loop has no end known in advance, which reverse mode does not take.
    Contender("OTT `soft_sort.sort`, jitted", _ott, (FORWARD,)),
    Contender("ours in PyTorch: sort", _torch, long=True),
    Contender("ours in TensorFlow, graph: matrix", functools.partial(_tf, False)),
    Contender("ours in TensorFlow, XLA: matrix", functools.partial(_tf, True)),
    Contender(
        "paper's TensorFlow formula: matrix", functools.partial(_graph, _printed_formula, False)
    ),
)


def _prepared(
    contender: Contender, scores: np.ndarray, mode: str, tau: float
) -> tuple[Measurement, Call | None]:
    batch, n = scores.shape
    result = Measurement("seconds", contender.name, batch, n, tau, mode)
    try:
        call = contender.prepare(scores, mode, tau)
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
    parser.add_argument(
        "--long", action="store_true", help="JAX and PyTorch with one list, at two temperatures"
    )
    parser.add_argument(
        "--json", type=Path, metavar="PATH", help="one JSON line per measurement; keeps other sizes"
    )
    options = parser.parse_args(arguments)

    scores = np.random.default_rng(0).normal(size=(options.batch, options.n)).astype(np.float32)
    jobs: list[tuple[Measurement, Call | None]] = []
    cases = [(contender, mode, 1.0) for contender in CONTENDERS for mode in contender.modes]
    if options.long:
        contenders = [contender for contender in CONTENDERS if contender.long]
        cases = [(contender, BOTH, tau) for contender in contenders for tau in LONG_TAUS]
    with Progress("frameworks", len(cases) * (options.rounds + 1)) as progress:
        for contender, mode, tau in cases:
            progress.step(f"compile: {contender.name} {mode}")
            jobs.append(_prepared(contender, scores, mode, tau))
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
        _replace_lines(options.json, results)

    where = environment(OTHERS)
    versions = ", ".join(f"{name} {where['versions'][name] or 'missing'}" for name in OTHERS)
    print(f"{versions}; {where['machine']['processor']}")
    print(f"float32, {options.batch} x {options.n}, best of {options.rounds} rounds in turns\n")
    print(table(results), end="\n\n")
    for bar in bars(results):
        worst = "-" if bar.worst is None else bar.form(bar.worst)
        print(f"{bar.what}: {worst}, bar {bar.form(bar.limit)}: {bar.verdict}")
    return 0


def bars(results: Sequence[Measurement]) -> list[Bar]:
    """JAX against OTT and PyTorch, as far as they were measured."""
    jax, ott, torch = (contender.name for contender in CONTENDERS[:3])
    known = {(r.contender, r.mode, r.tau): r.value for r in results if r.value is not None}
    found = []
    if (ott, FORWARD, 1.0) in known:
        gain = [known[ott, FORWARD, 1.0] / known[jax, FORWARD, 1.0]]
        found.append(Bar("JAX against OTT, forward", gain, 5.0, None, TIMES, at_most=False))
    slower = [
        known[jax, BOTH, tau] / known[torch, BOTH, tau]
        for tau in LONG_TAUS
        if (jax, BOTH, tau) in known and (torch, BOTH, tau) in known
    ]
    most = next(times for n, times in SLOWER if results[0].n <= n)
    found.append(Bar("JAX over PyTorch, forward+backward", slower, most, None, TIMES, at_most=True))
    return found


def _replace_lines(path: Path, results: Sequence[Measurement]) -> None:
    """Writes lines for what was measured, and keeps those of other sizes."""
    size = {"batch": results[0].batch, "n": results[0].n}
    old = path.read_text().splitlines(keepends=True) if path.exists() else []
    kept = [line for line in old if not size.items() <= json.loads(line).items()]
    write_lines(path, results, OTHERS)
    files.replace(path, "".join([*kept, path.read_text()]).encode())


def table(results: Iterable[Measurement]) -> str:
    """Milliseconds of everybody, in Markdown."""
    rows = [
        (r.contender, f"{r.batch} x {r.n:,}", f"{r.tau:g}", r.mode, milliseconds(r.value), r.note)
        for r in results
    ]
    return markdown(("what", "lists x items", "tau", "mode", "ms", "note"), rows)


if __name__ == "__main__":
    sys.exit(main())
