"""`python -m benchmarks.gradient_lab`: bias and variance of gradients of an expected cost.

Every estimator of `neuralsort.torch.estimators` meets the same objectives at the same logits. The
exact gradient, by enumeration, tells its bias; many independent estimates tell its variance.
"""

import argparse
import functools
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import neuralsort.torch as ns
from benchmarks.record import write_lines
from neuralsort.runtime.progress import Progress
from neuralsort.torch import estimators

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results" / "benchmarks" / "gradients.jsonl"
FIGURE = ROOT / "docs" / "gradient_lab.png"

TAUS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
RELAXATIONS = {"neuralsort": ns.neuralsort, "softsort": ns.softsort}

WITHOUT_TEMPERATURE: dict[str, Callable[..., Tensor]] = {
    "score function": functools.partial(estimators.score_function_expectation, baseline=None),
    "leave one out": estimators.score_function_expectation,
}
WITH_TEMPERATURE: dict[str, Callable[..., Tensor]] = {
    "relaxed": estimators.relaxed_expectation,
    "straight-through": estimators.straight_through_expectation,
    "REBAR": estimators.rebar_expectation,
}


def sort_cost(P: ns.RelaxedPermutation, payload: Tensor) -> Tensor:
    """How far a payload, put in the order of P, is from being sorted: a square, curved in P."""
    ordered = payload.sort(descending=True).values
    return (P.sort(payload) - ordered).square().sum(-1)


def gain_cost(P: ns.RelaxedPermutation, payload: Tensor) -> Tensor:
    """The negative discounted gain of a ranking: a weighted sum, linear in P."""
    place = torch.arange(len(payload), dtype=payload.dtype)
    return -(P.sort(payload.exp()) / (place + 2).log2()).sum(-1)


OBJECTIVES = {"sort": sort_cost, "gain": gain_cost}


@dataclass(frozen=True)
class Config:
    """What one line of results was measured with.

    Attributes:
        objective: By its name in `OBJECTIVES`.
        tau: Temperature, None for estimators without one.
        samples: Behind one estimate.
        estimates: Independent ones, behind each number.
        relax: The relaxation, by its name; None for estimators without one.
    """

    objective: str
    tau: float | None
    samples: int
    estimates: int
    relax: str | None


@dataclass(frozen=True)
class Result:
    """One line of results: an estimator on one objective at one temperature.

    `metrics` holds the norm of the exact gradient; the distance of the mean estimate from it, in
    units of that norm, with its standard error; and the log of the variance, summed over items.
    """

    study: str
    method: str
    n: int
    seed: int
    config: Config
    metrics: dict[str, float]
    wall_seconds: float


