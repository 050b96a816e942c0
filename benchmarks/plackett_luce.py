"""`python -m benchmarks.plackett_luce`: samples and densities of long rankings, in sorts."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

import neuralsort.torch as ns
from benchmarks.bars import BOTH, FORWARD, MILLION, Bar
from benchmarks.contenders import CONTENDERS, Contender, Sorter
from benchmarks.record import environment, write_lines
from benchmarks.table import markdown
from benchmarks.timing import Inputs, Job, take_turns
from neuralsort.runtime.progress import Progress


def _sample(n: int, tau: float) -> Sorter:
    del n, tau
    return lambda logits: ns.PlackettLuce(logits).sample()


def _log_prob(n: int, tau: float) -> Sorter:
    del tau
    ranking = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    return lambda logits: ns.PlackettLuce(logits).log_prob(ranking)


SORT = CONTENDERS["torch.sort"]
SAMPLE = Contender("`PlackettLuce.sample`", "ranking", _sample)
LOG_PROB = Contender("`PlackettLuce.log_prob`", "log-probability", _log_prob)

LIMITS = {(SAMPLE.name, FORWARD): 3.0, (LOG_PROB.name, FORWARD): 3.0, (LOG_PROB.name, BOTH): None}
"""Bars in units of `torch.sort` of the logits; the last is for information."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Times both next to `torch.sort`, in turns, and prints one table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plackett_luce", description=__doc__)
    parser.add_argument("--n", type=int, default=MILLION, help="items (10^6)")
    parser.add_argument("--rounds", type=int, default=7, help="turns for each; the best counts (7)")
    parser.add_argument("--threads", type=int, default=2, help="for PyTorch (2)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="one JSON line per measurement")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)

    inputs = Inputs(1, options.n)
    cases = [(SORT, FORWARD), (SAMPLE, FORWARD), (LOG_PROB, FORWARD), (LOG_PROB, BOTH)]
    jobs = [Job(contender, inputs, 1.0, mode) for contender, mode in cases]
    with Progress("plackett-luce", len(jobs) * (options.rounds + 1)) as progress:
        take_turns(jobs, options.rounds, progress.step)
    if options.json:
        write_lines(options.json, (job.result for job in jobs))

    where = environment()
    print(f"torch {torch.__version__}, {where['machine']['processor']}, {where['threads']} threads")
    print(f"float32, n = {options.n:,}, best of {options.rounds} rounds in turns\n")
    floor = jobs[0].result.value
    rows = []
    for job in jobs:
        one, limit = job.result, LIMITS.get((job.result.contender, job.result.mode))
        if one.value is None or floor is None:
            rows.append((one.contender, one.mode, "-", "-", "-", one.note))
            continue
        bar = limit and Bar(one.contender, [one.value / floor], limit, None, "{:.2f}x".format)
        cells = (f"{one.value * 1e3:.1f}", f"{one.value / floor:.2f}x")
        verdict = (f"{limit:g}x", bar.verdict) if bar else ("", "")
        rows.append((one.contender, one.mode, *cells, *verdict))
    print(markdown(("what", "mode", "ms", "/ sort", "bar", "verdict"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
