"""`python -m benchmarks`: the whole comparison, printed as one report."""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from benchmarks import accuracy, beside, memory
from benchmarks.bars import GROWTH, LONG_TAUS, MILLION
from benchmarks.contenders import CONTENDERS, Contender, failure
from benchmarks.record import Measurement, environment, write_lines
from benchmarks.table import accuracy_table, bars_table, notes, speed_table
from benchmarks.timing import Job, jobs_for, take_turns
from neuralsort.runtime.progress import Progress

SIZES = ((20, 15), (64, 50), (100, 100), (16, 512), (4, 2000), (1, 10**4), (1, 10**5), (1, 10**6))
QUICK_SIZES = ((20, 15), (100, 100), (16, 512), (1, 10**4))
PARTS = ("speed", "beside", "memory", "accuracy")
BESIDE = ("ours-dense", "paper-row-sum")
TAU = 1.0

LEGEND = """\
Time (best of {rounds} rounds in turns) and peak memory beyond the inputs: float32, normal scores.
`/ sort`: multiple of `torch.sort` forward. `formula /`: printed formula over this, fwd+bwd.
"""

_MEMORY_ITEMS = 500
"""Shorter lists need too little memory to be told from noise."""


def _size(text: str) -> tuple[int, int]:
    """Reads 16x512 or 1x10^6."""
    try:
        batch, n = text.lower().split("x")
        base, _, power = n.partition("^")
        size = int(batch), int(base) ** int(power or 1)
    except ValueError:
        size = (0, 0)
    if min(size) < 1:
        raise argparse.ArgumentTypeError(f"expected BATCHxN such as 16x512 or 1x10^6, got {text!r}")
    return size


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter lists and fewer rounds")
    parser.add_argument("--sizes", nargs="+", type=_size, metavar="BATCHxN")
    names = ", ".join(CONTENDERS)
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, metavar="NAME", help=names)
    parser.add_argument("--rounds", type=_count, help="turns per contender (7; 3 with --quick)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to run")
    parser.add_argument("--threads", type=_count, default=2, help="for PyTorch (2)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="one JSON line per measurement")
    return parser


def _time(
    contenders: Sequence[Contender],
    sizes: Sequence[tuple[int, int]],
    rounds: int,
    results: list[Measurement],
) -> None:
    """Times the contenders, all at one size before the next size."""
    ours = [one for one in contenders if one.name == "ours-sort"]
    groups: list[list[Job]] = []
    for batch, n in sizes:
        jobs = jobs_for(contenders, batch, n, TAU)
        if (batch, n) == (1, MILLION):  # what the bars on long lists compare, in the same turns
            for tau in LONG_TAUS:
                jobs += jobs_for(ours, 1, MILLION, tau) if tau != TAU else []
                jobs += jobs_for(ours, 1, MILLION // GROWTH, GROWTH * tau)
        groups.append(jobs)
        results += [job.result for job in jobs]
    with Progress("speed", sum(map(len, groups)) * (rounds + 1)) as progress:
        for jobs in groups:
            take_turns(jobs, rounds, progress.step)


def _weigh(
    contenders: Sequence[Contender],
    sizes: Sequence[tuple[int, int]],
    results: list[Measurement],
) -> None:
    """Measures peak memory, one process per contender and size."""
    cases = [
        (contender, batch, n, tau)
        for batch, n in sizes
        for contender in contenders
        for tau in (LONG_TAUS if (contender.name, n) == ("ours-sort", MILLION) else (TAU,))
        if n >= _MEMORY_ITEMS
    ]
    with Progress("memory", len(cases)) as progress:
        for contender, batch, n, tau in cases:
            progress.step(f"{contender.name} {batch}x{n} tau={tau:g}")
            results += memory.measure(contender, batch, n, tau)


def _check(quick: bool, results: list[Measurement]) -> None:
    """Runs the accuracy checks."""
    with Progress("accuracy") as progress:
        progress.step("imports")
        try:
            for one in accuracy.checks(quick):
                progress.step(f"{one.kind}: n={one.n} tau={one.tau:g} {one.mode}")
                results.append(one)
        except Exception as error:  # the other tables are still worth printing
            print(f"Accuracy checks stopped: {failure(error)}", file=sys.stderr)


def _time_beside(contenders: Sequence[Contender], threads: int, results: list[Measurement]) -> None:
    """Times some of them beside a busy process."""
    names = [one.name for one in contenders if one.name in BESIDE]
    results += beside.measure(names, threads) if names else []


def _told(results: Iterable[Measurement]) -> list[Measurement]:
    """What came of a measurement, or the reason why nothing did."""
    return [one for one in results if one.value is not None or one.note]


def _keep(path: Path | None, results: Sequence[Measurement]) -> None:
    """Writes the lines of what was measured so far, if a file was named."""
    if path:
        write_lines(path, _told(results))


def _report(results: Sequence[Measurement], rounds: int) -> None:
    """Prints the tables of whatever was measured."""
    where = environment()
    versions = ", ".join(f"{k} {v or 'missing'}" for k, v in where["versions"].items())
    print(f"\n{versions}; {where['machine']['processor']}, {where['threads']} threads\n")
    if any(one.kind in ("seconds", "bytes") for one in results):
        print(LEGEND.format(rounds=rounds))
        print(speed_table(results), end="\n\n")
        if any(one.note for one in results):
            print(notes(results), end="\n\n")
    if any(one.kind not in ("seconds", "bytes") for one in results):
        print("Accuracy.\n")
        print(accuracy_table(results), end="\n\n")
    print("Bars.\n")
    print(bars_table(results))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; an interrupt still prints and writes what is there.

    Returns:
        The exit status: 0, or 130 after an interrupt.
    """
    options = _parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    sizes = options.sizes or (QUICK_SIZES if options.quick else SIZES)
    rounds = options.rounds or (3 if options.quick else 7)
    contenders = [CONTENDERS[name] for name in options.contenders or CONTENDERS]
    results: list[Measurement] = []
    status = 0
    parts = {
        "speed": lambda: _time(contenders, sizes, rounds, results),
        "beside": lambda: _time_beside(contenders, options.threads, results),
        "memory": lambda: _weigh(contenders, sizes, results),
        "accuracy": lambda: _check(options.quick, results),
    }
    try:
        for part in (one for one in PARTS if one in options.only):
            parts[part]()
            _keep(options.json, results)  # the next part may take the machine down
    except KeyboardInterrupt:
        print("\nInterrupted: this is what was measured so far.", file=sys.stderr)
        status = 130
        _keep(options.json, results)
    results = _told(results)
    _report(results, rounds)
    return status


if __name__ == "__main__":
    sys.exit(main())