def problem(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Logits and a payload of n items."""
    generator = torch.Generator().manual_seed(seed)
    logits, payload = torch.randn(2, n, dtype=torch.float64, generator=generator)
    return logits, payload


def measure(method: str, n: int, seed: int, config: Config) -> Result:
    """Draws many estimates of one gradient, and compares them with the exact one."""
    start = time.perf_counter()
    logits, payload = problem(n, seed)
    cost = functools.partial(OBJECTIVES[config.objective], payload=payload)
    alone = logits.clone().requires_grad_()
    (exact,) = torch.autograd.grad(estimators.exact_expectation(cost, alone), alone)

    options: dict[str, Any] = {"samples": config.samples}
    options["generator"] = torch.Generator().manual_seed(seed)
    if config.tau is not None and config.relax is not None:
        options |= {"tau": config.tau, "relax": RELAXATIONS[config.relax]}
    estimator = (WITHOUT_TEMPERATURE | WITH_TEMPERATURE)[method]
    lists = logits.expand(config.estimates, n).clone().requires_grad_()
    value = estimator(cost, lists, **options)
    (gradient,) = torch.autograd.grad(value.sum(), lists)  # one estimate per list

    variance, norm = gradient.var(0).sum().item(), exact.norm().item()
    metrics = {
        "exact_norm": norm,
        "relative_bias": (gradient.mean(0) - exact).norm().item() / norm,
        "relative_bias_standard_error": math.sqrt(variance / config.estimates) / norm,
        "log_variance": math.log(variance),
    }
    return Result("gradients", method, n, seed, config, metrics, time.perf_counter() - start)


def plan(options: argparse.Namespace) -> Iterator[tuple[str, int, int, Config]]:
    """Every case to measure."""
    for objective in options.objectives:
        for n in options.n:
            for seed in range(options.seeds):
                size = {"samples": options.samples, "estimates": options.estimates}
                for method in WITHOUT_TEMPERATURE:
                    yield method, n, seed, Config(objective, tau=None, relax=None, **size)
                for method in WITH_TEMPERATURE:
                    for tau in options.taus:
                        yield method, n, seed, Config(objective, tau, relax=options.relax, **size)


# -- the figure ------------------------------------------------------------------------------------

STYLES = {
    "relaxed": {"color": "#0072b2", "marker": "o", "ms": 5},
    "straight-through": {"color": "#e69f00", "marker": "s", "ls": "-.", "mfc": "none", "ms": 9},
    "REBAR": {"color": "#009e73", "marker": "^", "ms": 5},
    "leave one out": {"color": "#000000", "ls": "--"},
    "score function": {"color": "#999999", "ls": ":"},
}

TITLES = {"sort": "Squared distance from the sorted list", "gain": "Discounted gain (linear in P)"}


def draw(lines: Sequence[dict[str, Any]], n: int, path: Path) -> None:
    """Draws log-variance and bias against temperature, mean over seeds, for lists of n items."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    lines = [line for line in lines if line["n"] == n]
    objectives = list(dict.fromkeys(line["config"]["objective"] for line in lines))
    taus = sorted({line["config"]["tau"] for line in lines} - {None})
    plt.rcParams.update({"font.size": 10, "axes.titlesize": 11, "axes.titlelocation": "left"})
    figure, axes = plt.subplots(
        len(objectives), 2, figsize=(10.5, 3.9 * len(objectives)), layout="constrained", sharex=True
    )
    for row, objective in zip(axes.reshape(-1, 2), objectives, strict=True):
        for method, style in STYLES.items():
            for panel, metric in zip(row, ("log_variance", "relative_bias"), strict=True):
                at = [
                    [
                        line["metrics"][metric]
                        for line in lines
                        if line["method"] == method
                        and line["config"]["objective"] == objective
                        and line["config"]["tau"] in (tau, None)
                    ]
                    for tau in taus
                ]
                means = [sum(values) / len(values) for values in at]
                panel.plot(taus, means, label=method, linewidth=1.8, **style)
        row[0].set(title=f"{TITLES[objective]}: log-variance", ylabel="log of total variance")
        row[1].set(title="Relative bias (unbiased ones show their noise)", yscale="log")
        row[1].set_ylabel("|mean estimate - exact| / |exact|")
        for panel in row:
            panel.set_xscale("log")
            panel.grid(alpha=0.25)
            panel.spines[["top", "right"]].set_visible(False)
    for panel in axes.reshape(-1, 2)[-1]:
        panel.set_xlabel("temperature tau")
    axes.reshape(-1, 2)[0, 0].legend(frameon=False, fontsize=9)
    samples = lines[0]["config"]["samples"]
    figure.suptitle(f"Gradients of an expected cost over rankings: n = {n}, {samples} samples each")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, writes one JSON line per case, and draws the figure from the lines."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gradient_lab",
        description="Bias and variance of gradients of an expected cost over rankings.",
    )
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=list(OBJECTIVES))
    parser.add_argument("--n", nargs="+", type=int, choices=range(2, 8), default=[5, 7])
    parser.add_argument("--taus", nargs="+", type=float, default=TAUS)
    parser.add_argument("--relax", choices=RELAXATIONS, default="neuralsort")
    parser.add_argument("--samples", type=int, default=10, help="behind one estimate (10)")
    parser.add_argument("--estimates", type=int, default=4000, help="for bias and variance (4000)")
    parser.add_argument("--seeds", type=int, default=3, help="logits and payloads (3)")
    parser.add_argument("--threads", type=int, default=1, help="for PyTorch (1)")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="PATH")
    parser.add_argument("--figure", type=Path, default=FIGURE, metavar="PATH")
    parser.add_argument("--only-draw", action="store_true", help="draw the lines that are there")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)

    if not options.only_draw:
        cases, results = list(plan(options)), []
        with Progress("gradients", len(cases)) as progress:
            for method, n, seed, config in cases:
                progress.step(f"{method} {config.objective} n={n} tau={config.tau} seed={seed}")
                results.append(measure(method, n, seed, config))
        write_lines(options.json, results)  # pyright: ignore
    lines = [json.loads(line) for line in options.json.read_text().splitlines()]
    draw(lines, max(options.n), options.figure)
    print(f"{options.json}: {len(lines)} lines; {options.figure}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
